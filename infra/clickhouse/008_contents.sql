-- migration 8: contents of the token log, for those who ask for them
--
-- Filled while `sink.token_contents` is set. The tokens are most of a run's bytes; what they read as
-- is told by the run's tokenizer, and by `sluice replay`.

CREATE TABLE IF NOT EXISTS token_contents (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `kind` LowCardinality(String),
  `attempt` Int64,
  `turn` Int64,
  `start` Int64,
  `token_ids` Array(Int32) CODEC(ZSTD(1)),
  `logprobs` Array(Float32) CODEC(ZSTD(1))
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;
