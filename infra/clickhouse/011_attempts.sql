-- migration 11: when each attempt of an episode ran, in one row
--
-- Marked and merged as episodes are in migration 9. Read them through episode_runs. Unit of began and
-- ended: ms, broker time.

CREATE TABLE IF NOT EXISTS attempt_marks (
  `run_id` LowCardinality(String),
  `ordinal` UInt64,
  `episode` UInt64,
  `attempt` Int64,
  `episode_id` SimpleAggregateFunction(max, String),
  `worker` SimpleAggregateFunction(max, LowCardinality(String)),
  `began` SimpleAggregateFunction(min, Int64),
  `ended` SimpleAggregateFunction(max, Int64)
)
ENGINE = AggregatingMergeTree ORDER BY (run_id, ordinal, episode, attempt)
SETTINGS min_age_to_force_merge_seconds = 600;

-- Nothing groups events by attempt any more.
ALTER TABLE episode_events DROP PROJECTION IF EXISTS by_run;
