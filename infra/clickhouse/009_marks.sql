-- migration 9: what became of each episode, in one row
--
-- The sink marks the episodes of minutes that got rows; marks of one episode are put together by
-- merging. Read them through episode_ledger. `reason` has its rank in front, `action_tokens` the
-- offset of its trajectory turned about, `kept_tokens` and `masked_*` their version: of such numbers
-- the lower 64 bits are what is told. `sampled` has the tokens of each minute.

CREATE TABLE IF NOT EXISTS episode_marks (
  `run_id` LowCardinality(String),
  `ordinal` UInt64,
  `episode` UInt64,
  `facts` SimpleAggregateFunction(groupBitOr, UInt16),
  `episode_id` SimpleAggregateFunction(max, String),
  `group_id` SimpleAggregateFunction(max, String),
  `purpose` SimpleAggregateFunction(max, LowCardinality(String)),
  `issued_at` SimpleAggregateFunction(min, DateTime64(3, 'UTC')) DEFAULT '2299-12-31 00:00:00',
  `assembled_at` SimpleAggregateFunction(min, DateTime64(3, 'UTC')) DEFAULT '2299-12-31 00:00:00',
  `reason` SimpleAggregateFunction(max, String),
  `action_tokens` SimpleAggregateFunction(max, UInt128),
  `kept_tokens` SimpleAggregateFunction(max, UInt128),
  `masked_low` SimpleAggregateFunction(max, UInt128),
  `masked_high` SimpleAggregateFunction(max, UInt128),
  `masked_other` SimpleAggregateFunction(max, UInt128),
  `oldest` SimpleAggregateFunction(min, Int64) DEFAULT 9223372036854775807,
  `newest` SimpleAggregateFunction(max, Int64) DEFAULT -1,
  `sampled` SimpleAggregateFunction(maxMap, Map(DateTime('UTC'), Int64))
)
ENGINE = AggregatingMergeTree ORDER BY (run_id, ordinal, episode);

-- Nothing groups commits by their episode any more.
ALTER TABLE token_commits DROP PROJECTION IF EXISTS by_number;
