"""The six dashboards: runs, learning, staleness, workers, verifier, bus.

Invariants: each has the run as its variable and links to the others that keep run and range; lines
are drawn at the thresholds where `infra/prometheus/alerts.yml` warns.
"""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DynamicConfigValue,
    VariableHide,
    VariableRefresh,
)

from infra.grafana import panels as p
from infra.grafana.asking import CLICKHOUSE, CLICKHOUSE_TYPE, PROMETHEUS
from infra.grafana.panels import HALF, THIRD, WHOLE, Tile

TAG = "sluice"
_RUNS = "SELECT run_id FROM control_events GROUP BY run_id ORDER BY min(ts) DESC LIMIT 200"
_LAG_MAX, _DROPS_MAX, _COMMIT_S_MAX = 4, 0.2, 0.25
_BEHIND_MAX, _AHEAD_S_MAX = 10_000, 5
_SELECTED_MAX = 0.1
"""Of the view `selection_by_length`."""
_OF_RUN = 'run="$run_id"'


def _board(name: str, description: str, *, asks_tables: bool = True) -> Dashboard:
    """Return a dashboard with its variables and its links, and no panel."""
    sources = [
        DatasourceVariable("clickhouse").label("ClickHouse").type(CLICKHOUSE_TYPE),
        DatasourceVariable("prometheus").label("Prometheus").type("prometheus"),
    ]
    run = QueryVariable("run_id").label("Run").refresh(VariableRefresh.ON_DASHBOARD_LOAD)
    if asks_tables:
        run = run.datasource(CLICKHOUSE).query(_RUNS)
    else:
        run = run.datasource(PROMETHEUS).query('label_values(up{job="sluice"}, run)')
    run = run.description("Runs that the tables know, the newest first.").hide(
        VariableHide.DONT_HIDE
    )
    links = (
        DashboardLink("Sluice")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
        .as_dropdown(False)
    )
    board = (
        Dashboard(f"Sluice / {name.capitalize()}")
        .uid(f"sluice-{name}")
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(links)
    )
    for one in sources:
        board = board.with_variable(one)
    return board.with_variable(run)


def _runs() -> Dashboard:
    to_run = [
        {
            "title": "this run",
            "url": "/d/sluice-runs?var-run_id=${__value.raw}&${clickhouse:queryparam}"
            "&${prometheus:queryparam}&from=${__data.fields.began:date}",
        }
    ]
    tiles = (
        Tile(column="wall_s", title="wall clock", unit="s"),
        Tile(column="raw_tokens_per_s", title="sampled", unit="tokens/s"),
        Tile(column="effective_tokens_per_s", title="trained", unit="tokens/s"),
        Tile(column="bound_tokens_per_s", title="bound", unit="tokens/s"),
        Tile(column="bottleneck", title="bound by", unit="reward"),
        Tile(column="effective_trajectories_per_s", title="trained", unit="trajectories/s"),
    )
    progress = (
        Tile(column="updates", title="updates", unit="updates"),
        Tile(column="reward_mean", title="reward", unit="reward"),
        Tile(column="trajectories", title="trained", unit="trajectories"),
        Tile(column="mean_step_s", title="an update takes", unit="s"),
    )
    percentiles = {"n": "samples", "bad": "not finite"}
    return (
        _board("runs", "How a run goes: progress, rates against their bound, losses by reason.")
        .with_panel(p.tiles("run_progress", "Progress", progress, width=HALF))
        .with_panel(p.firing().height(4))
        .with_panel(p.tiles("run_summary", "Rate against its bound", tiles))
        .with_panel(p.over_time("throughput_over_time", "Tokens a second"))
        .with_panel(p.over_time("trained_over_time", "Trajectories a second"))
        .with_row(Row("Where it went"))
        .with_panel(p.bars("trajectory_accounts", "What became of the episodes", "what"))
        .with_panel(p.bars("token_accounts", "What became of the tokens", "what"))
        .with_panel(p.rows("trajectory_funnel", "Episodes by stage", units={"n": "episodes"}))
        .with_panel(p.rows("token_funnel", "Tokens by stage", units={"tokens": "tokens"}))
        .with_row(Row("Where the time went"))
        .with_panel(p.bars("where_the_time_went", "The learner's time by cause", "what"))
        .with_panel(p.bars("stage_busy", "Work of each stage", "stage"))
        .with_panel(
            p.recorded("Share of time that the learner waits", "run:learner_waits:ratio5m",
                       "Waiting for a batch, of all of the learner's time.", "share")
        )
        .with_panel(p.rows("run_list", "Runs", units={"updates": "updates"},
                           more={"run_id": [DynamicConfigValue(id_val="links", value=to_run)]}))
        .with_row(Row("Everything that is measured"))
        .with_panel(p.rows("all_quantities", "Quantities", width=WHOLE, height=16,
                           units=percentiles))
    )  # fmt: skip


def _learning() -> Dashboard:
    return (
        _board("learning", "Is it learning: reward, the policy's change, held-out success.")
        .with_panel(p.by_step("reward_by_step", "Reward of what is trained"))
        .with_panel(p.over_time("reward_by_environment", "Reward by environment"))
        .with_panel(p.over_time("evaluation_over_time", "Success on held-out tasks", unit="share"))
        .with_panel(p.bars("reward_histogram", "Distribution of rewards", "reward_at_least"))
        .with_row(Row("The update"))
        .with_panel(p.by_step("loss_by_step", "Loss", unit="reward", width=THIRD))
        .with_panel(p.by_step("gradient_by_step", "Gradient norm", unit="reward", width=THIRD))
        .with_panel(p.by_step("advantage_by_step", "Advantage", unit="reward", width=THIRD))
        .with_panel(p.by_step("entropy_by_step", "Entropy", width=THIRD))
        .with_panel(p.by_step("kl_by_step", "KL to the policy that sampled", width=THIRD))
        .with_panel(p.by_step("masking_by_step", "Masked tokens, groups without advantage",
                              unit="share", width=THIRD))
        .with_panel(p.by_step("ratio_by_step", "Token ratios"))
        .with_panel(p.by_step("sample_size_by_step", "Effective sample size"))
        .with_row(Row("Episodes"))
        .with_panel(p.over_time("terminations_over_time", "How episodes end", stacked=True))
        .with_panel(p.quantity("episode_size_tokens", "Length of an episode"))
        .with_panel(p.quantity("episode_length_turns", "Turns of an episode"))
        .with_panel(p.quantity("episode_reward", "Reward of every judged episode"))
        .with_panel(p.rows("episode_outcomes", "Outcomes", units={
            "n": "episodes", "action_tokens": "tokens", "tool_error_ratio": "share"}))
        .with_panel(p.rows("evaluation_by_version", "Held-out tasks by version",
                           units={"success_ratio": "share", "n": "episodes"}))
        .with_row(Row("The learner's time"))
        .with_panel(p.quantity("learner_step_ms", "An update"))
        .with_panel(p.rows("learner_phases", "Phases of an update", units=dict.fromkeys(
            ("p50", "p95", "p99", "max", "total"), "ms")))
        .with_panel(p.by_step("mfu_by_step", "Hardware in use (MFU)", unit="share"))
    )  # fmt: skip


def _staleness() -> Dashboard:
    selected = [
        DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        DynamicConfigValue(id_val="thresholds", value={
            "mode": "absolute",
            "steps": [{"value": None, "color": "green"}, {"value": _SELECTED_MAX, "color": "red"}],
        }),
    ]  # fmt: skip
    return (
        _board("staleness", "How stale the training data is: lag, age, and what it does.")
        .with_panel(p.by_step("lag_steps_by_step", "Policy lag when trained", warn=_LAG_MAX))
        .with_panel(p.by_step("age_by_step", "Buffer age when trained"))
        .with_panel(p.by_step("lag_s_by_step", "Policy lag when trained, in time"))
        .with_panel(p.by_step("lag_kl_by_step", "Policy lag when trained, in KL"))
        .with_row(Row("Now"))
        .with_panel(p.over_time("waiting_lag_over_time", "Policy lag of what waits", warn=_LAG_MAX))
        .with_panel(p.over_time("waiting_age_over_time", "Buffer age of what waits"))
        .with_panel(p.recorded("Policy lag when trained, p99 now", "run:policy_lag_steps:p99",
                               "From the histogram that the learner exports.", "updates",
                               warn=_LAG_MAX))
        .with_panel(p.recorded("Buffer age when trained, p99 now", "run:buffer_age_seconds:p99",
                               "From the histogram that the learner exports.", "s"))
        .with_row(Row("Over time"))
        .with_panel(p.quantity("policy_lag_steps", "Policy lag when trained", warn=_LAG_MAX))
        .with_panel(p.quantity("buffer_age_s", "Buffer age when trained"))
        .with_panel(p.quantity("first_token_age_s", "Age of the first token when trained"))
        .with_panel(p.quantity("policy_lag_kl_nats", "Policy lag when trained, in KL"))
        .with_row(Row("The gate"))
        .with_panel(p.over_time("decisions_over_time", "Decisions", stacked=True))
        .with_panel(p.recorded("Share of decisions that drop", "run:drop:ratio5m",
                               "Dropped, of all members decided.", "share", warn=_DROPS_MAX))
        .with_panel(p.quantity("gate_lag_steps", "Policy lag when decided", warn=_LAG_MAX))
        .with_panel(p.quantity("gate_age_s", "Age when decided"))
        .with_panel(p.rows("dropped_by_reason", "Not trained, by reason",
                           units={"n": "trajectories"}))
        .with_panel(p.rows("selection_by_length", "Selection by length", units={
            "offered": "trajectories", "trained": "trajectories", "span_p50": "updates",
            "span_p95": "updates", "span_p99": "updates"}, more={"distance": selected}))
        .with_row(Row("What lag does"))
        .with_panel(p.rows("lag_buckets", "By lag", width=WHOLE, units={
            "n": "trajectories", "action_tokens": "tokens", "kept_tokens": "tokens",
            "masked_low_tokens": "tokens", "masked_high_tokens": "tokens"}))
        .with_panel(p.rows("ratio_by_lag", "Token ratios by lag", width=WHOLE, units={
            "kl_nats": "nats", "n": "tokens", "effective_ratio": "share"}))
    )  # fmt: skip


def _workers() -> Dashboard:
    behind = [
        DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        DynamicConfigValue(id_val="thresholds", value={
            "mode": "absolute",
            "steps": [{"value": None, "color": "green"}, {"value": _LAG_MAX, "color": "red"}],
        }),
    ]  # fmt: skip
    per_worker = (
        f"sum by (role, index) (rate(sluice_committed_tokens_total{{{_OF_RUN}, "
        'kind="action"}[$__rate_interval]))'
    )
    return (
        _board("workers", "Who works, on which version, and where their time goes.")
        .with_panel(p.rows("workers_now", "Workers", width=WHOLE, more={"behind_updates": behind},
                           units={"silent_s": "s", "starts": "starts"}))
        .with_panel(p.over_time("tokens_by_worker", "Tokens sampled, by worker", stacked=True))
        .with_panel(p.live("Tokens committed now, by worker", "sluice_committed_tokens_total",
                           "tokens/s", [("{{role}}-{{index}}", per_worker)]))
        .with_row(Row("Generation"))
        .with_panel(p.quantity("ttft_ms", "Time to first token"))
        .with_panel(p.quantity("inter_token_ms", "Time between tokens"))
        .with_panel(p.quantity("commit_latency_ms", "Commit of tokens", warn=_COMMIT_S_MAX * 1000))
        .with_panel(p.quantity("exposure_wait_ms", "Wait of a turn for its last acknowledgement"))
        .with_panel(p.quantity("gateway_overhead_ms", "Time that the gateway adds"))
        .with_panel(p.quantity("kv_reuse_ratio", "Context taken from the cache"))
        .with_row(Row("Refresh of weights"))
        .with_panel(p.quantity("refresh_pause_ms", "Standing still", width=THIRD))
        .with_panel(p.quantity("refresh_fetch_ms", "Fetching", width=THIRD))
        .with_panel(p.quantity("refresh_load_ms", "Loading", width=THIRD))
        .with_panel(p.over_time("refreshes_over_time", "Events of refreshes", stacked=True))
        .with_panel(p.rows("refresh_failures", "Failed refreshes"))
        .with_row(Row("Environments and tools"))
        .with_panel(p.quantity("queue_wait_ms", "Wait of a leased episode"))
        .with_panel(p.quantity("environment_reset_ms", "Reset"))
        .with_panel(p.quantity("environment_turn_ms", "Answer to a turn"))
        .with_panel(p.quantity("environment_step_ms", "All steps of an episode"))
        .with_panel(p.quantity("tool_call_ms", "Tool call"))
        .with_panel(p.quantity("episode_s", "An episode, from issue to end"))
        .with_panel(p.rows("tool_outcomes", "Tool calls", units={"n": "calls"}))
        .with_panel(p.rows("quantities_by_environment", "By environment", units={"n": "samples"}))
        .with_row(Row("Worker by worker"))
        .with_panel(p.rows("quantities_by_worker", "By worker", width=WHOLE, height=12,
                           units={"n": "samples"}))
    )  # fmt: skip


def _verifier() -> Dashboard:
    cuts = dict.fromkeys(("p50", "p95", "p99", "max"), "ms") | {"n": "verdicts"}
    waiting = (
        Tile(column="requested", title="requested", unit="episodes"),
        Tile(column="unjudged", title="without a verdict", unit="episodes"),
        Tile(column="late", title="past their deadline", unit="episodes"),
    )
    return (
        _board("verifier", "Judging: how long it takes, what it says, what it waits for.")
        .with_panel(p.tiles("unjudged", "Waiting for a verdict", waiting))
        .with_panel(p.quantity("verifier_ms", "Judging"))
        .with_panel(p.quantity("verify_queue_ms", "Wait before judging"))
        .with_panel(p.quantity("verdict_wait_ms", "From the end of an episode to its verdict"))
        .with_panel(p.quantity("assembly_wait_ms", "From the verdict to the trajectory"))
        .with_panel(p.over_time("verdicts_over_time", "Verdicts", stacked=True))
        .with_panel(p.distribution("Judging now", "sluice_verify_seconds"))
        .with_row(Row("By kind"))
        .with_panel(p.rows("verifier_by_code", "By verdict", units=cuts))
        .with_panel(p.rows("verifier_by_environment", "By environment", units=cuts))
        .with_panel(p.bars("tries", "Tries", "tries"))
        .with_panel(p.rows("retries_by_cause", "Attempts lost to faults of ours",
                           units={"n": "attempts"}))
        .with_row(Row("What rewards are made of"))
        .with_panel(p.rows("reward_components", "Components", width=WHOLE,
                           units={"n": "verdicts"}))
    )  # fmt: skip


def _bus() -> Dashboard:
    def rate(metric: str, by: str) -> str:
        return f"sum by ({by}) (rate({metric}{{{_OF_RUN}}}[$__rate_interval]))"

    def most(metric: str, by: str) -> str:
        return f"max by ({by}) ({metric}{{{_OF_RUN}}})"

    def least(metric: str, by: str) -> str:
        return f"min by ({by}) ({metric}{{{_OF_RUN}}})"

    topic = "{{topic}}"
    return (
        _board("bus", "The log: rates, backlogs, acknowledgements, what could not be taken.",
               asks_tables=False)
        .with_panel(p.live("Records behind", "sluice_consumer_lag_records", "records",
                           [("{{role}} on {{topic}}", most("sluice_consumer_lag_records",
                                                           "role, topic"))],
                           warn=_BEHIND_MAX))
        .with_panel(p.live("Records that wait for an acknowledgement",
                           "sluice_producer_queue_records", "records",
                           [("{{role}}", most("sluice_producer_queue_records", "role"))]))
        .with_panel(p.live("Written", "sluice_produced_records_total", "records/s",
                           [("{{topic}}, {{outcome}}", rate("sluice_produced_records_total",
                                                            "topic, outcome"))]))
        .with_panel(p.live("Delivered", "sluice_consumed_records_total", "records/s",
                           [(topic, rate("sluice_consumed_records_total", "topic"))]))
        .with_row(Row("Acknowledgements"))
        .with_panel(p.distribution("Of token commits", "sluice_produce_ack_seconds",
                                   ', topic="tokens.v1"', warn=_COMMIT_S_MAX))
        .with_panel(p.distribution("Of all records", "sluice_produce_ack_seconds"))
        .with_panel(p.quantity("commit_latency_ms", "Commit of tokens, from the rows",
                               warn=_COMMIT_S_MAX * 1000))
        .with_panel(p.quantity("commit_size_tokens", "Size of a commit"))
        .with_row(Row("What goes wrong"))
        .with_panel(p.live("Dead letters", "sluice_dead_letters_total", "letters/s",
                           [("{{topic}}, {{error}}", rate("sluice_dead_letters_total",
                                                          "topic, error"))]))
        .with_panel(p.live("Records that could not be decoded", "sluice_poisoned_records_total",
                           "records/s", [(topic, rate("sluice_poisoned_records_total", "topic"))]))
        .with_panel(p.rows("dead_letters", "Dead letters by cause", units={"n": "records"}))
        .with_panel(p.rows("doubtful_rows", "Rows that cannot be believed", units={"n": "rows"}))
        .with_panel(p.distribution("Writers' clocks ahead of the brokers'",
                                   "sluice_clock_ahead_seconds", warn=_AHEAD_S_MAX))
        .with_panel(p.live("Free disk", "sluice_disk_free_ratio", "share",
                           [("{{folder}}", least("sluice_disk_free_ratio", "folder"))]))
        .with_row(Row("In the tables"))
        .with_panel(p.rows("sink_positions", "Records in the tables",
                           units={"records": "records"}))
    )  # fmt: skip


BOARDS: dict[str, Callable[[], Dashboard]] = {
    "runs": _runs, "learning": _learning, "staleness": _staleness, "workers": _workers,
    "verifier": _verifier, "bus": _bus,
}  # fmt: skip
"""Name of a dashboard to what makes it."""
