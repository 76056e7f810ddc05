"""Tables and views that are no quantity: what a row is, with the columns of each view.

Invariant: the columns are those that the engine describes, which a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of `infra/clickhouse`."""

    name: str
    columns: str
    """Names in their order, divided by spaces."""
    meaning: str


TABLES: tuple[tuple[str, str], ...] = (
    ("`tasks`", "a task offered"),
    ("`episode_events`", "one event in an episode's life"),
    (
        "`token_commits`",
        "one commit of the token log: size, times, oldest version, no contents",
    ),
    (
        "`token_contents`",
        "its token ids and log-probs; empty unless `sink.token_contents` is set",
    ),
    ("`tool_events`", "an intent, a result, a fence of the tool log"),
    ("`verify_requests`, `verdicts`", "a request to judge, a verdict"),
    ("`trajectories`", "an assembled episode"),
    ("`gate_decisions`, `gate_members`", "a decision on a group, and on each member"),
    ("`gated`", "what was handed to the learner"),
    (
        "`learner_events`, `trained_members`, `skipped_members`",
        "an event of the learner, each trajectory it trained, each it skipped",
    ),
    ("`policies`, `refreshes`", "a policy version, an event of a refresh"),
    ("`worker_states`", "a sign of life of a worker"),
    ("`metric_points`, `metric_minutes`", "a sample no other record carries; rollup per minute"),
    (
        "`quantity_minutes`",
        "percentile state of one quantity by minute, environment, worker and version: read it "
        "through `quantity_1m`",
    ),
    (
        "`quantity_hours`",
        "the same by hour, whatever the version, made from the minutes: `quantity_1h`",
    ),
    (
        "`episode_marks`",
        "what became of an episode, marked as its rows come: read it through `episode_ledger`",
    ),
    (
        "`attempt_marks`",
        "when an attempt of an episode ran, marked in the same way: read it through `episode_runs`",
    ),
    ("`dead_letters`, `control_events`", "what could not be decoded, what the run was told"),
    (
        "`sink_progress`, `sink_borders`, `rolled_minutes`, `schema_*`",
        "where the sink and the rollups stand, which definitions were applied",
    ),
)
"""Tables, and what a row of each is."""

_CUT = "p50 p95 p99 max mean n bad"

VIEWS: tuple[View, ...] = (
    View(
        name="quantities", columns=f"quantity run_id {_CUT}",
        meaning="every quantity of a run, from the rollup",
    ),
    View(
        name="quantities_by_minute", columns=f"quantity run_id t {_CUT}",
        meaning="the same over time",
    ),
    View(
        name="quantities_by_version", columns=f"quantity run_id epoch number {_CUT}",
        meaning="the same by policy version; epoch and number are -1 where a record names none",
    ),
    View(
        name="quantities_by_worker", columns=f"quantity run_id worker {_CUT}",
        meaning="the same by the worker that wrote the record",
    ),
    View(
        name="quantities_by_environment", columns=f"quantity run_id environment {_CUT}",
        meaning="the same by environment, which most records name by their group's task alone; a "
        "sample has none until its task is there. Of token commits from the rows",
    ),
    View(
        name="quantity_1m",
        columns="t run_id quantity environment worker epoch number q n bad s mn mx rolled",
        meaning="the states themselves: `quantilesTDigestMerge(0.5, 0.95, 0.99)(q)` merges rows, "
        "`sum(n)`, `sum(s)`, `min(mn)`, `max(mx)` go with it",
    ),
    View(
        name="quantity_1h", columns="t run_id quantity environment worker q n bad s mn mx rolled",
        meaning="the states by hour, which the percentiles of a whole run merge",
    ),
    View(
        name="metric_1m", columns="t run_id name q n bad s mn mx rolled",
        meaning="the same for the names of `metric_points`",
    ),
    View(
        name="quantity_catalogue", columns="quantity unit definition record source view",
        meaning="this page's list of quantities",
    ),
    View(
        name="canned_queries",
        columns="name board answers unit shape parameters sql grafana_sql",
        meaning="questions that are asked of every run, each with its statement: `sql` runs as it "
        "stands with its parameters as values, `grafana_sql` is what docs/grafana.md's panels ask",
    ),
    View(
        name="metric_quantiles", columns="run_id name p50 p95 p99 max n bad",
        meaning="every name in `metric_points`",
    ),
    View(
        name="trajectory_funnel", columns="run_id place stage reason n",
        meaning="issued, abandoned, ended, judged, assembled, admitted, dropped, skipped, trained, "
        "each with its reasons; ids as written",
    ),
    View(
        name="token_funnel", columns="run_id place stage reason tokens",
        meaning="sampled, prefilled, reused, assembled, superseded, skipped, masked, trained",
    ),
    View(
        name="trajectory_accounts", columns="run_id outcome reason n",
        meaning="every issued episode once: trained, dropped, abandoned, evaluated or pending; "
        "sums to issued",
    ),
    View(
        name="token_accounts", columns="run_id outcome reason tokens",
        meaning="every sampled token once: trained, masked, dropped, abandoned, evaluated, pending "
        "or superseded; sums to sampled",
    ),
    View(
        name="episode_ledger",
        columns="run_id episode episode_id group_id purpose outcome reason issued_at assembled_at "
        "action_tokens kept_tokens masked_low masked_high masked_other sampled_tokens "
        "span_updates facts",
        meaning="what the rows say of each episode, issued or not; `episode` is the number that "
        "tables hold beside its name, a time in 2299 is one that is not known, `facts` are named "
        "in infra/clickhouse/r30_flow.sql",
    ),
    View(
        name="episode_fates",
        columns="run_id episode_id group_id purpose outcome reason episode issued_at",
        meaning="what became of each issued episode, without its tokens; `episode` is the number "
        "that tables hold beside its name",
    ),
    View(
        name="episode_accounts",
        columns="run_id episode_id group_id purpose outcome reason kept_tokens masked_low "
        "masked_high masked_other action_tokens episode",
        meaning="what became of each issued episode",
    ),
    View(
        name="steps_counted", columns="run_id ordinal epoch",
        meaning="the newest making of each update; what a restore rolled back is not here",
    ),
    View(
        name="throughput",
        columns="run_id wall_s raw_tokens trained_tokens trained_trajectories raw_tokens_per_s "
        "effective_tokens_per_s effective_trajectories_per_s bottleneck bottleneck_busy_s "
        "bound_tokens_per_s",
        meaning="sampled and trained tokens over one wall clock, from the run's start to its last "
        "update or token; beside it the bound: trained tokens over the time of the busiest stage; "
        "updates that a restore rolled back trained nothing",
    ),
    View(
        name="throughput_by_minute",
        columns="run_id t raw_tokens trained_tokens trained_trajectories raw_tokens_per_s "
        "effective_tokens_per_s effective_trajectories_per_s",
        meaning="the same by minute",
    ),
    View(
        name="stage_busy", columns="run_id stage busy_s workers",
        meaning="how long rollout, verify, sync and learn worked: the union of a worker's work, "
        "averaged over the stage's workers. `throughput` takes sync out of rollout",
    ),
    View(
        name="run_wall", columns="run_id began_ms ended_ms wall_s",
        meaning="the wall clock of `throughput`; unit of began and ended: ms since 1970",
    ),
    View(
        name="wait_attribution", columns="run_id epoch ordinal kind cause spent_s",
        meaning="the time between two steps of the learner by cause. Waits: refresh, straggler, "
        "backpressure, commit, batch_not_full, paused; work: the phases",
    ),
    View(
        name="wait_totals", columns="run_id kind cause spent_s",
        meaning="the same over the run",
    ),
    View(
        name="wait_check", columns="run_id attributed_s wall_s attributed_ratio",
        meaning="their sum beside the wall clock between the learner's start and its last step",
    ),
    View(
        name="step_times",
        columns="run_id epoch number ordinal at_us phases_us whole_us wait_us wait_ended "
        "wait_began",
        meaning="when in each step the learner waited for its batch",
    ),
    View(
        name="step_waits",
        columns="run_id epoch number ordinal wait_us wait_began wait_ended phases_us late_us "
        "refreshed_us idle_us run_us exposure_us",
        meaning="each of these waits, and what else there was meanwhile; unit: us",
    ),
    View(
        name="batches_gated", columns="run_id epoch number late_us",
        meaning="when nine tenths of the batch of an update stood on gated; unit: us",
    ),
    View(
        name="episode_runs", columns="run_id episode_id attempt worker began ended episode",
        meaning="when each attempt of an episode ran; unit: us",
    ),
    View(
        name="learning_by_step",
        columns="run_id ts epoch number ordinal worker loss_name loss reward_mean advantage_mean "
        "advantage_variance zero_advantage_ratio entropy_nats kl_nats gate_fraction_ratio "
        "ratio_p50 ratio_p95 ratio_p99 measured_tokens effective_sample_tokens gradient_norm "
        "lag_mean_updates mfu_ratio action_tokens kept_tokens rejected_low rejected_high "
        "trajectories step_s",
        meaning="what the learner measured in each update; mfu_ratio: arithmetic of forward and "
        "backward over what `learner.peak_tflops` of each rank could do in their time (formula in "
        "learner/core/flops.py), 0 while that is not set",
    ),
    View(
        name="learner_phase_ms", columns="run_id phase p50 p95 p99 max total n",
        meaning="time of each phase of an update; phases sum to the step",
    ),
    View(
        name="reward_by_step",
        columns="run_id epoch ordinal environment mean deviation n p05 p50 p95 least most "
        "lag_mean lag_max",
        meaning="reward and its spread, by update and environment",
    ),
    View(
        name="reward_histogram",
        columns="run_id environment purpose reward_at_least n",
        meaning="episodes by reward, in steps of a tenth",
    ),
    View(
        name="reward_components",
        columns="run_id ts episode_id code worker component value weight reward",
        meaning="raw components with their weights; value times weight sums to the reward",
    ),
    View(
        name="reward_components_by_name",
        columns="run_id component mean deviation least most n",
        meaning="the same by component",
    ),
    View(
        name="evaluation_by_version",
        columns="run_id environment purpose epoch number successes n success_ratio reward_mean ts",
        meaning="held-out and canary tasks, by the version that answered them",
    ),
    View(
        name="trajectories_counted",
        columns="run_id ts episode episode_id task_id purpose environment oldest_epoch "
        "oldest_number termination reward action_tokens superseded_tokens tool_calls tool_errors",
        meaning="the trajectory of each episode that counts, the first in the log: one may be "
        "written again, and stands twice in `trajectories`; `episode` is the number that tables "
        "hold beside its name",
    ),
    View(
        name="episode_outcomes",
        columns="run_id environment purpose termination n action_tokens tool_calls tool_errors "
        "tool_error_ratio",
        meaning="how assembled episodes ended, each once",
    ),
    View(
        name="task_outcomes", columns="run_id task_id purpose termination n",
        meaning="the same by task, and of every issued episode: `abandoned`, or `open`, where "
        "there is no trajectory; counts sum to the episodes issued",
    ),
    View(
        name="tool_outcomes", columns="run_id tool exit_class n replayed",
        meaning="how tool calls ended",
    ),
    View(
        name="retries_by_cause", columns="run_id cause n",
        meaning="failures that cost an attempt which was tried again, by class as the scheduler "
        "counts them: expired leases and lost workers too",
    ),
    View(
        name="policy_lag_by_step",
        columns="run_id epoch ordinal at n steps_p50 steps_p95 steps_p99 steps_max s_p50 s_p95 "
        "s_p99 s_max kl_p50 kl_p95 kl_p99 kl_max age_s_p50 age_s_p95 age_s_p99 age_s_max",
        meaning="lag in steps, seconds and KL, and age, by update",
    ),
    View(
        name="policy_lag_by_bucket",
        columns="run_id bucket place n action_tokens kept_tokens masked_low_tokens "
        "masked_high_tokens kl_p50 kl_p95 kl_p99 kl_max reward_mean",
        meaning="trajectories and KL by lag bucket",
    ),
    View(
        name="ratio_by_lag_bucket",
        columns="run_id epoch ordinal ts bucket ratio_p50 ratio_p95 ratio_p99 kl_mean kl_p50 "
        "kl_p95 kl_p99 tokens effective_sample_tokens effective_sample_ratio",
        meaning="quantiles of the token ratios and of the tokens' KL (k3), and effective sample "
        "size, by update and bucket",
    ),
    View(
        name="workers_now",
        columns="run_id worker role status epoch number address incarnation seen_at starts",
        meaning="the newest sign of life of every worker",
    ),
    View(
        name="versions_served",
        columns="run_id worker epoch number served_at ordinal behind_updates",
        meaning="what each inference worker serves, and how far behind the newest version",
    ),
    View(
        name="dead_letters_by_error",
        columns="run_id origin_topic consumer error_class example n last_at",
        meaning="dead letters by cause",
    ),
    View(
        name="settled_lengths",
        columns="run_id episode_id is_trained action_tokens span_updates place",
        meaning="trajectories for training that were trained or dropped, in the order of assembly; "
        "span_updates: from the oldest version of its tokens to the newest, in updates",
    ),
    View(
        name="selection_by_length",
        columns="run_id part offered trained distance p span_p50 span_p95 span_p99 is_alarm",
        meaning="whether what is trained has the lengths of what was offered: distance and p of "
        "Kolmogorov and Smirnov, by windows of 1,000 settled trajectories, part -1 for the whole "
        "run; an alarm above a distance of 0.1",
    ),
    View(
        name="doubtful_rows", columns="run_id doubt worker n",
        meaning="rows whose clock or number cannot be believed; they are kept and counted",
    ),
)  # fmt: skip
