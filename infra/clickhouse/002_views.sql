-- migration 2: views of every quantity, the two funnels and the throughput
--
-- A quantity named like its unit (`policy_lag_steps`, `ttft_ms`) has two views: NAME_samples with one
-- row a sample, and NAME with run_id, p50, p95, p99, max, n and bad. Up to 8,192 samples the
-- percentiles are those of all samples (the reservoir of `quantiles` holds them all), above that
-- those of a t-digest. Samples that are not finite stand in `bad` alone.

CREATE OR REPLACE VIEW policy_lag_steps_samples AS
SELECT run_id, ts, lag_steps AS value, environment, writer_id AS worker, epoch, number, episode_id
FROM trained_members;

CREATE OR REPLACE VIEW policy_lag_steps AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM policy_lag_steps_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW policy_lag_s_samples AS
SELECT run_id, ts, lag_s AS value, environment, writer_id AS worker, epoch, number, episode_id
FROM trained_members;

CREATE OR REPLACE VIEW policy_lag_s AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM policy_lag_s_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW kl_samples AS
SELECT run_id, ts, kl AS value, environment, writer_id AS worker, epoch, number, episode_id
FROM trained_members;

CREATE OR REPLACE VIEW kl AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM kl_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW buffer_age_s_samples AS
SELECT run_id, ts, age_ms / 1000 AS value, environment, writer_id AS worker, epoch, number, episode_id
FROM trained_members;

CREATE OR REPLACE VIEW buffer_age_s AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM buffer_age_s_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW first_token_age_s_samples AS
SELECT run_id, ts, first_token_age_ms / 1000 AS value, environment, writer_id AS worker, epoch, number, episode_id
FROM trained_members;

CREATE OR REPLACE VIEW first_token_age_s AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM first_token_age_s_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW turns AS
SELECT
  run_id, episode_id, attempt, branch, turn,
  any(writer_id) AS worker,
  min(ts) AS ts,
  min(epoch) AS epoch,
  min(number) AS number,
  sum(`count`) AS tokens,
  min(requested_at) AS requested_at,
  min(first_token_at) AS first_token_at,
  max(last_token_at) AS last_token_at,
  max(prefilled_tokens) AS prefilled_tokens,
  max(reused_tokens) AS reused_tokens
FROM token_commits
WHERE kind = 'action'
GROUP BY run_id, episode_id, attempt, branch, turn;

CREATE OR REPLACE VIEW ttft_ms_samples AS
SELECT run_id, ts, (toUnixTimestamp64Micro(first_token_at) - toUnixTimestamp64Micro(requested_at)) / 1000 AS value, worker, epoch, number, episode_id
FROM turns
WHERE toUnixTimestamp64Micro(requested_at) > 0;

CREATE OR REPLACE VIEW ttft_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM ttft_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW inter_token_ms_samples AS
SELECT run_id, ts, (toUnixTimestamp64Micro(last_token_at) - toUnixTimestamp64Micro(first_token_at)) / 1000 / (tokens - 1) AS value, worker, epoch, number, episode_id
FROM turns
WHERE tokens > 1 AND toUnixTimestamp64Micro(first_token_at) > 0;

CREATE OR REPLACE VIEW inter_token_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM inter_token_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW commit_latency_ms_samples AS
SELECT
  run_id, ts, greatest(0, toUnixTimestamp64Milli(ts) - toUnixTimestamp64Micro(at) / 1000) AS value,
  writer_id AS worker, epoch, number, episode_id
FROM token_commits;

CREATE OR REPLACE VIEW commit_latency_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM commit_latency_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW queue_wait_ms_samples AS
SELECT run_id, ts, queue_us / 1000 AS value, writer_id AS worker, episode_id
FROM episode_events
WHERE kind = 'ended';

CREATE OR REPLACE VIEW queue_wait_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM queue_wait_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW environment_reset_ms_samples AS
SELECT run_id, ts, reset_us / 1000 AS value, writer_id AS worker, episode_id
FROM episode_events
WHERE kind = 'ended';

CREATE OR REPLACE VIEW environment_reset_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM environment_reset_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW environment_step_ms_samples AS
SELECT run_id, ts, step_us / 1000 AS value, writer_id AS worker, episode_id
FROM episode_events
WHERE kind = 'ended';

CREATE OR REPLACE VIEW environment_step_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM environment_step_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW tool_call_ms_samples AS
SELECT run_id, ts, duration_us / 1000 AS value, tool, exit_class, writer_id AS worker, episode_id
FROM tool_events
WHERE kind = 'result' AND NOT replayed;

CREATE OR REPLACE VIEW tool_call_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM tool_call_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW verifier_ms_samples AS
SELECT run_id, ts, duration_us / 1000 AS value, code, writer_id AS worker, episode_id
FROM verdicts;

CREATE OR REPLACE VIEW verifier_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM verifier_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW verify_queue_ms_samples AS
SELECT run_id, ts, queued_us / 1000 AS value, code, writer_id AS worker, episode_id
FROM verdicts;

CREATE OR REPLACE VIEW verify_queue_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM verify_queue_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW refresh_pause_ms_samples AS
SELECT run_id, ts, pause_us / 1000 AS value, worker_id AS worker, epoch, number
FROM refreshes
WHERE pause_us > 0;

CREATE OR REPLACE VIEW refresh_pause_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM refresh_pause_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW refresh_load_ms_samples AS
SELECT run_id, ts, load_us / 1000 AS value, worker_id AS worker, epoch, number
FROM refreshes
WHERE load_us > 0;

CREATE OR REPLACE VIEW refresh_load_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM refresh_load_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW learner_step_ms_samples AS
SELECT run_id, ts, arraySum(mapValues(phases_us)) / 1000 AS value, learner_id AS worker, epoch, number
FROM learner_events
WHERE kind = 'step';

CREATE OR REPLACE VIEW learner_step_ms AS
SELECT
  run_id,
  if(n <= 8192, small[1], large[1]) AS p50,
  if(n <= 8192, small[2], large[2]) AS p95,
  if(n <= 8192, small[3], large[3]) AS p99,
  max, n, bad
FROM (
  SELECT
    run_id,
    quantilesIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS small,
    quantilesTDigestIf(0.5, 0.95, 0.99)(toFloat64(value), isFinite(value)) AS large,
    maxIf(value, isFinite(value)) AS max,
    countIf(isFinite(value)) AS n,
    countIf(NOT isFinite(value)) AS bad
  FROM learner_step_ms_samples
  GROUP BY run_id
);

CREATE OR REPLACE VIEW learner_phase_ms AS
SELECT
  run_id, phase,
  quantilesExact(0.5, 0.95, 0.99)(value)[1] AS p50,
  quantilesExact(0.5, 0.95, 0.99)(value)[2] AS p95,
  quantilesExact(0.5, 0.95, 0.99)(value)[3] AS p99,
  max(value) AS max, count() AS n
FROM (
  SELECT run_id, kv.1 AS phase, kv.2 / 1000 AS value
  FROM learner_events ARRAY JOIN CAST(phases_us, 'Array(Tuple(String, Int64))') AS kv
  WHERE kind = 'step'
)
GROUP BY run_id, phase;

CREATE OR REPLACE VIEW metric_quantiles AS
SELECT
  run_id, name,
  quantilesTDigestMerge(0.5, 0.95, 0.99)(q)[1] AS p50,
  quantilesTDigestMerge(0.5, 0.95, 0.99)(q)[2] AS p95,
  quantilesTDigestMerge(0.5, 0.95, 0.99)(q)[3] AS p99,
  max(mx) AS max, sum(m.n) - sum(m.bad) AS n, sum(m.bad) AS bad
FROM metric_1m AS m
GROUP BY run_id, name;

CREATE OR REPLACE VIEW quantities AS
SELECT 'policy_lag_steps' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM policy_lag_steps
UNION ALL
SELECT 'policy_lag_s' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM policy_lag_s
UNION ALL
SELECT 'kl' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM kl
UNION ALL
SELECT 'buffer_age_s' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM buffer_age_s
UNION ALL
SELECT 'first_token_age_s' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM first_token_age_s
UNION ALL
SELECT 'ttft_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM ttft_ms
UNION ALL
SELECT 'inter_token_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM inter_token_ms
UNION ALL
SELECT 'commit_latency_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM commit_latency_ms
UNION ALL
SELECT 'queue_wait_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM queue_wait_ms
UNION ALL
SELECT 'environment_reset_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM environment_reset_ms
UNION ALL
SELECT 'environment_step_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM environment_step_ms
UNION ALL
SELECT 'tool_call_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM tool_call_ms
UNION ALL
SELECT 'verifier_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM verifier_ms
UNION ALL
SELECT 'verify_queue_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM verify_queue_ms
UNION ALL
SELECT 'refresh_pause_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM refresh_pause_ms
UNION ALL
SELECT 'refresh_load_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM refresh_load_ms
UNION ALL
SELECT 'learner_step_ms' AS quantity, run_id, toFloat64(p50) AS p50, toFloat64(p95) AS p95, toFloat64(p99) AS p99, toFloat64(max) AS max, n, bad FROM learner_step_ms;

CREATE OR REPLACE VIEW trajectory_funnel AS
SELECT run_id, 1 AS place, 'issued' AS stage, '' AS reason, uniqExact(episode_id) AS n
FROM episode_events WHERE kind = 'issued' GROUP BY run_id
UNION ALL
SELECT run_id, 2, 'abandoned', abandon_reason, uniqExact(episode_id)
FROM episode_events WHERE kind = 'abandoned' GROUP BY run_id, abandon_reason
UNION ALL
SELECT run_id, 3, 'ended', stop_cause, uniqExact(episode_id)
FROM episode_events WHERE kind = 'ended' GROUP BY run_id, stop_cause
UNION ALL
SELECT run_id, 4, 'judged', code, uniqExact(episode_id) FROM verdicts GROUP BY run_id, code
UNION ALL
SELECT run_id, 5, 'assembled', termination, uniqExact(episode_id)
FROM trajectories GROUP BY run_id, termination
UNION ALL
SELECT run_id, 6, 'admitted', '', uniqExact(episode_id)
FROM gate_members WHERE outcome = 'admit' GROUP BY run_id
UNION ALL
SELECT run_id, 7, 'dropped', reason, uniqExact(episode_id)
FROM gate_members WHERE outcome = 'drop' GROUP BY run_id, reason
UNION ALL
SELECT run_id, 8, 'skipped', reason, uniqExact(episode_id)
FROM skipped_members GROUP BY run_id, reason
UNION ALL
SELECT run_id, 9, 'trained', '', uniqExact(episode_id) FROM trained_members GROUP BY run_id;

CREATE OR REPLACE VIEW token_funnel AS
SELECT run_id, 1 AS place, 'sampled' AS stage, '' AS reason, sum(`count`) AS tokens
FROM token_commits WHERE kind = 'action' GROUP BY run_id
UNION ALL
SELECT run_id, 2, 'prefilled', '', sum(prefilled_tokens) FROM turns GROUP BY run_id
UNION ALL
SELECT run_id, 3, 'reused', '', sum(reused_tokens) FROM turns GROUP BY run_id
UNION ALL
SELECT run_id, 4, 'assembled', '', sum(action_tokens) FROM trajectories GROUP BY run_id
UNION ALL
SELECT run_id, 5, 'superseded', '', sum(superseded_tokens) FROM trajectories GROUP BY run_id
UNION ALL
SELECT run_id, 6, 'skipped', reason, sum(action_tokens) FROM skipped_members GROUP BY run_id, reason
UNION ALL
SELECT run_id, 7, 'masked', 'dis_low', sum(masked_low) FROM trained_members GROUP BY run_id
UNION ALL
SELECT run_id, 7, 'masked', 'dis_high', sum(masked_high) FROM trained_members GROUP BY run_id
UNION ALL
SELECT run_id, 7, 'masked', kv.1, sum(kv.2)
FROM trained_members ARRAY JOIN CAST(masked_other, 'Array(Tuple(String, Int64))') AS kv
GROUP BY run_id, kv.1
UNION ALL
SELECT run_id, 8, 'trained', '', sum(kept_tokens) FROM trained_members GROUP BY run_id;

CREATE OR REPLACE VIEW throughput AS
SELECT
  s.run_id AS run_id,
  s.wall_s AS wall_s,
  s.tokens AS raw_tokens,
  t.tokens AS trained_tokens,
  if(wall_s > 0, raw_tokens / wall_s, 0) AS raw_tokens_per_s,
  if(wall_s > 0, trained_tokens / wall_s, 0) AS effective_tokens_per_s
FROM (
  SELECT run_id, sum(`count`) AS tokens, (toUnixTimestamp64Milli(max(ts)) - toUnixTimestamp64Milli(min(ts))) / 1000 AS wall_s
  FROM token_commits WHERE kind = 'action' GROUP BY run_id
) AS s
LEFT JOIN (SELECT run_id, sum(kept_tokens) AS tokens FROM trained_members GROUP BY run_id) AS t
ON s.run_id = t.run_id;

CREATE OR REPLACE VIEW reward_by_step AS
SELECT
  run_id, epoch, ordinal, environment,
  avg(reward) AS mean, stddevSamp(reward) AS deviation, count() AS n,
  avg(lag_steps) AS lag_mean, max(lag_steps) AS lag_max
FROM trained_members
GROUP BY run_id, epoch, ordinal, environment;
