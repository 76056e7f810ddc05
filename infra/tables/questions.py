"""The canned queries themselves, by the dashboard that shows them (see `canned.py`).

Invariants: every statement names the run it asks about; a figure that summarises samples comes with
their number; what an update rolled back wrote is left out of `by_step`.
"""

from __future__ import annotations

from infra.tables.canned import Canned, Shape

_RUN = "run_id = {run_id:String}"
# Newest epoch first: a rolled-back update has the ordinal of the one that replaced it.
_SURVIVES = f"""(ordinal, epoch) IN (
  SELECT ordinal, max(epoch) FROM learner_events
  WHERE {_RUN} AND kind = 'step' AND $__timeFilter(ts) GROUP BY ordinal
)"""
_LATEST = 200
"""Rows of a list that only its newest entries make useful."""


def _steps(name: str, answers: str, unit: str, columns: str, board: str = "learning") -> Canned:
    return Canned(
        name=name, board=board, answers=answers, unit=unit, shape=Shape.BY_STEP,
        sql=f"SELECT ordinal, {columns}\nFROM learning_by_step\n"
        f"WHERE {_RUN} AND {_SURVIVES}\nORDER BY ordinal",
    )  # fmt: skip


def _lag(name: str, answers: str, unit: str, column: str) -> Canned:
    cuts = ", ".join(f"{column}_{cut} AS {cut}" for cut in ("p50", "p95", "p99", "max"))
    return Canned(
        name=name, board="staleness", answers=answers, unit=unit, shape=Shape.BY_STEP,
        sql=f"SELECT ordinal, {cuts}, n\nFROM policy_lag_by_step\n"
        f"WHERE {_RUN} AND {_SURVIVES}\nORDER BY ordinal",
    )  # fmt: skip


def _over_time(
    name: str, board: str, answers: str, unit: str, *, columns: str, table: str,
    where: str = "", by: str = "", moment: str = "ts",
) -> Canned:  # fmt: skip
    """Return a question of figures by moment, and by the words `by`."""
    words = f", {by}" if by else ""
    more = f" AND {where}" if where else ""
    return Canned(
        name=name, board=board, answers=answers, unit=unit, shape=Shape.OVER_TIME,
        sql=f"SELECT $__timeInterval({moment}) AS time{words}, {columns}\nFROM {table}\n"
        f"WHERE {_RUN}{more} AND $__timeFilter({moment})\nGROUP BY time{words}\n"
        f"ORDER BY time{words}",
    )  # fmt: skip


def _rows(name: str, board: str, answers: str, unit: str, sql: str) -> Canned:
    return Canned(name=name, board=board, answers=answers, unit=unit, shape=Shape.ROWS, sql=sql)


def _waiting(name: str, answers: str, unit: str, points: str) -> Canned:
    """Return a question of the lag and age job's own percentiles: the worst of each interval."""
    cuts = ", ".join(
        f"maxIf(value, name = 'waiting_{points.format(cut)}') AS {cut}"
        for cut in ("p50", "p95", "p99", "max")
    )
    return _over_time(
        name, "staleness", answers, unit, table="metric_points",
        columns=f"{cuts}, maxIf(value, name = 'waiting_trajectories') AS n",
        where=f"name IN ('waiting_trajectories', {', '.join(_points(points))}) AND isFinite(value)",
    )  # fmt: skip


def _points(points: str) -> tuple[str, ...]:
    return tuple(f"'waiting_{points.format(cut)}'" for cut in ("p50", "p95", "p99", "max"))


_RUNS = (
    _rows(
        "run_list", "runs", "Which runs are there, how far is each, what reward has its newest "
        "update?", "updates, reward",
        "SELECT c.run_id AS run_id, min(c.ts) AS began, any(l.updates) AS updates,\n"
        "  any(l.reward_mean) AS reward_mean, any(l.newest) AS newest_update\n"
        "FROM control_events AS c\nLEFT JOIN (\n"
        "  SELECT run_id, max(ordinal) AS updates, argMax(s.reward_mean, s.ts) AS reward_mean,\n"
        "    max(s.ts) AS newest\n  FROM learning_by_step AS s GROUP BY run_id\n"
        ") AS l ON c.run_id = l.run_id\nGROUP BY run_id\nORDER BY began DESC\nLIMIT 100",
    ),
    _rows(
        "run_summary", "runs", "How fast is the run, what bounds it, and how long has it run?",
        "s, tokens, tokens/s, trajectories/s",
        "SELECT wall_s, raw_tokens, trained_tokens, trained_trajectories, raw_tokens_per_s,\n"
        "  effective_tokens_per_s, effective_trajectories_per_s, bound_tokens_per_s, bottleneck\n"
        f"FROM throughput\nWHERE {_RUN}",
    ),
    _rows(
        "run_progress", "runs", "How many updates were made, and how good is the newest?",
        "updates, reward, s",
        "SELECT max(ordinal) AS updates, argMax(reward_mean, ts) AS reward_mean,\n"
        "  max(ts) AS newest_update, sum(trajectories) AS trajectories, "
        "avg(l.step_s) AS mean_step_s\n"
        f"FROM learning_by_step AS l\nWHERE {_RUN}",
    ),
    _over_time(
        "throughput_over_time", "runs", "How many tokens are sampled and trained a second?",
        "tokens/s", table="throughput_by_minute", moment="t",
        columns="sum(raw_tokens) / $__interval_s AS sampled, "
        "sum(trained_tokens) / $__interval_s AS trained",
    ),
    _over_time(
        "trained_over_time", "runs", "How many trajectories are trained a second?",
        "trajectories/s", table="throughput_by_minute", moment="t",
        columns="sum(trained_trajectories) / $__interval_s AS trained",
    ),
    _rows(
        "trajectory_accounts", "runs", "What became of every issued episode?", "episodes",
        "SELECT if(reason IN ('', 'none'), outcome, concat(outcome, ': ', reason)) AS what, n\n"
        f"FROM trajectory_accounts\nWHERE {_RUN}\nORDER BY n DESC",
    ),
    _rows(
        "token_accounts", "runs", "What became of every sampled token?", "tokens",
        "SELECT if(reason IN ('', 'none'), outcome, concat(outcome, ': ', reason)) AS what,\n"
        "  tokens\n"
        f"FROM token_accounts\nWHERE {_RUN}\nORDER BY tokens DESC",
    ),
    _rows(
        "trajectory_funnel", "runs", "How many episodes reached each stage, and why did the rest "
        "not?", "episodes",
        f"SELECT stage, reason, n\nFROM trajectory_funnel\nWHERE {_RUN}\nORDER BY place, n DESC",
    ),
    _rows(
        "token_funnel", "runs", "How many tokens reached each stage?", "tokens",
        "SELECT stage, reason, tokens\nFROM token_funnel\n"
        f"WHERE {_RUN}\nORDER BY place, tokens DESC",
    ),
    _rows(
        "where_the_time_went", "runs", "What did the learner wait for, and what did it work on?",
        "s",
        "SELECT if(kind = 'wait', concat('waits: ', cause), cause) AS what, spent_s\n"
        f"FROM wait_totals\nWHERE {_RUN}\nORDER BY kind = 'wait' DESC, spent_s DESC",
    ),
    _rows(
        "stage_busy", "runs", "How long did each stage work, averaged over its workers?", "s",
        f"SELECT stage, busy_s, workers\nFROM stage_busy\nWHERE {_RUN}\nORDER BY busy_s DESC",
    ),
    _rows(
        "all_quantities", "runs", "What are the percentiles of everything that is measured?",
        "each its own, in the column unit",
        "SELECT q.quantity AS quantity, c.unit AS unit, q.p50 AS p50, q.p95 AS p95, q.p99 AS p99,\n"
        "  q.max AS max, q.n AS n, q.bad AS bad, c.definition AS definition\n"
        "FROM quantities AS q LEFT JOIN quantity_catalogue AS c ON q.quantity = c.quantity\n"
        "WHERE q.run_id = {run_id:String}\nORDER BY quantity",
    ),
    Canned(
        name="quantity_over_time", board="runs", shape=Shape.OVER_TIME,
        answers="How do the percentiles of one quantity move?", unit="the quantity's own",
        sql="SELECT time, cut[1] AS p50, cut[2] AS p95, cut[3] AS p99, most AS max, n, bad\n"
        "FROM (\n"
        "  SELECT $__timeInterval(t) AS time, quantilesTDigestMerge(0.5, 0.95, 0.99)(q) AS cut,\n"
        "    max(mx) AS most, sum(r.n) AS n, sum(r.bad) AS bad\n  FROM quantity_1m AS r\n"
        f"  WHERE {_RUN} AND quantity = {{quantity:String}} AND $__timeFilter(t)\n"
        "  GROUP BY time\n)\nWHERE n > 0\nORDER BY time",
    ),
)  # fmt: skip

_LEARNING = (
    Canned(
        name="reward_by_step", board="learning", shape=Shape.BY_STEP, unit="reward",
        answers="Does the reward rise, and how far do rewards spread?",
        sql="SELECT ordinal, avg(reward) AS mean, quantileExact(0.05)(reward) AS p05,\n"
        "  quantileExact(0.5)(reward) AS p50, quantileExact(0.95)(reward) AS p95, count() AS n\n"
        f"FROM trained_members\nWHERE {_RUN} AND {_SURVIVES}\nGROUP BY ordinal\nORDER BY ordinal",
    ),
    _over_time(
        "reward_by_environment", "learning", "Which environment does it learn?", "reward",
        columns="avg(reward) AS mean", table="trained_members", by="environment",
    ),
    _steps("loss_by_step", "What is the loss?", "the loss's own", "loss"),
    _steps("gradient_by_step", "How large is the gradient before clipping?", "norm",
           "gradient_norm"),
    _steps("mfu_by_step", "How much of the hardware does the learner use?", "ratio", "mfu_ratio"),
    _steps("entropy_by_step", "Does the policy still explore?", "nats", "entropy_nats"),
    _steps("kl_by_step", "How far is the policy from the one that sampled?", "nats", "kl_nats"),
    _steps("masking_by_step", "What share of tokens does the gate of the loss reject, and what "
           "share of trajectories teaches nothing?", "ratio",
           "gate_fraction_ratio, zero_advantage_ratio"),
    _steps("advantage_by_step", "Are advantages centred, and how do they spread?",
           "reward, reward squared", "advantage_mean, advantage_variance"),
    _steps("ratio_by_step", "How far do the policies' token ratios spread?", "ratio",
           "ratio_p50 AS p50, ratio_p95 AS p95, ratio_p99 AS p99, measured_tokens AS n"),
    _steps("sample_size_by_step", "How many of the tokens count, once weighted by their ratio?",
           "tokens", "effective_sample_tokens, measured_tokens"),
    _rows(
        "reward_histogram", "learning", "How are rewards distributed?", "episodes",
        "SELECT toString(reward_at_least) AS reward_at_least, sum(h.n) AS n\n"
        f"FROM reward_histogram AS h\nWHERE {_RUN} AND purpose = 'train'\n"
        "GROUP BY h.reward_at_least\nORDER BY h.reward_at_least",
    ),
    _rows(
        "reward_components", "learning", "What is the reward made of?", "each component's own",
        f"SELECT component, mean, deviation, least, most, n\nFROM reward_components_by_name\n"
        f"WHERE {_RUN}\nORDER BY component",
    ),
    _over_time(
        "evaluation_over_time", "learning", "Does success on held-out tasks rise?", "ratio",
        columns="countIf(termination = 'success') / count() AS success_ratio, count() AS n",
        table="trajectories_counted", by="environment", where="purpose = 'evaluate'",
    ),
    _rows(
        "evaluation_by_version", "learning", "How well does each version do on held-out tasks?",
        "ratio",
        "SELECT concat(toString(epoch), '/', toString(number)) AS version, environment, purpose,\n"
        "  success_ratio, reward_mean, n\nFROM evaluation_by_version\n"
        f"WHERE {_RUN}\nORDER BY epoch, number, environment\nLIMIT {_LATEST}",
    ),
    _rows(
        "episode_outcomes", "learning", "How do episodes end, and how often do their tools fail?",
        "episodes, tokens, ratio",
        "SELECT environment, purpose, termination, n, action_tokens, tool_calls, tool_error_ratio\n"
        f"FROM episode_outcomes\nWHERE {_RUN}\nORDER BY n DESC",
    ),
    _over_time(
        "terminations_over_time", "learning", "How do episodes end now?", "episodes",
        columns="count() AS episodes", table="trajectories_counted", by="termination",
    ),
    _rows(
        "learner_phases", "learning", "What does an update spend its time on?", "ms",
        f"SELECT phase, p50, p95, p99, max, total, n\nFROM learner_phase_ms\nWHERE {_RUN}\n"
        "ORDER BY total DESC",
    ),
)  # fmt: skip

_STALENESS = (
    _lag("lag_steps_by_step", "How many updates old is what is trained?", "updates", "steps"),
    _lag("lag_s_by_step", "How many seconds apart are the policies that sampled and that train?",
         "s", "s"),
    _lag("lag_kl_by_step", "How far apart are they in what they say?", "nats", "kl"),
    _lag("age_by_step", "How long did trajectories lie before they were trained?", "s", "age_s"),
    _waiting("waiting_age_over_time", "How old is what waits to be trained?", "s",
             "buffer_age_{}_s"),
    _waiting("waiting_lag_over_time", "How stale is what waits to be trained?", "updates",
             "policy_lag_{}_steps"),
    _over_time(
        "decisions_over_time", "staleness", "What does the gate let through and drop, and why?",
        "trajectories", columns="uniqExact(episode_id) AS trajectories", table="gate_members",
        by="outcome, reason",
    ),
    _rows(
        "dropped_by_reason", "staleness", "Why were trajectories not trained?", "trajectories",
        "SELECT stage, reason, n\nFROM trajectory_funnel\n"
        f"WHERE {_RUN} AND stage IN ('dropped', 'skipped')\nORDER BY n DESC",
    ),
    _rows(
        "selection_by_length", "staleness", "Does what is trained have the lengths of what was "
        "offered? Kolmogorov's distance, by windows of 1,000 settled trajectories.",
        "trajectories, updates",
        "SELECT if(part < 0, 'whole run', concat('window ', toString(part))) AS what,\n"
        "  offered, trained, distance, p, span_p50, span_p95, span_p99, is_alarm\n"
        f"FROM selection_by_length\nWHERE {_RUN}\n"
        f"ORDER BY part < 0 DESC, part DESC\nLIMIT {_LATEST}",
    ),
    _rows(
        "lag_buckets", "staleness", "What does lag do to KL, to masking and to reward?",
        "tokens, nats, reward",
        "SELECT bucket, n, action_tokens, kept_tokens, masked_low_tokens, masked_high_tokens,\n"
        f"  kl_p50, kl_p95, kl_p99, kl_max, reward_mean\nFROM policy_lag_by_bucket\nWHERE {_RUN}\n"
        "ORDER BY place",
    ),
    _rows(
        "ratio_by_lag", "staleness", "How far do token ratios spread with lag, and how many tokens "
        "still count? The newest update that has the bucket says it.", "ratio, tokens",
        "SELECT b.bucket AS bucket, argMax(b.ratio_p50, b.ts) AS p50,\n"
        "  argMax(b.ratio_p95, b.ts) AS p95,\n"
        "  argMax(b.ratio_p99, b.ts) AS p99, argMax(b.kl_mean, b.ts) AS kl_nats,\n"
        "  argMax(b.tokens, b.ts) AS n, argMax(b.effective_sample_ratio, b.ts) AS effective_ratio\n"
        "FROM ratio_by_lag_bucket AS b\nWHERE run_id = {run_id:String}\nGROUP BY bucket\n"
        "ORDER BY transform(bucket, ['le_0', 'le_1', 'le_2', 'le_4', 'le_8', 'gt_8'],\n"
        "  [0, 1, 2, 4, 8, 9], 10)",
    ),
)  # fmt: skip

_WORKERS = (
    _rows(
        "workers_now", "workers", "Who is there, what does each serve, how far behind is it?",
        "updates, starts",
        "SELECT w.worker AS worker, w.role AS role, w.status AS status,\n"
        "  if(v.worker = '', '-', concat(toString(v.epoch), '/', toString(v.number))) AS version,\n"
        "  if(v.worker = '', NULL, v.behind_updates) AS behind_updates, w.starts AS starts,\n"
        "  w.seen_at AS seen_at, dateDiff('second', w.seen_at, now64(3, 'UTC')) AS silent_s\n"
        "FROM workers_now AS w\nLEFT JOIN versions_served AS v\n"
        "ON w.worker = v.worker AND w.run_id = v.run_id\n"
        "WHERE w.run_id = {run_id:String}\nORDER BY role, worker",
    ),
    _over_time(
        "tokens_by_worker", "workers", "How many tokens does each worker sample a second?",
        "tokens/s", columns="sum(s) / $__interval_s AS sampled", table="quantity_1m",
        where="quantity = 'commit_size_tokens'", by="worker", moment="t",
    ),
    _rows(
        "quantities_by_worker", "workers", "Which worker is slow, and at what?",
        "each its own, in the column unit",
        "SELECT q.worker AS worker, q.quantity AS quantity, c.unit AS unit, q.p50 AS p50,\n"
        "  q.p95 AS p95, q.p99 AS p99, q.max AS max, q.n AS n\nFROM quantities_by_worker AS q\n"
        "LEFT JOIN quantity_catalogue AS c ON q.quantity = c.quantity\n"
        "WHERE q.run_id = {run_id:String} AND q.quantity IN ('ttft_ms', 'inter_token_ms',\n"
        "  'commit_latency_ms', 'queue_wait_ms', 'environment_reset_ms', 'environment_step_ms',\n"
        "  'refresh_pause_ms', 'verifier_ms')\nORDER BY quantity, worker",
    ),
    _rows(
        "quantities_by_environment", "workers", "Which environment is slow, and at what?",
        "each its own, in the column unit",
        "SELECT q.environment AS environment, q.quantity AS quantity, c.unit AS unit,\n"
        "  q.p50 AS p50, q.p95 AS p95, q.p99 AS p99, q.max AS max, q.n AS n\n"
        "FROM quantities_by_environment AS q\n"
        "LEFT JOIN quantity_catalogue AS c ON q.quantity = c.quantity\n"
        "WHERE q.run_id = {run_id:String} AND q.quantity IN ('environment_reset_ms',\n"
        "  'environment_step_ms', 'tool_call_ms', 'verifier_ms', 'episode_s')\n"
        "ORDER BY quantity, environment",
    ),
    _over_time(
        "refreshes_over_time", "workers", "Do refreshes go through?", "events",
        columns="count() AS events", table="refreshes", by="kind",
    ),
    _rows(
        "refresh_failures", "workers", "Which refreshes failed, and why?", "-",
        "SELECT ts, worker_id AS worker,\n"
        "  concat(toString(epoch), '/', toString(number)) AS version, detail\n"
        f"FROM refreshes\nWHERE {_RUN} AND kind = 'failed'\nORDER BY ts DESC\nLIMIT {_LATEST}",
    ),
    _rows(
        "tool_outcomes", "workers", "How do tool calls end?", "calls",
        f"SELECT tool, exit_class, n, replayed\nFROM tool_outcomes\nWHERE {_RUN}\nORDER BY n DESC",
    ),
)  # fmt: skip

_VERIFIER = (
    _over_time(
        "verdicts_over_time", "verifier", "What do the verifiers say?", "verdicts",
        columns="count() AS verdicts", table="verdicts", by="code",
    ),
    _rows(
        "verifier_by_code", "verifier", "How long does judging take, by what it says?", "ms",
        "SELECT code, quantilesExact(0.5, 0.95, 0.99)(value)[1] AS p50,\n"
        "  quantilesExact(0.5, 0.95, 0.99)(value)[2] AS p95,\n"
        "  quantilesExact(0.5, 0.95, 0.99)(value)[3] AS p99, max(value) AS max, count() AS n\n"
        f"FROM verifier_ms_samples\nWHERE {_RUN} AND isFinite(value)\nGROUP BY code\n"
        "ORDER BY n DESC",
    ),
    _rows(
        "verifier_by_environment", "verifier", "Which environment's judging is slow?", "ms",
        "SELECT environment, quantilesExact(0.5, 0.95, 0.99)(value)[1] AS p50,\n"
        "  quantilesExact(0.5, 0.95, 0.99)(value)[2] AS p95,\n"
        "  quantilesExact(0.5, 0.95, 0.99)(value)[3] AS p99, max(value) AS max, count() AS n\n"
        f"FROM verifier_ms_samples\nWHERE {_RUN} AND isFinite(value)\nGROUP BY environment\n"
        "ORDER BY n DESC",
    ),
    _rows(
        "unjudged", "verifier", "How many episodes wait for a verdict, and how many are late?",
        "episodes",
        "SELECT uniqExact(q.episode) AS requested,\n"
        "  uniqExactIf(q.episode, NOT is_judged) AS unjudged,\n"
        "  uniqExactIf(q.episode, NOT is_judged AND q.deadline_at < now64(6, 'UTC')) AS late\n"
        "FROM (\n"
        "  SELECT episode, deadline_at,\n"
        f"    episode IN (SELECT episode FROM verdicts WHERE {_RUN}) AS is_judged\n"
        f"  FROM verify_requests WHERE {_RUN}\n) AS q",
    ),
    _rows(
        "tries", "verifier", "How often had judging to be tried again?", "episodes",
        "SELECT toString(tries) AS tries, count() AS n\nFROM verdicts AS v\n"
        f"WHERE {_RUN}\nGROUP BY v.tries\nORDER BY v.tries",
    ),
    _rows(
        "retries_by_cause", "verifier", "Which faults of ours cost an attempt?", "attempts",
        f"SELECT cause, n\nFROM retries_by_cause\nWHERE {_RUN}\nORDER BY n DESC",
    ),
)  # fmt: skip

_BUS = (
    _rows(
        "sink_positions", "bus", "How much of each topic is in the tables?", "records",
        "SELECT src_topic AS topic, count() AS partitions, sum(last + 1) AS records\n"
        f"FROM sink_progress FINAL\nWHERE {_RUN}\nGROUP BY topic\nORDER BY records DESC",
    ),
    _rows(
        "dead_letters", "bus", "Which records could not be taken, and why?", "records",
        "SELECT origin_topic, consumer, error_class, example, n, last_at\n"
        f"FROM dead_letters_by_error\nWHERE {_RUN}\nORDER BY last_at DESC\nLIMIT {_LATEST}",
    ),
    _rows(
        "doubtful_rows", "bus", "Whose clocks or numbers cannot be believed?", "rows",
        "SELECT doubt, worker, n\nFROM doubtful_rows\n"
        f"WHERE {_RUN}\nORDER BY n DESC\nLIMIT {_LATEST}",
    ),
)  # fmt: skip

QUESTIONS: tuple[Canned, ...] = (*_RUNS, *_LEARNING, *_STALENESS, *_WORKERS, *_VERIFIER, *_BUS)
"""Every canned query, in the order of the dashboards."""

BY_NAME = {one.name: one for one in QUESTIONS}
