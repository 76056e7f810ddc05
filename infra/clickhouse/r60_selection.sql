-- repeatable selection: whether what is trained has the lengths of what was offered
--
-- Offered are the trajectories for training whose fate is known: trained or dropped. What is pending
-- is left out, or the newest window would always look short.

CREATE OR REPLACE VIEW settled_lengths AS
SELECT
  a.run_id AS run_id, a.episode_id AS episode_id, a.outcome = 'trained' AS is_trained,
  j.tokens AS action_tokens, s.span AS span_updates,
  row_number() OVER (PARTITION BY a.run_id ORDER BY j.first_at, a.episode_id) - 1 AS place
FROM episode_fates AS a
JOIN (
  SELECT run_id, episode_id, min(ts) AS first_at, argMin(t.action_tokens, t.src_offset) AS tokens
  FROM trajectories AS t GROUP BY run_id, episode_id
) AS j ON a.run_id = j.run_id AND a.episode_id = j.episode_id
LEFT JOIN (
  SELECT c.run_id AS run_id, c.episode_id AS episode_id, max(p.ordinal) - min(p.ordinal) AS span
  FROM (
    SELECT run_id, episode_id, epoch, number FROM token_commits
    GROUP BY run_id, episode_id, epoch, number HAVING countIf(kind = 'action') > 0
  ) AS c
  JOIN (SELECT DISTINCT run_id, epoch, number, ordinal FROM policies) AS p
  ON c.run_id = p.run_id AND c.epoch = p.epoch AND c.number = p.number
  GROUP BY run_id, episode_id
) AS s ON a.run_id = s.run_id AND a.episode_id = s.episode_id
WHERE a.purpose = 'train' AND a.outcome IN ('trained', 'dropped');

-- Windows of 1,000 in the order of assembly, and the whole run as window -1. Kolmogorov's distance
-- of the trained lengths to all offered ones; p by the asymptotic law in Stephens' form, as of
-- two independent samples, which errs on the side of no alarm.
CREATE OR REPLACE VIEW selection_by_length AS
WITH
  sqrt(d.offered * d.trained / greatest(1, d.offered + d.trained)) AS root,
  d.distance * (root + 0.12 + 0.11 / greatest(0.01, root)) AS lambda
SELECT
  d.run_id AS run_id, d.part AS part, d.offered AS offered, d.trained AS trained,
  d.distance AS distance,
  if(
    d.trained = 0 OR lambda < 0.2, 1,
    least(1, greatest(0, 2 * arraySum(
      k -> if(k % 2 = 1, 1, -1) * exp(-2 * k * k * lambda * lambda), range(1, 21)
    )))
  ) AS p,
  s.q[1] AS span_p50, s.q[2] AS span_p95, s.q[3] AS span_p99,
  d.offered >= 1000 AND d.distance > 0.1 AS is_alarm
FROM (
  SELECT run_id, part, max(total) AS offered, max(total_trained) AS trained,
    if(trained > 0, max(abs(seen / total - seen_trained / greatest(1, total_trained))), 0) AS distance
  FROM (
    SELECT run_id, part,
      sum(n) OVER (PARTITION BY run_id, part ORDER BY action_tokens) AS seen,
      sum(n_trained) OVER (PARTITION BY run_id, part ORDER BY action_tokens) AS seen_trained,
      sum(n) OVER (PARTITION BY run_id, part) AS total,
      sum(n_trained) OVER (PARTITION BY run_id, part) AS total_trained
    FROM (
      SELECT run_id, arrayJoin([toInt64(-1), toInt64(intDiv(place, 1000))]) AS part, action_tokens,
        count() AS n, countIf(is_trained) AS n_trained
      FROM settled_lengths GROUP BY run_id, part, action_tokens
    )
  )
  GROUP BY run_id, part
) AS d
LEFT JOIN (
  SELECT run_id, arrayJoin([toInt64(-1), toInt64(intDiv(place, 1000))]) AS part,
    quantilesExact(0.5, 0.95, 0.99)(span_updates) AS q
  FROM settled_lengths GROUP BY run_id, part
) AS s ON d.run_id = s.run_id AND d.part = s.part;
