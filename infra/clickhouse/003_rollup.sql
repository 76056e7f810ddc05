-- migration 3: percentiles per minute, no row that ends by its age, retries of dead letters
--
-- quantity_minutes and metric_minutes are made from the rows, minute by minute; of several makings
-- of a minute the newest counts. Read them through quantity_1m and metric_1m. No table forgets rows
-- by their age: it would count others than the log, and a record from the far past would vanish as
-- it came.
--
-- formerly 0147d6dab7153b72f6561a26119de937a72d37bfa97d15aa104db3aa0d221a99

DROP VIEW IF EXISTS metric_1m_mv;

DROP TABLE IF EXISTS metric_1m;

CREATE TABLE IF NOT EXISTS metric_minutes (
  `t` DateTime('UTC'),
  `run_id` LowCardinality(String),
  `name` LowCardinality(String),
  `q` AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64),
  `n` UInt64,
  `bad` UInt64,
  `s` Float64,
  `mn` Float64,
  `mx` Float64,
  `rolled` Int64
)
ENGINE = ReplacingMergeTree(rolled) PARTITION BY toYYYYMM(t) ORDER BY (run_id, name, t);

CREATE TABLE IF NOT EXISTS quantity_minutes (
  `t` DateTime('UTC'),
  `run_id` LowCardinality(String),
  `quantity` LowCardinality(String),
  `environment` LowCardinality(String),
  `worker` LowCardinality(String),
  `epoch` Int64,
  `number` Int64,
  `q` AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64),
  `n` UInt64,
  `bad` UInt64,
  `s` Float64,
  `mn` Float64,
  `mx` Float64,
  `rolled` Int64
)
ENGINE = ReplacingMergeTree(rolled) PARTITION BY toYYYYMM(t)
ORDER BY (run_id, quantity, t, environment, worker, epoch, number);

-- How many rows a rollup made a minute from: where the table has others, it is made anew.
CREATE TABLE IF NOT EXISTS rolled_minutes (
  `rollup` LowCardinality(String),
  `t` DateTime('UTC'),
  `rows` UInt64,
  `definition` String,
  `rolled` Int64
)
ENGINE = ReplacingMergeTree(rolled) PARTITION BY toYYYYMM(t) ORDER BY (rollup, t);

-- Where the sink stands. `progress` rises with the offsets and not with a clock.
CREATE TABLE IF NOT EXISTS sink_progress (
  `run_id` LowCardinality(String),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `first` Int64,
  `last` Int64,
  `state` LowCardinality(String),
  `progress` Int64
)
ENGINE = ReplacingMergeTree(progress) ORDER BY (run_id, src_topic, src_partition);

INSERT INTO sink_progress
SELECT run_id, src_topic, src_partition, first, last, state, 2 * last + (state = 'after')
FROM sink_ranges FINAL;

-- On a server, where two sinks may run at once: the border of each range, chosen by whoever asked
-- first, since only the first insert under a token stands.
CREATE TABLE IF NOT EXISTS sink_borders (
  `run_id` LowCardinality(String),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `first` Int64,
  `last` Int64,
  `claimed` Int64
)
ENGINE = MergeTree ORDER BY (run_id, src_topic, src_partition, first)
SETTINGS non_replicated_deduplication_window = 10000;

-- What is not there cannot be removed, and a start that was killed may have removed it: one that ends
-- nothing is put in its place first.
ALTER TABLE metric_points MODIFY TTL toDateTime(4294967295 - 0 * src_partition)
  SETTINGS materialize_ttl_after_modify = 0;

ALTER TABLE metric_points REMOVE TTL SETTINGS materialize_ttl_after_modify = 0;

ALTER TABLE token_commits ADD INDEX IF NOT EXISTS ts_minmax ts TYPE minmax GRANULARITY 1;

ALTER TABLE metric_points ADD INDEX IF NOT EXISTS ts_minmax ts TYPE minmax GRANULARITY 1;

ALTER TABLE dead_letters
  ADD COLUMN IF NOT EXISTS `kind` LowCardinality(String),
  ADD COLUMN IF NOT EXISTS `retry_id` String,
  ADD COLUMN IF NOT EXISTS `copy_topic` String,
  ADD COLUMN IF NOT EXISTS `copy_partition` Int64,
  ADD COLUMN IF NOT EXISTS `copy_offset` Int64;

ALTER TABLE control_events
  ADD COLUMN IF NOT EXISTS `snapshot_bytes` Int64;

ALTER TABLE episode_events
  ADD COLUMN IF NOT EXISTS `incarnation` LowCardinality(String);
