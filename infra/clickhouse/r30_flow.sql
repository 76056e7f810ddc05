-- repeatable flow: funnels, accounts, throughput against its bound, where the time went
--
-- Funnels count what was written twice once, and of what was trained the steps that count; accounts
-- give every issued episode and every sampled token exactly one place, so that they balance by
-- integers. `sluice audit` decides by the log which of several records counts after a restore; on a
-- run that was never restored all agree.

-- The steps that count: a learner that was restored makes the steps after its checkpoint again, and
-- what the earlier ones trained is gone.
CREATE OR REPLACE VIEW steps_counted AS
SELECT run_id, ordinal, max(epoch) AS epoch FROM learner_events WHERE kind = 'step'
GROUP BY run_id, ordinal;

-- The trajectory that counts of each episode: the first in the log. Two assemblers that hold its
-- partition for a moment both may write it.
CREATE OR REPLACE VIEW trajectories_counted AS
SELECT run_id, ts, episode, episode_id, task_id, purpose, environment, oldest_epoch, oldest_number,
  termination, reward, action_tokens, superseded_tokens, tool_calls, tool_errors
FROM trajectories
ORDER BY run_id, episode_id, src_partition, src_offset
LIMIT 1 BY run_id, episode_id;

CREATE OR REPLACE VIEW trajectory_funnel AS
SELECT run_id, 1 AS place, 'issued' AS stage, '' AS reason, uniqExact(episode) AS n
FROM episode_events WHERE kind = 'issued' GROUP BY run_id
UNION ALL
SELECT run_id, 2, 'abandoned', abandon_reason, uniqExact(episode)
FROM episode_events WHERE kind = 'abandoned' GROUP BY run_id, abandon_reason
UNION ALL
SELECT run_id, 3, 'ended', stop_cause, uniqExact(episode)
FROM episode_events WHERE kind = 'ended' GROUP BY run_id, stop_cause
UNION ALL
SELECT run_id, 4, 'judged', code, uniqExact(episode) FROM verdicts GROUP BY run_id, code
UNION ALL
SELECT run_id, 5, 'assembled', termination, uniqExact(episode)
FROM trajectories GROUP BY run_id, termination
UNION ALL
SELECT run_id, 6, 'admitted', '', uniqExact(episode)
FROM gate_members WHERE outcome = 'admit' GROUP BY run_id
UNION ALL
SELECT run_id, 7, 'dropped', reason, uniqExact(episode)
FROM gate_members WHERE outcome = 'drop' GROUP BY run_id, reason
UNION ALL
-- What was admitted and neither skipped nor trained when the learner closed the run; marks follow
-- the rows of a closed run by `sink.rollup_interval_s`.
SELECT run_id, 7, 'dropped', 'run_ended', count()
FROM episode_marks FINAL
WHERE bitAnd(facts, 16 + 32 + 4) = 16
  AND run_id IN (SELECT run_id FROM learner_events WHERE kind = 'closed')
GROUP BY run_id
UNION ALL
SELECT run_id, 8, 'skipped', reason, uniqExact(episode)
FROM skipped_members GROUP BY run_id, reason
UNION ALL
SELECT run_id, 9, 'trained', '', uniqExact(episode) FROM trained_members GROUP BY run_id;

CREATE OR REPLACE VIEW token_funnel AS
SELECT run_id, entry.1 AS place, entry.2 AS stage, '' AS reason, entry.3 AS tokens
FROM (
  SELECT run_id, arrayJoin([
    (1, 'sampled', sumIf(`count`, kind = 'action')),
    (2, 'prefilled',
      sumIf(prefilled_tokens, kind = 'action' AND finish_reason NOT IN ('none', ''))),
    (3, 'reused', sumIf(reused_tokens, kind = 'action' AND finish_reason NOT IN ('none', '')))
  ]) AS entry
  FROM token_commits GROUP BY run_id HAVING countIf(kind = 'action') > 0
)
UNION ALL
SELECT run_id, entry.1, entry.2, '', entry.3
FROM (
  SELECT run_id, arrayJoin([
    (4, 'assembled', sum(c.action_tokens)), (5, 'superseded', sum(c.superseded_tokens))
  ]) AS entry
  FROM trajectories_counted AS c GROUP BY run_id
)
UNION ALL
SELECT run_id, 6, 'skipped', reason, sum(action_tokens)
FROM (
  SELECT run_id, reason, action_tokens FROM skipped_members
  ORDER BY run_id, episode, src_offset LIMIT 1 BY run_id, episode
)
GROUP BY run_id, reason
UNION ALL
SELECT run_id, entry.1, entry.2, entry.3, entry.4
FROM (
  SELECT run_id, arrayJoin(arrayConcat(
    [
      (7, 'masked', 'dis_low', toInt64(sum(masked_low))),
      (7, 'masked', 'dis_high', toInt64(sum(masked_high))),
      (8, 'trained', '', toInt64(sum(kept_tokens)))
    ],
    arrayMap(
      one -> (7, 'masked', one.1, toInt64(one.2)),
      CAST(sumMap(masked_other), 'Array(Tuple(String, Int64))')
    )
  )) AS entry
  FROM trained_members
  WHERE (run_id, ordinal, epoch) IN (SELECT run_id, ordinal, epoch FROM steps_counted)
  GROUP BY run_id
);

-- What rows say of each episode, from the marks that the sink makes of every minute. `facts`: 1
-- issued, 2 held out, 4 trained, 8 held out and assembled, 16 admitted, 32 skipped, 64 dropped, 128
-- abandoned, 256 sampled, 512 assembled. Of several reasons those of a skip stand before those of a
-- drop before those of giving up, each by its offset. An episode that was not issued has no outcome.
CREATE OR REPLACE VIEW episode_ledger AS
SELECT
  run_id, episode, toString(m.episode_id) AS episode_id, toString(m.group_id) AS group_id,
  toString(m.purpose) AS purpose,
  multiIf(
    NOT bitTest(m.facts, 0), '',
    bitTest(m.facts, 2), 'trained',
    bitTest(m.facts, 5) OR bitTest(m.facts, 6), 'dropped',
    bitTest(m.facts, 7), 'abandoned',
    bitTest(m.facts, 1) AND bitTest(m.facts, 3), 'evaluated',
    -- What was admitted and not trained when the learner closed the run is dropped by its end.
    bitTest(m.facts, 4) AND run_id IN (SELECT run_id FROM learner_events WHERE kind = 'closed'),
    'dropped',
    'pending'
  ) AS outcome,
  multiIf(
    outcome = 'dropped' AND NOT (bitTest(m.facts, 5) OR bitTest(m.facts, 6)), 'run_ended',
    outcome IN ('dropped', 'abandoned'), substring(m.reason, 18),
    ''
  ) AS reason,
  toDateTime64(m.issued_at, 3, 'UTC') AS issued_at,
  toDateTime64(m.assembled_at, 3, 'UTC') AS assembled_at,
  toInt64(m.action_tokens) AS action_tokens, toInt64(m.kept_tokens) AS kept_tokens,
  toInt64(m.masked_low) AS masked_low, toInt64(m.masked_high) AS masked_high,
  toInt64(m.masked_other) AS masked_other, arraySum(mapValues(m.sampled)) AS sampled_tokens,
  if(m.newest < 0, 0, m.newest - m.oldest) AS span_updates, toUInt16(m.facts) AS facts
FROM episode_marks AS m FINAL;

CREATE OR REPLACE VIEW episode_fates AS
SELECT run_id, episode_id, group_id, purpose, outcome, reason, episode, issued_at
FROM episode_ledger WHERE bitTest(facts, 0);

CREATE OR REPLACE VIEW episode_accounts AS
SELECT run_id, episode_id, group_id, purpose, outcome, reason, kept_tokens, masked_low,
  masked_high, masked_other, action_tokens, episode
FROM episode_ledger WHERE bitTest(facts, 0);

CREATE OR REPLACE VIEW trajectory_accounts AS
SELECT run_id, outcome, reason, count() AS n
FROM episode_fates GROUP BY run_id, outcome, reason;

CREATE OR REPLACE VIEW token_accounts AS
SELECT run_id, entry.1 AS outcome, entry.2 AS reason, sum(entry.3) AS tokens
FROM (
  SELECT run_id, arrayJoin(if(
    fate = 'trained',
    [
      ('trained', '', kept), ('masked', 'dis_low', low), ('masked', 'dis_high', high),
      ('masked', 'other', other), ('superseded', '', sampled - counted)
    ],
    [
      (if(fate = '', 'pending', fate), why, counted), ('superseded', '', sampled - counted)
    ]
  )) AS entry
  FROM (
    SELECT
      run_id, e.outcome AS fate, e.reason AS why,
      sum(e.kept_tokens) AS kept, sum(e.masked_low) AS low, sum(e.masked_high) AS high,
      sum(e.masked_other) AS other, sum(e.sampled_tokens) AS sampled,
      -- What is on the line that counts; anything more was sampled and does not count.
      sum(multiIf(
        e.outcome = 'trained', e.kept_tokens + e.masked_low + e.masked_high + e.masked_other,
        e.outcome = '', 0,
        e.action_tokens > 0, e.action_tokens,
        e.outcome IN ('abandoned', 'pending'), e.sampled_tokens,
        0
      )) AS counted
    FROM episode_ledger AS e WHERE bitTest(facts, 8)
    GROUP BY run_id, fate, why
  )
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
  run_id, toString(m.episode_id) AS episode_id, attempt, toString(m.worker) AS worker,
  toInt64(m.began) * 1000 AS began, toInt64(m.ended) * 1000 AS ended, episode
FROM attempt_marks AS m FINAL
WHERE m.began < 9223372036854775807;

-- How long each stage worked: the union of what a worker did, averaged over the workers of the
-- stage that did anything. Formula F1: the slowest stage bounds the rate.
CREATE OR REPLACE VIEW stage_busy AS
SELECT run_id, stage, avg(us) / 1000000 AS busy_s, count() AS workers
FROM (
  SELECT run_id, 'rollout' AS stage, worker, intervalLengthSum(began, ended) AS us
  FROM episode_runs GROUP BY run_id, worker
  UNION ALL
  SELECT run_id, 'verify', writer_id,
    intervalLengthSum(toUnixTimestamp64Micro(at) - duration_us, toUnixTimestamp64Micro(at))
  FROM verdicts GROUP BY run_id, writer_id
  UNION ALL
  SELECT run_id, 'sync', worker_id,
    intervalLengthSum(
      toUnixTimestamp64Micro(at) - fetch_us - pause_us, toUnixTimestamp64Micro(at)
    )
  FROM refreshes WHERE fetch_us + pause_us > 0 GROUP BY run_id, worker_id
)
GROUP BY run_id, stage
UNION ALL
SELECT run_id, 'learn', sum(
    arraySum(mapValues(phases_us)) - phases_us['wait_batch'] - phases_us['paused'] - phases_us['start']
  ) / 1000000, uniqExact(learner_id)
FROM learner_events WHERE kind = 'step' GROUP BY run_id;

-- Rows of one kind each, put together by run: each join takes the engine longer to plan than to
-- make. A worker that is being refreshed holds its episodes up: that time is the refresh's.
CREATE OR REPLACE VIEW throughput AS
WITH arrayReverseSort(arrayMap(
  one -> (one.2 - if(one.1 = 'rollout', sumIf(busy, what = 'sync'), 0), one.1),
  groupArrayIf((what, busy), what NOT IN ('wall', 'tokens'))
))[1] AS busiest
SELECT
  run_id, max(wall) AS wall_s, max(sampled) AS raw_tokens, max(kept) AS trained_tokens,
  max(trained) AS trained_trajectories,
  if(wall_s > 0, raw_tokens / wall_s, 0) AS raw_tokens_per_s,
  if(wall_s > 0, trained_tokens / wall_s, 0) AS effective_tokens_per_s,
  if(wall_s > 0, trained_trajectories / wall_s, 0) AS effective_trajectories_per_s,
  busiest.2 AS bottleneck, busiest.1 AS bottleneck_busy_s,
  if(bottleneck_busy_s > 0, trained_tokens / bottleneck_busy_s, 0) AS bound_tokens_per_s
FROM (
  SELECT run_id, 'wall' AS what, wall_s AS wall, 0 AS sampled, 0 AS kept, 0 AS trained, 0 AS busy
  FROM run_wall
  UNION ALL
  SELECT run_id, 'tokens', 0, toInt64(sum(q.s)), 0, 0, 0
  FROM quantity_1h AS q WHERE quantity = 'commit_size_tokens' GROUP BY run_id
  UNION ALL
  SELECT run_id, 'tokens', 0, 0, sum(kept_tokens), uniqExact(episode), 0
  FROM trained_members
  WHERE (run_id, ordinal, epoch) IN (SELECT run_id, ordinal, epoch FROM steps_counted)
  GROUP BY run_id
  UNION ALL
  SELECT run_id, stage, 0, 0, 0, 0, busy_s FROM stage_busy
)
GROUP BY run_id
HAVING countIf(what = 'wall') > 0;

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
  WHERE (run_id, ordinal, epoch) IN (SELECT run_id, ordinal, epoch FROM steps_counted)
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

-- When nine tenths of a batch stood on gated. Unit: us.
CREATE OR REPLACE VIEW batches_gated AS
SELECT m.run_id AS run_id, m.epoch AS epoch, m.number AS number,
  toInt64(quantileExact(0.9)(toUnixTimestamp64Milli(g.ts))) * 1000 AS late_us
FROM trained_members AS m
JOIN gated AS g
ON m.run_id = g.run_id AND m.partition = toInt64(g.src_partition)
  AND m.offset = toInt64(g.src_offset)
GROUP BY run_id, epoch, number;

-- One row a step: its wait for a batch, and what else there was meanwhile. Unit: us. refreshed_us is
-- how long workers stood still in it, averaged over them, idle_us how long no episode ran; of the
-- whole run, run_us is how long all episodes ran, exposure_us how long tokens waited for the broker.
--
-- Everything lies on one line of time and is looked through once: a join by time would not let a
-- filter on the run reach its right side, and each join takes the engine longer to plan than to make,
-- as does each column of what is put together. n intervals had begun and not ended by a moment, and s
-- is the sum of their beginnings less that of the ends that were: n * moment - s is how long all
-- lasted until then. s may pass 2^63 and come back; the difference is right all the same.
CREATE OR REPLACE VIEW step_waits AS
SELECT
  run_id, epoch, number, maxIf(value, what = 'ended') AS ordinal,
  wait_ended - wait_began AS wait_us,
  maxIf(moment, what = 'began') AS wait_began, maxIf(moment, what = 'ended') AS wait_ended,
  anyIf(phases, what = 'ended') AS phases_us, maxIf(value, what = 'late') AS late_us,
  (sumIf(paused, what = 'ended') - sumIf(paused, what = 'began')) / greatest(1, max(workers_n))
    AS refreshed_us,
  sumIf(idle, what = 'ended') - sumIf(idle, what = 'began') AS idle_us,
  max(ran) AS run_us, max(exposed) AS exposure_us
FROM (
  SELECT
    run_id, epoch, number, what, moment, value, phases,
    sumIf(value, what = 'pause') OVER so_far * moment
      - sumIf(value * moment, what = 'pause') OVER so_far AS paused,
    sumIf(value, what = 'gap') OVER so_far * moment
      - sumIf(value * moment, what = 'gap') OVER so_far AS idle,
    maxIf(value, what = 'workers') OVER so_far AS workers_n,
    maxIf(value, what = 'ran') OVER so_far AS ran,
    maxIf(value, what = 'exposed') OVER so_far AS exposed
  FROM (
    SELECT
      run_id, epoch, number, edge.1 AS what, edge.2 AS moment, ordinal AS value,
      phases_us AS phases
    FROM step_times ARRAY JOIN [('began', wait_began), ('ended', wait_ended)] AS edge
    UNION ALL
    SELECT run_id, epoch, number, 'late', 0, late_us, map() FROM batches_gated
    UNION ALL
    SELECT run_id, 0, 0, edge.1, edge.2, edge.3, map()
    FROM (
      SELECT run_id, arrayPushFront(
        arrayFlatten(groupArrayIf([
          ('pause', toUnixTimestamp64Micro(at) - pause_us, toInt64(1)),
          ('pause', toUnixTimestamp64Micro(at), toInt64(-1))
        ], pause_us > 0)),
        ('workers', toInt64(0), toInt64(uniqExact(worker_id)))
      ) AS edges
      FROM refreshes GROUP BY run_id
      UNION ALL
      -- After as many had begun as have ended none runs, until the next begins.
      SELECT run_id, arrayPushFront(
        arrayFlatten(arrayMap(gap -> [('gap', gap.1, toInt64(1)), ('gap', gap.2, toInt64(-1))],
          arrayFilter(gap -> gap.2 > gap.1, arrayZip(
            arrayPopBack(arraySort(groupArray(one.ended))),
            arrayPopFront(arraySort(groupArray(one.began)))
          ))
        )),
        ('ran', toInt64(0), sum(one.ended - one.began))
      ) AS edges
      FROM episode_runs AS one GROUP BY run_id
      UNION ALL
      SELECT run_id, [('exposed', toInt64(0), toInt64(round(sum(q.s) * 1000)))] AS edges
      FROM quantity_1h AS q WHERE quantity = 'exposure_wait_ms' GROUP BY run_id
    )
    ARRAY JOIN edges AS edge
  )
  WINDOW so_far AS (PARTITION BY run_id ORDER BY moment)
)
WHERE what IN ('began', 'ended', 'late')
GROUP BY run_id, epoch, number
HAVING countIf(what = 'ended') > 0;

-- Where the learner's time went. Waiting for a batch is given to its causes one after the other, so
-- that causes and phases sum to the whole: refresh, while workers stood still (averaged over them);
-- straggler, once nine tenths of the batch stood on gated; backpressure, while no episode ran though
-- the learner waited; commit, the share of an episode's time that its tokens waited for the broker;
-- batch_not_full, the rest.
CREATE OR REPLACE VIEW wait_attribution AS
WITH
  least(wait_us, toInt64(refreshed_us)) AS refresh,
  if(
    late_us > 0,
    least(wait_us - refresh, greatest(0, wait_ended - greatest(wait_began, late_us))),
    0
  ) AS straggler,
  least(wait_us - refresh - straggler, idle_us) AS backpressure,
  wait_us - refresh - straggler - backpressure AS rest,
  toInt64(rest * if(run_us > 0, least(1, exposure_us / run_us), 0)) AS commit
SELECT run_id, epoch, ordinal, kind, cause, us / 1000000 AS spent_s
FROM step_waits
-- The function arrayJoin would keep a filter on the run from reaching the rows.
ARRAY JOIN
  arrayConcat(
    ['wait', 'wait', 'wait', 'wait', 'wait'],
    arrayMap(one -> if(one = 'paused', 'wait', 'work'), mapKeys(phases_us))
  ) AS kind,
  arrayConcat(
    ['refresh', 'straggler', 'backpressure', 'commit', 'batch_not_full'], mapKeys(phases_us)
  ) AS cause,
  arrayConcat([refresh, straggler, backpressure, commit, rest - commit], mapValues(phases_us)) AS us
WHERE us != 0 AND cause != 'wait_batch';

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
