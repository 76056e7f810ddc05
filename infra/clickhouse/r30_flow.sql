-- repeatable flow: funnels, accounts, throughput against its bound, where the time went
--
-- Funnels count ids as written; accounts give every issued episode and every sampled token exactly
-- one place, so that they balance by integers. `sluice audit` decides which of several records
-- counts after a restore; on a run that was never restored both agree.

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
SELECT run_id, entry.1 AS place, entry.2 AS stage, '' AS reason, entry.3 AS tokens
FROM (
  SELECT run_id, arrayJoin([
    (1, 'sampled', sum(`count`)),
    (2, 'prefilled', sumIf(prefilled_tokens, finish_reason NOT IN ('none', ''))),
    (3, 'reused', sumIf(reused_tokens, finish_reason NOT IN ('none', '')))
  ]) AS entry
  FROM token_commits WHERE kind = 'action' GROUP BY run_id
)
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

CREATE OR REPLACE VIEW episode_accounts AS
SELECT
  i.run_id AS run_id, i.episode_id AS episode_id, i.group_id AS group_id, i.purpose AS purpose,
  multiIf(
    t.n > 0, 'trained',
    s.n > 0 OR d.n > 0, 'dropped',
    a.n > 0, 'abandoned',
    i.purpose != 'train' AND j.n > 0, 'evaluated',
    -- What was admitted and not trained when the learner closed the run is dropped by its end.
    z.n > 0 AND d.decided > 0, 'dropped',
    'pending'
  ) AS outcome,
  multiIf(
    outcome = 'dropped', multiIf(s.n > 0, s.reason, d.n > 0, d.reason, 'run_ended'),
    outcome = 'abandoned', a.reason,
    ''
  ) AS reason,
  t.kept AS kept_tokens, t.low AS masked_low, t.high AS masked_high, t.other AS masked_other,
  j.tokens AS action_tokens
FROM (
  SELECT run_id, episode_id, any(group_id) AS group_id, any(e.purpose) AS purpose
  FROM episode_events AS e WHERE kind = 'issued' GROUP BY run_id, episode_id
) AS i
LEFT JOIN (
  SELECT run_id, episode_id, count() AS n, argMax(kept_tokens, (epoch, number)) AS kept,
    argMax(masked_low, (epoch, number)) AS low, argMax(masked_high, (epoch, number)) AS high,
    argMax(arraySum(mapValues(masked_other)), (epoch, number)) AS other
  FROM trained_members GROUP BY run_id, episode_id
) AS t ON i.run_id = t.run_id AND i.episode_id = t.episode_id
LEFT JOIN (
  SELECT run_id, episode_id, count() AS n, argMin(skipped.reason, src_offset) AS reason
  FROM skipped_members AS skipped GROUP BY run_id, episode_id
) AS s ON i.run_id = s.run_id AND i.episode_id = s.episode_id
LEFT JOIN (
  SELECT run_id, episode_id, countIf(outcome = 'drop') AS n, count() AS decided,
    argMin(g.reason, src_offset) AS reason
  FROM gate_members AS g GROUP BY run_id, episode_id
) AS d ON i.run_id = d.run_id AND i.episode_id = d.episode_id
LEFT JOIN (
  SELECT run_id, episode_id, count() AS n, argMin(abandon_reason, src_offset) AS reason
  FROM episode_events WHERE kind = 'abandoned' GROUP BY run_id, episode_id
) AS a ON i.run_id = a.run_id AND i.episode_id = a.episode_id
LEFT JOIN (
  SELECT run_id, episode_id, count() AS n, argMin(action_tokens, src_offset) AS tokens
  FROM trajectories GROUP BY run_id, episode_id
) AS j ON i.run_id = j.run_id AND i.episode_id = j.episode_id
LEFT JOIN (
  SELECT run_id, count() AS n FROM learner_events WHERE kind = 'closed' GROUP BY run_id
) AS z ON i.run_id = z.run_id;

CREATE OR REPLACE VIEW trajectory_accounts AS
SELECT run_id, outcome, reason, count() AS n
FROM episode_accounts GROUP BY run_id, outcome, reason;

CREATE OR REPLACE VIEW token_accounts AS
SELECT run_id, entry.1 AS outcome, entry.2 AS reason, sum(entry.3) AS tokens
FROM (
  SELECT
    c.run_id AS run_id,
    -- What is on the line that counts; anything more was sampled and does not count.
    multiIf(
      e.outcome = 'trained', e.kept_tokens + e.masked_low + e.masked_high + e.masked_other,
      e.action_tokens > 0, e.action_tokens,
      e.outcome IN ('abandoned', 'pending'), c.tokens,
      0
    ) AS counted,
    arrayJoin(if(
      e.outcome = 'trained',
      [
        ('trained', '', e.kept_tokens), ('masked', 'dis_low', e.masked_low),
        ('masked', 'dis_high', e.masked_high), ('masked', 'other', e.masked_other),
        ('superseded', '', c.tokens - counted)
      ],
      [
        (toString(if(e.outcome = '', 'pending', e.outcome)), toString(e.reason), counted),
        ('superseded', '', c.tokens - counted)
      ]
    )) AS entry
  FROM (
    SELECT run_id, episode_id, sum(`count`) AS tokens
    FROM token_commits WHERE kind = 'action' GROUP BY run_id, episode_id
  ) AS c
  LEFT JOIN episode_accounts AS e ON c.run_id = e.run_id AND c.episode_id = e.episode_id
)
GROUP BY run_id, outcome, reason
HAVING tokens != 0;

-- Wall clock of a run: from its first record to its last update, or to its last sampled token
-- while none was made.
CREATE OR REPLACE VIEW run_wall AS
SELECT
  c.run_id AS run_id,
  if(s.began_at > 0, least(s.began_at, c.first_at), c.first_at) AS began_ms,
  greatest(l.stepped_at, c.last_at) AS ended_ms,
  (ended_ms - began_ms) / 1000 AS wall_s
FROM (
  SELECT run_id, toUnixTimestamp64Milli(min(ts)) AS first_at, toUnixTimestamp64Milli(max(ts)) AS last_at
  FROM token_commits GROUP BY run_id
) AS c
LEFT JOIN (
  SELECT run_id, toUnixTimestamp64Milli(min(ts)) AS began_at
  FROM control_events WHERE kind = 'start' GROUP BY run_id
) AS s ON c.run_id = s.run_id
LEFT JOIN (
  SELECT run_id, toUnixTimestamp64Milli(max(ts)) AS stepped_at
  FROM learner_events WHERE kind = 'step' GROUP BY run_id
) AS l ON c.run_id = l.run_id;

-- When each attempt of an episode ran at its environment worker. Unit: us, broker time.
CREATE OR REPLACE VIEW episode_runs AS
SELECT
  run_id, episode_id, attempt,
  anyIf(worker_id, kind = 'leased') AS worker,
  minIf(toUnixTimestamp64Milli(ts), kind = 'leased') * 1000 AS began,
  max(toUnixTimestamp64Milli(ts)) * 1000 AS ended
FROM episode_events
WHERE kind IN ('leased', 'progress', 'paused', 'ended')
GROUP BY run_id, episode_id, attempt
HAVING countIf(kind = 'leased') > 0;

-- How long each stage worked: the union of what a worker did, averaged over the workers of the
-- stage that did anything. Formula F1: the slowest stage bounds the rate.
CREATE OR REPLACE VIEW stage_busy AS
SELECT run_id, stage, greatest(0, avg(us)) / 1000000 AS busy_s, count() AS workers
FROM (
  SELECT run_id, stage, worker, sum(greatest(0, ended - greatest(began, before))) AS us
  FROM (
    SELECT run_id, stage, worker, began, ended,
      max(ended) OVER (
        PARTITION BY run_id, stage, worker ORDER BY began, ended
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS before
    FROM (
      SELECT run_id, 'rollout' AS stage, worker, began, ended FROM episode_runs
      UNION ALL
      SELECT run_id, 'verify', writer_id, toUnixTimestamp64Micro(at) - duration_us,
        toUnixTimestamp64Micro(at)
      FROM verdicts
      UNION ALL
      SELECT run_id, 'sync', worker_id, toUnixTimestamp64Micro(at) - fetch_us - pause_us,
        toUnixTimestamp64Micro(at)
      FROM refreshes WHERE fetch_us + pause_us > 0
    )
  )
  GROUP BY run_id, stage, worker
)
GROUP BY run_id, stage
UNION ALL
SELECT run_id, 'learn', sum(
    arraySum(mapValues(phases_us)) - phases_us['wait_batch'] - phases_us['paused'] - phases_us['start']
  ) / 1000000, uniqExact(learner_id)
FROM learner_events WHERE kind = 'step' GROUP BY run_id;

CREATE OR REPLACE VIEW throughput AS
SELECT
  w.run_id AS run_id, w.wall_s AS wall_s,
  s.tokens AS raw_tokens, t.tokens AS trained_tokens, t.trajectories AS trained_trajectories,
  if(wall_s > 0, raw_tokens / wall_s, 0) AS raw_tokens_per_s,
  if(wall_s > 0, trained_tokens / wall_s, 0) AS effective_tokens_per_s,
  if(wall_s > 0, trained_trajectories / wall_s, 0) AS effective_trajectories_per_s,
  b.stage AS bottleneck, b.busy_s AS bottleneck_busy_s,
  if(b.busy_s > 0, trained_tokens / b.busy_s, 0) AS bound_tokens_per_s
FROM run_wall AS w
LEFT JOIN (
  SELECT run_id, toInt64(sum(q.s)) AS tokens FROM quantity_1m AS q
  WHERE quantity = 'commit_size_tokens' GROUP BY run_id
) AS s ON w.run_id = s.run_id
LEFT JOIN (
  SELECT run_id, sum(kept_tokens) AS tokens, uniqExact(episode_id) AS trajectories
  FROM trained_members GROUP BY run_id
) AS t ON w.run_id = t.run_id
LEFT JOIN (
  SELECT run_id, argMax(stage, busy) AS stage, max(busy) AS busy_s
  FROM (
    -- A worker that is being refreshed holds its episodes up: that time is the refresh's.
    SELECT k.run_id AS run_id, k.stage AS stage,
      if(k.stage = 'rollout', k.busy_s - y.busy_s, k.busy_s) AS busy
    FROM stage_busy AS k
    LEFT JOIN (SELECT run_id, stage_busy.busy_s AS busy_s FROM stage_busy WHERE stage = 'sync') AS y
    ON k.run_id = y.run_id
  )
  GROUP BY run_id
) AS b ON w.run_id = b.run_id;

CREATE OR REPLACE VIEW throughput_by_minute AS
SELECT run_id, t, sum(raw) AS raw_tokens, sum(kept) AS trained_tokens,
  sum(trajectories) AS trained_trajectories,
  raw_tokens / 60 AS raw_tokens_per_s, trained_tokens / 60 AS effective_tokens_per_s,
  trained_trajectories / 60 AS effective_trajectories_per_s
FROM (
  SELECT run_id, t, s AS raw, 0 AS kept, 0 AS trajectories
  FROM quantity_1m WHERE quantity = 'commit_size_tokens'
  UNION ALL
  SELECT run_id, toStartOfMinute(ts), 0, kept_tokens, 1 FROM trained_members
)
GROUP BY run_id, t;

-- One row a step of the learner: the time since the step before it, and where in it the learner
-- waited for a batch. Unit: us. Phases follow one another in this order: checkpoint and pause of the
-- step before, the wait, then the work that the step records.
CREATE OR REPLACE VIEW step_times AS
SELECT
  run_id, epoch, number, ordinal, toUnixTimestamp64Micro(at) AS at_us, phases_us,
  arraySum(mapValues(phases_us)) AS whole_us,
  phases_us['wait_batch'] AS wait_us,
  at_us - (
    whole_us - wait_us - phases_us['checkpoint'] - phases_us['paused'] - phases_us['start']
  ) AS wait_ended,
  wait_ended - wait_us AS wait_began
FROM learner_events
WHERE kind = 'step';

-- Where the learner's time went. Waiting for a batch is given to its causes one after the other, so
-- that causes and phases sum to the whole: refresh, while workers stood still (averaged over them);
-- straggler, once nine tenths of the batch stood on gated; backpressure, while no episode ran though
-- the learner waited; commit, the share of an episode's time that its tokens waited for the broker;
-- batch_not_full, the rest.
CREATE OR REPLACE VIEW wait_attribution AS
WITH
  least(s.wait_us, toInt64(r.us)) AS refresh,
  least(s.wait_us - refresh, toInt64(greatest(0, s.wait_ended - greatest(s.wait_began, b.late_us))))
    AS straggler_if,
  if(b.late_us > 0, straggler_if, 0) AS straggler,
  least(s.wait_us - refresh - straggler, toInt64(i.us)) AS backpressure,
  s.wait_us - refresh - straggler - backpressure AS rest,
  toInt64(rest * least(1, c.share)) AS commit,
  arrayConcat(
    [
      ('wait', 'refresh', refresh), ('wait', 'straggler', straggler),
      ('wait', 'backpressure', backpressure), ('wait', 'commit', commit),
      ('wait', 'batch_not_full', rest - commit)
    ],
    arrayMap(
      x -> (if(x.1 = 'paused', 'wait', 'work'), x.1, x.2),
      arrayFilter(x -> x.1 != 'wait_batch', CAST(s.phases_us, 'Array(Tuple(String, Int64))'))
    )
  ) AS parts
SELECT
  run_id, epoch, ordinal, part.1 AS kind, part.2 AS cause, part.3 / 1000000 AS spent_s
FROM (
  SELECT s.run_id AS run_id, s.epoch AS epoch, s.ordinal AS ordinal, arrayJoin(parts) AS part
  FROM step_times AS s
  LEFT JOIN (
    SELECT p.run_id AS run_id, t.epoch AS epoch, t.number AS number,
      sum(greatest(0, least(p.ended, t.wait_ended) - greatest(p.began, t.wait_began)))
        / any(p.workers) AS us
    FROM (
      SELECT run_id, toUnixTimestamp64Micro(at) - pause_us AS began,
        toUnixTimestamp64Micro(at) AS ended, w.workers AS workers
      FROM refreshes AS one
      LEFT JOIN (
        SELECT run_id, uniqExact(worker_id) AS workers FROM refreshes GROUP BY run_id
      ) AS w ON one.run_id = w.run_id
      WHERE pause_us > 0
    ) AS p
    ASOF JOIN step_times AS t ON p.run_id = t.run_id AND p.began <= t.at_us
    GROUP BY run_id, epoch, number
  ) AS r ON s.run_id = r.run_id AND s.epoch = r.epoch AND s.number = r.number
  LEFT JOIN (
    SELECT m.run_id AS run_id, m.epoch AS epoch, m.number AS number,
      toInt64(quantileExact(0.9)(toUnixTimestamp64Milli(g.ts))) * 1000 AS late_us
    FROM trained_members AS m
    JOIN gated AS g
    ON m.run_id = g.run_id AND m.partition = toInt64(g.src_partition) AND m.offset = toInt64(g.src_offset)
    GROUP BY run_id, epoch, number
  ) AS b ON s.run_id = b.run_id AND s.epoch = b.epoch AND s.number = b.number
  LEFT JOIN (
    SELECT g.run_id AS run_id, t.epoch AS epoch, t.number AS number,
      sum(greatest(0, least(g.ended, t.wait_ended) - greatest(g.began, t.wait_began))) AS us
    FROM (
      SELECT run_id, before AS began, next AS ended
      FROM (
        SELECT run_id, began AS next,
          max(ended) OVER (
            PARTITION BY run_id ORDER BY began, ended ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          ) AS before
        FROM episode_runs
      )
      WHERE before > 0 AND next > before
    ) AS g
    ASOF JOIN step_times AS t ON g.run_id = t.run_id AND g.began <= t.at_us
    GROUP BY run_id, epoch, number
  ) AS i ON s.run_id = i.run_id AND s.epoch = i.epoch AND s.number = i.number
  LEFT JOIN (
    SELECT e.run_id AS run_id, if(e.us > 0, w.us / e.us, 0) AS share
    FROM (SELECT run_id, sum(ended - began) AS us FROM episode_runs GROUP BY run_id) AS e
    LEFT JOIN (
      SELECT run_id, sum(value) AS us FROM metric_points
      WHERE name = 'exposure_wait_us' AND isFinite(value) GROUP BY run_id
    ) AS w ON e.run_id = w.run_id
  ) AS c ON s.run_id = c.run_id
)
WHERE spent_s != 0;

CREATE OR REPLACE VIEW wait_totals AS
SELECT run_id, kind, cause, sum(spent_s) AS spent_s FROM wait_attribution
GROUP BY run_id, kind, cause;

-- What was attributed beside the wall clock of the learner: from when it began to its last step.
CREATE OR REPLACE VIEW wait_check AS
SELECT a.run_id AS run_id, a.spent_s AS attributed_s, w.wall_s AS wall_s,
  if(wall_s > 0, attributed_s / wall_s, 0) AS attributed_ratio
FROM (SELECT run_id, sum(one.spent_s) AS spent_s FROM wait_attribution AS one GROUP BY run_id) AS a
JOIN (
  SELECT run_id, sum(us) / 1000000 AS wall_s FROM (
    -- Each start of a learner is counted from its first phase on, up to its last step.
    SELECT run_id, epoch, max(at_us) - min(at_us - whole_us) AS us
    FROM step_times GROUP BY run_id, epoch
  ) GROUP BY run_id
) AS w ON a.run_id = w.run_id;
