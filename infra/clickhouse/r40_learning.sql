-- repeatable learning: rewards, lag, the ratio, outcomes, and who serves what
--
-- A number that is not finite is in no mean and no percentile; `bad` of its quantity counts it.

CREATE OR REPLACE VIEW learning_by_step AS
SELECT
  run_id, ts, epoch, number, ordinal, learner_id AS worker, loss_name,
  losses[loss_name] AS loss,
  metrics['reward_mean_reward'] AS reward_mean,
  metrics['advantage_mean_reward'] AS advantage_mean,
  metrics['advantage_variance_reward2'] AS advantage_variance,
  metrics['zero_advantage_ratio'] AS zero_advantage_ratio,
  -- Where no trajectory has an advantage no token is measured: that is not a 0.
  if(measured_tokens > 0, metrics['entropy_nats'], NULL) AS entropy_nats,
  if(measured_tokens > 0, metrics['kl_nats'], NULL) AS kl_nats,
  if(measured_tokens > 0, metrics['gate_fraction_ratio'], NULL) AS gate_fraction_ratio,
  if(measured_tokens > 0, metrics['ratio_p50_ratio'], NULL) AS ratio_p50,
  if(measured_tokens > 0, metrics['ratio_p95_ratio'], NULL) AS ratio_p95,
  if(measured_tokens > 0, metrics['ratio_p99_ratio'], NULL) AS ratio_p99,
  metrics['measured_tokens'] AS measured_tokens,
  metrics['sample_size_tokens'] AS effective_sample_tokens,
  metrics['gradient_norm'] AS gradient_norm,
  metrics['lag_mean_updates'] AS lag_mean_updates,
  metrics['mfu_ratio'] AS mfu_ratio,
  action_tokens, kept_tokens, rejected_low, rejected_high, trained_n AS trajectories,
  arraySum(mapValues(phases_us)) / 1000000 AS step_s
FROM learner_events
WHERE kind = 'step';

CREATE OR REPLACE VIEW learner_phase_ms AS
SELECT
  run_id, phase,
  quantilesExact(0.5, 0.95, 0.99)(value)[1] AS p50,
  quantilesExact(0.5, 0.95, 0.99)(value)[2] AS p95,
  quantilesExact(0.5, 0.95, 0.99)(value)[3] AS p99,
  max(value) AS max, sum(value) AS total, count() AS n
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
  if(sum(m.n) > 0, max(mx), 0) AS max, sum(m.n) AS n, sum(m.bad) AS bad
FROM metric_1m AS m
GROUP BY run_id, name;

CREATE OR REPLACE VIEW reward_by_step AS
SELECT
  run_id, epoch, ordinal, environment,
  avg(reward) AS mean, stddevSamp(reward) AS deviation, count() AS n,
  quantilesExact(0.05, 0.5, 0.95)(reward)[1] AS p05,
  quantilesExact(0.05, 0.5, 0.95)(reward)[2] AS p50,
  quantilesExact(0.05, 0.5, 0.95)(reward)[3] AS p95,
  min(reward) AS least, max(reward) AS most,
  avg(lag_steps) AS lag_mean, max(lag_steps) AS lag_max
FROM trained_members WHERE isFinite(reward)
GROUP BY run_id, epoch, ordinal, environment;

CREATE OR REPLACE VIEW reward_histogram AS
SELECT run_id, environment, purpose, round(assumeNotNull(reward), 1) AS reward_at_least, count() AS n
FROM (
  SELECT run_id, environment, purpose, floor(c.reward * 10) / 10 AS reward
  FROM trajectories_counted AS c WHERE isNotNull(c.reward) AND isFinite(assumeNotNull(c.reward))
)
GROUP BY run_id, environment, purpose, reward_at_least;

-- Each component with the weight it had: sum(value * weight) of an episode is its reward.
CREATE OR REPLACE VIEW reward_components AS
SELECT
  run_id, ts, episode_id, code, writer_id AS worker, kv.1 AS component, kv.2 AS value,
  component_weights[kv.1] AS weight, reward
FROM verdicts ARRAY JOIN CAST(components, 'Array(Tuple(String, Float64))') AS kv;

CREATE OR REPLACE VIEW reward_components_by_name AS
SELECT
  run_id, component, avg(value) AS mean, stddevSamp(value) AS deviation, min(value) AS least,
  max(value) AS most, count() AS n
FROM reward_components WHERE isFinite(value)
GROUP BY run_id, component;

-- Held-out tasks, by the version that answered them.
CREATE OR REPLACE VIEW evaluation_by_version AS
SELECT
  run_id, environment, purpose, oldest_epoch AS epoch, oldest_number AS number,
  countIf(termination = 'success') AS successes, count() AS n, successes / n AS success_ratio,
  avgIf(reward, isFinite(reward)) AS reward_mean, min(c.ts) AS ts
FROM trajectories_counted AS c
WHERE purpose IN ('evaluate', 'canary')
GROUP BY run_id, environment, purpose, epoch, number;

CREATE OR REPLACE VIEW episode_outcomes AS
SELECT
  run_id, environment, purpose, termination, count() AS n, sum(c.action_tokens) AS action_tokens,
  sum(c.tool_calls) AS tool_calls, sum(c.tool_errors) AS tool_errors,
  if(tool_calls > 0, tool_errors / tool_calls, 0) AS tool_error_ratio
FROM trajectories_counted AS c
GROUP BY run_id, environment, purpose, termination;

-- Every issued episode once, under its termination class where it has a trajectory.
CREATE OR REPLACE VIEW task_outcomes AS
SELECT run_id, task AS task_id, purpose, termination, count() AS n
FROM (
  SELECT
    run_id, episode, max(task_id) AS task, max(e.purpose) AS purpose,
    multiIf(max(e.ended_as) != '', max(e.ended_as), max(e.is_abandoned), 'abandoned', 'open')
      AS termination
  FROM (
    SELECT run_id, episode, task_id, toString(purpose) AS purpose, '' AS ended_as,
      kind = 'issued' AS is_issued, kind = 'abandoned' AS is_abandoned
    FROM episode_events WHERE kind IN ('issued', 'abandoned')
    UNION ALL
    SELECT run_id, episode, task_id, toString(purpose), toString(termination), 0, 0
    FROM trajectories_counted
  ) AS e
  GROUP BY run_id, episode HAVING max(is_issued)
)
GROUP BY run_id, task, purpose, termination;

CREATE OR REPLACE VIEW tool_outcomes AS
SELECT run_id, tool, exit_class, count() AS n, countIf(replayed) AS replayed
FROM tool_events WHERE kind = 'result'
GROUP BY run_id, tool, exit_class;

-- Failures that cost an attempt which was tried again: each Leased tells all of its episode so far.
-- A worker that died leaves no Ended, so these do not count them.
CREATE OR REPLACE VIEW retries_by_cause AS
SELECT run_id, cause, sum(times) AS n
FROM (
  SELECT run_id, episode, failure.1 AS cause, max(failure.2) AS times
  FROM episode_events ARRAY JOIN CAST(after_failures, 'Array(Tuple(String, Int64))') AS failure
  WHERE kind = 'leased'
  GROUP BY run_id, episode, cause
)
GROUP BY run_id, cause;

CREATE OR REPLACE VIEW policy_lag_by_step AS
SELECT
  run_id, epoch, ordinal, min(ts) AS at, count() AS n,
  quantilesExact(0.5, 0.95, 0.99)(lag_steps)[1] AS steps_p50,
  quantilesExact(0.5, 0.95, 0.99)(lag_steps)[2] AS steps_p95,
  quantilesExact(0.5, 0.95, 0.99)(lag_steps)[3] AS steps_p99,
  max(lag_steps) AS steps_max,
  quantilesExactIf(0.5, 0.95, 0.99)(lag_s, isFinite(lag_s))[1] AS s_p50,
  quantilesExactIf(0.5, 0.95, 0.99)(lag_s, isFinite(lag_s))[2] AS s_p95,
  quantilesExactIf(0.5, 0.95, 0.99)(lag_s, isFinite(lag_s))[3] AS s_p99,
  maxIf(lag_s, isFinite(lag_s)) AS s_max,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[1] AS kl_p50,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[2] AS kl_p95,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[3] AS kl_p99,
  maxIf(kl, isFinite(kl)) AS kl_max,
  quantilesExact(0.5, 0.95, 0.99)(age_ms)[1] / 1000 AS age_s_p50,
  quantilesExact(0.5, 0.95, 0.99)(age_ms)[2] / 1000 AS age_s_p95,
  quantilesExact(0.5, 0.95, 0.99)(age_ms)[3] / 1000 AS age_s_p99,
  max(age_ms) / 1000 AS age_s_max
FROM trained_members
GROUP BY run_id, epoch, ordinal;

-- Buckets are those of the learner: le_0, le_1, le_2, le_4, le_8, gt_8 updates.
CREATE OR REPLACE VIEW policy_lag_by_bucket AS
SELECT
  run_id,
  multiIf(lag_steps <= 0, 'le_0', lag_steps <= 1, 'le_1', lag_steps <= 2, 'le_2',
    lag_steps <= 4, 'le_4', lag_steps <= 8, 'le_8', 'gt_8') AS bucket,
  min(lag_steps) AS place,
  count() AS n, sum(trained_members.action_tokens) AS action_tokens, sum(trained_members.kept_tokens) AS kept_tokens,
  sum(masked_low) AS masked_low_tokens, sum(masked_high) AS masked_high_tokens,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[1] AS kl_p50,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[2] AS kl_p95,
  quantilesExactIf(0.5, 0.95, 0.99)(kl, isFinite(kl))[3] AS kl_p99,
  maxIf(kl, isFinite(kl)) AS kl_max, avgIf(reward, isFinite(reward)) AS reward_mean
FROM trained_members
WHERE (run_id, ordinal, epoch) IN (SELECT run_id, ordinal, epoch FROM steps_counted)
GROUP BY run_id, bucket;

-- The learner's own measure of each step by lag bucket: quantiles of the token ratios and of the
-- tokens' divergence from the policy that sampled them (k3), and the effective sample size (sum of
-- weights squared over sum of squared weights) beside the tokens.
CREATE OR REPLACE VIEW ratio_by_lag_bucket AS
SELECT
  run_id, epoch, ordinal, ts, bucket,
  metrics[concat('ratio_p50_lag_', bucket, '_ratio')] AS ratio_p50,
  metrics[concat('ratio_p95_lag_', bucket, '_ratio')] AS ratio_p95,
  metrics[concat('ratio_p99_lag_', bucket, '_ratio')] AS ratio_p99,
  metrics[concat('kl_lag_', bucket, '_nats')] AS kl_mean,
  metrics[concat('kl_p50_lag_', bucket, '_nats')] AS kl_p50,
  metrics[concat('kl_p95_lag_', bucket, '_nats')] AS kl_p95,
  metrics[concat('kl_p99_lag_', bucket, '_nats')] AS kl_p99,
  metrics[concat('measured_lag_', bucket, '_tokens')] AS tokens,
  metrics[concat('sample_size_lag_', bucket, '_tokens')] AS effective_sample_tokens,
  if(tokens > 0, effective_sample_tokens / tokens, 0) AS effective_sample_ratio
FROM learner_events
ARRAY JOIN ['le_0', 'le_1', 'le_2', 'le_4', 'le_8', 'gt_8'] AS bucket
WHERE kind = 'step' AND mapContains(metrics, concat('ratio_p99_lag_', bucket, '_ratio'));

CREATE OR REPLACE VIEW workers_now AS
SELECT
  run_id, worker_id AS worker, argMax(w.role, at) AS role, argMax(w.status, at) AS status,
  argMax(w.epoch, at) AS epoch, argMax(w.number, at) AS number, argMax(w.address, at) AS address,
  argMax(w.incarnation, at) AS incarnation, max(at) AS seen_at,
  uniqExact(w.incarnation) AS starts
FROM worker_states AS w
GROUP BY run_id, worker;

CREATE OR REPLACE VIEW versions_served AS
SELECT
  s.run_id AS run_id, s.worker AS worker, s.epoch AS epoch, s.number AS number,
  s.served_at AS served_at, p.ordinal AS ordinal, n.newest - p.ordinal AS behind_updates
FROM (
  SELECT run_id, worker_id AS worker, argMax(r.epoch, at) AS epoch, argMax(r.number, at) AS number,
    max(at) AS served_at
  FROM refreshes AS r WHERE kind = 'serving' GROUP BY run_id, worker
) AS s
LEFT JOIN (SELECT DISTINCT run_id, epoch, number, ordinal FROM policies) AS p
ON s.run_id = p.run_id AND s.epoch = p.epoch AND s.number = p.number
LEFT JOIN (SELECT run_id, max(ordinal) AS newest FROM policies GROUP BY run_id) AS n
ON s.run_id = n.run_id;

CREATE OR REPLACE VIEW dead_letters_by_error AS
SELECT
  run_id, origin_topic, consumer, error_class, any(error) AS example, uniqExact(
    (origin_topic, origin_partition, origin_offset)
  ) AS n, max(ts) AS last_at
FROM dead_letters WHERE kind IN ('', 'letter')
GROUP BY run_id, origin_topic, consumer, error_class;

-- Signs that clocks or numbers cannot be believed, by writer.
CREATE OR REPLACE VIEW doubtful_rows AS
SELECT run_id, doubtful.1 AS doubt, writer_id AS worker, doubtful.2 AS n
FROM (
  SELECT run_id, writer_id,
    countIf(toUnixTimestamp64Micro(at) / 1000 > toUnixTimestamp64Milli(ts) + 1000) AS ahead,
    countIf(toUnixTimestamp64Micro(at) / 1000 < toUnixTimestamp64Milli(ts) - 60000) AS behind
  FROM token_commits GROUP BY run_id, writer_id
)
ARRAY JOIN [('clock_ahead_of_broker', ahead), ('clock_behind_broker', behind)] AS doubtful
WHERE n > 0
UNION ALL
SELECT run_id, 'not_finite', writer_id, count() FROM metric_points WHERE NOT isFinite(value)
GROUP BY run_id, writer_id;
