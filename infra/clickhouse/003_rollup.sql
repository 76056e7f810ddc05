-- migration 3: percentiles per minute, no row that ends by its age, retries of dead letters
--
-- quantity_1m is filled by the views of the repeatable rollups. metric_points and its rollup are
-- kept as long as the topic keeps its records: a table that forgets would count other rows than the
-- log, and a record from the far past would vanish as it came.

CREATE TABLE IF NOT EXISTS quantity_1m (
  `t` DateTime('UTC'),
  `run_id` LowCardinality(String),
  `quantity` LowCardinality(String),
  `environment` LowCardinality(String),
  `worker` LowCardinality(String),
  `epoch` Int64,
  `number` Int64,
  `q` AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64),
  `n` SimpleAggregateFunction(sum, UInt64),
  `bad` SimpleAggregateFunction(sum, UInt64),
  `s` SimpleAggregateFunction(sum, Float64),
  `mn` SimpleAggregateFunction(min, Float64),
  `mx` SimpleAggregateFunction(max, Float64)
)
ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(t)
ORDER BY (run_id, quantity, t, environment, worker, epoch, number)
SETTINGS non_replicated_deduplication_window = 10000;

ALTER TABLE metric_points REMOVE TTL;

ALTER TABLE metric_1m REMOVE TTL;

ALTER TABLE dead_letters
  ADD COLUMN IF NOT EXISTS `kind` LowCardinality(String),
  ADD COLUMN IF NOT EXISTS `retry_id` String,
  ADD COLUMN IF NOT EXISTS `copy_topic` String,
  ADD COLUMN IF NOT EXISTS `copy_partition` Int64,
  ADD COLUMN IF NOT EXISTS `copy_offset` Int64;

ALTER TABLE control_events
  ADD COLUMN IF NOT EXISTS `snapshot_bytes` Int64;
