-- repeatable selection: whether what is trained has the lengths of what was offered
--
-- Offered are the trajectories for training whose fate is known: trained or dropped. What is pending
-- is left out, or the newest window would always look short.

CREATE OR REPLACE VIEW settled_lengths AS
SELECT
  run_id, episode_id, outcome = 'trained' AS is_trained, action_tokens, span_updates,
  row_number() OVER (PARTITION BY run_id ORDER BY assembled_at, episode) - 1 AS place
FROM episode_ledger
WHERE purpose = 'train' AND outcome IN ('trained', 'dropped') AND bitTest(facts, 9);

-- Windows of 1,000 in the order of assembly, and the whole run as window -1. Kolmogorov's distance
-- of the trained lengths to all offered ones; p by the asymptotic law in Stephens' form, as of
-- two independent samples, which errs on the side of no alarm. `lengths` holds, in their order,
-- twice the tokens of each trajectory, and one more where it was trained; where a length ends, the
-- two shares up to there are compared.
CREATE OR REPLACE VIEW selection_by_length AS
WITH
  arraySort(d.lengths) AS ordered,
  arrayCumSum(one -> bitAnd(one, 1), ordered) AS seen_trained,
  sqrt(offered * trained / greatest(1, offered + trained)) AS root,
  distance * (root + 0.12 + 0.11 / greatest(0.01, root)) AS lambda
SELECT
  d.run_id AS run_id, d.part AS part, length(d.lengths) AS offered,
  toUInt64(seen_trained[-1]) AS trained,
  if(trained > 0, arrayMax(arrayMap(
    (one, next, seen, chosen) -> if(
      bitShiftRight(one, 1) = bitShiftRight(next, 1), 0,
      abs(seen / offered - chosen / greatest(1, trained))
    ),
    ordered, arrayPushBack(arrayPopFront(ordered), toInt64(-2)), arrayEnumerate(ordered),
    seen_trained
  )), 0) AS distance,
  if(
    trained = 0 OR lambda < 0.2, 1,
    least(1, greatest(0, 2 * arraySum(
      k -> if(k % 2 = 1, 1, -1) * exp(-2 * k * k * lambda * lambda), range(1, 21)
    )))
  ) AS p,
  d.q[1] AS span_p50, d.q[2] AS span_p95, d.q[3] AS span_p99,
  offered >= 1000 AND distance > 0.1 AS is_alarm
FROM (
  SELECT run_id, arrayJoin([toInt64(-1), toInt64(intDiv(place, 1000))]) AS part,
    groupArray(2 * action_tokens + is_trained) AS lengths,
    quantilesExact(0.5, 0.95, 0.99)(span_updates) AS q
  FROM settled_lengths GROUP BY run_id, part
) AS d;
