-- migration 1: one table per record type, and where the sink stands
--
-- Every row carries its run, the broker's time (ts) and its place in the log (src_*). `at` is the
-- writer's clock. Columns follow the fields of schemas/avro; lengths of time keep their unit in the
-- name, moments are DateTime64. A deduplication window makes a repeated insert of the same offsets
-- leave no second row.

CREATE TABLE IF NOT EXISTS tasks (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `task_id` String,
  `group_id` String,
  `ordinal` Int64,
  `purpose` LowCardinality(String),
  `stream` LowCardinality(String),
  `environment` LowCardinality(String),
  `environment_digest` String,
  `verifier_digest` String,
  `payload` String,
  `group_size` Int64,
  `tokens_max` Int64,
  `turn_tokens_max` Int64,
  `turns_max` Int64,
  `seconds_max` Float64,
  `temperature` Float64,
  `top_p` Float64,
  `top_k` Int64,
  `seed` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, ordinal, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS episode_events (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `kind` LowCardinality(String),
  `task_id` String,
  `ordinal` Int64,
  `member` Int64,
  `purpose` LowCardinality(String),
  `attempt` Int64,
  `scheduler_epoch` Int64,
  `scheduler_id` LowCardinality(String),
  `group_size` Int64,
  `policy_ordinal` Int64,
  `worker_id` LowCardinality(String),
  `lease_ms` Int64,
  `tokens_floor` Int64,
  `tool_events_floor` Int64,
  `after_failures` Map(LowCardinality(String), Int64),
  `abandon_reason` LowCardinality(String),
  `stop_cause` LowCardinality(String),
  `detail` String,
  `wal_position` Int64,
  `tool_position` Int64,
  `fence_number` Int64,
  `last_seq` Int64,
  `token_count` Int64,
  `turns` Int64,
  `tool_calls` Int64,
  `at_gateway` Bool,
  `until_at` DateTime64(6, 'UTC'),
  `snapshot_id` String,
  `reset_us` Int64,
  `step_us` Int64,
  `queue_us` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `task_frame_bytes` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS token_commits (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `attempt` Int64,
  `fence_number` Int64,
  `writer_id` LowCardinality(String),
  `incarnation` LowCardinality(String),
  `producer_number` Int64,
  `kind` LowCardinality(String),
  `branch` Int64,
  `turn` Int64,
  `seq` Int64,
  `start` Int64,
  `count` Int64,
  `finish_reason` LowCardinality(String),
  `cut_reason` LowCardinality(String),
  `drift` LowCardinality(String),
  `rests_on` Int64,
  `result_offset` Int64,
  `crc32c` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `epoch` Int64,
  `number` Int64,
  `requested_at` DateTime64(6, 'UTC'),
  `first_token_at` DateTime64(6, 'UTC'),
  `last_token_at` DateTime64(6, 'UTC'),
  `prefilled_tokens` Int64,
  `reused_tokens` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS tool_events (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `kind` LowCardinality(String),
  `attempt` Int64,
  `writer_id` LowCardinality(String),
  `incarnation` LowCardinality(String),
  `branch` Int64,
  `turn` Int64,
  `call` Int64,
  `call_key` String,
  `tool` LowCardinality(String),
  `idempotent` Bool,
  `external` Bool,
  `deadline_at` DateTime64(6, 'UTC'),
  `wal_position` Int64,
  `intent_offset` Int64,
  `output_digest` String,
  `truncation` String,
  `exit_class` LowCardinality(String),
  `status_raw` String,
  `replayed` Bool,
  `duration_us` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `arguments_bytes` Int64,
  `output_bytes` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS verify_requests (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `task_id` String,
  `attempt` Int64,
  `purpose` LowCardinality(String),
  `environment` LowCardinality(String),
  `environment_digest` String,
  `verifier_digest` String,
  `stop_cause` LowCardinality(String),
  `wal_position` Int64,
  `deadline_at` DateTime64(6, 'UTC'),
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `transcript_bytes` Int64,
  `artifact_bytes` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS verdicts (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `attempt` Int64,
  `verifier_digest` String,
  `code` LowCardinality(String),
  `reward` Nullable(Float64),
  `components` Map(LowCardinality(String), Float64),
  `component_weights` Map(LowCardinality(String), Float64),
  `evidence_id` String,
  `evidence` String,
  `clock_owner` LowCardinality(String),
  `tries` Int64,
  `cost_s` Float64,
  `request_offset` Int64,
  `queued_us` Int64,
  `duration_us` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS trajectories (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `task_id` String,
  `ordinal` Int64,
  `member` Int64,
  `group_size` Int64,
  `purpose` LowCardinality(String),
  `environment` LowCardinality(String),
  `stream` LowCardinality(String),
  `attempt` Int64,
  `schema_version` Int64,
  `policy_digest` String,
  `tokenizer_digest` String,
  `template_digest` String,
  `tool_schema_digest` String,
  `environment_digest` String,
  `verifier_digest` String,
  `version_switch` LowCardinality(String),
  `oldest_epoch` Int64,
  `oldest_number` Int64,
  `termination` LowCardinality(String),
  `stop_cause` LowCardinality(String),
  `verdict_code` LowCardinality(String),
  `reward` Nullable(Float64),
  `reward_components` Map(LowCardinality(String), Float64),
  `reward_source` LowCardinality(String),
  `attribution` String,
  `tokens` Int64,
  `action_tokens` Int64,
  `prompt_tokens` Int64,
  `observation_tokens` Int64,
  `masked` Map(LowCardinality(String), Int64),
  `superseded_tokens` Int64,
  `turns` Int64,
  `tool_calls` Int64,
  `tool_errors` Int64,
  `payload_length` Int64,
  `payload_crc32c` Int64,
  `temperature` Float64,
  `top_p` Float64,
  `top_k` Int64,
  `tokens_first` Int64,
  `tokens_end` Int64,
  `ended_offset` Int64,
  `verdict_offset` Int64,
  `issued_at` DateTime64(6, 'UTC'),
  `first_token_at` DateTime64(6, 'UTC'),
  `ended_at` DateTime64(6, 'UTC'),
  `verified_at` DateTime64(6, 'UTC'),
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `spans_n` Int64,
  `chunks_n` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS gate_decisions (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `group_id` String,
  `task_id` String,
  `ordinal` Int64,
  `group_mean` Float64,
  `group_deviation` Float64,
  `group_count` Int64,
  `learner_epoch` Int64,
  `learner_ordinal` Int64,
  `draining` Bool,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `members_n` Int64,
  `abandoned_n` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, group_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS gate_members (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `group_id` String,
  `learner_ordinal` Int64,
  `writer_id` LowCardinality(String),
  `episode_id` String,
  `trajectory_offset` Int64,
  `outcome` LowCardinality(String),
  `reason` LowCardinality(String),
  `weight` Float64,
  `repeat` Int64,
  `lag_steps` Int64,
  `age_ms` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, group_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS gated (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `episode_id` String,
  `group_id` String,
  `trajectory_offset` Int64,
  `trajectory_at` DateTime64(6, 'UTC'),
  `decision_offset` Int64,
  `input_offset` Int64,
  `weight` Float64,
  `repeat` Int64,
  `group_mean` Float64,
  `group_deviation` Float64,
  `group_count` Int64,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `trajectory_frame_bytes` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, episode_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS learner_events (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `kind` LowCardinality(String),
  `epoch` Int64,
  `learner_id` LowCardinality(String),
  `number` Int64,
  `ordinal` Int64,
  `parent_epoch` Int64,
  `parent_number` Int64,
  `policy_digest` String,
  `repeats` Int64,
  `checkpoint_id` String,
  `settled_cursor` Int64,
  `loss_name` LowCardinality(String),
  `losses` Map(LowCardinality(String), Float64),
  `metrics` Map(LowCardinality(String), Float64),
  `phases_us` Map(LowCardinality(String), Int64),
  `action_tokens` Int64,
  `kept_tokens` Int64,
  `rejected_low` Int64,
  `rejected_high` Int64,
  `canary` String,
  `counts` Map(LowCardinality(String), Int64),
  `detail` String,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `trained_n` Int64,
  `skipped_n` Int64,
  `adopted_n` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, epoch, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS trained_members (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `epoch` Int64,
  `number` Int64,
  `ordinal` Int64,
  `writer_id` LowCardinality(String),
  `episode_id` String,
  `group_id` String,
  `partition` Int64,
  `offset` Int64,
  `trajectory_offset` Int64,
  `environment` LowCardinality(String),
  `lag_steps` Int64,
  `lag_s` Float64,
  `kl` Float64,
  `age_ms` Int64,
  `first_token_age_ms` Int64,
  `action_tokens` Int64,
  `kept_tokens` Int64,
  `masked_low` Int64,
  `masked_high` Int64,
  `masked_other` Map(LowCardinality(String), Int64),
  `reward` Float64,
  `advantage` Float64,
  `weight` Float64,
  `repeat` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, ordinal, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS skipped_members (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `epoch` Int64,
  `ordinal` Int64,
  `writer_id` LowCardinality(String),
  `episode_id` String,
  `partition` Int64,
  `offset` Int64,
  `reason` LowCardinality(String),
  `lag_steps` Int64,
  `age_ms` Int64,
  `action_tokens` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS policies (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `epoch` Int64,
  `number` Int64,
  `ordinal` Int64,
  `parent_epoch` Int64,
  `parent_number` Int64,
  `digest` String,
  `location` String,
  `bytes_total` Int64,
  `tokenizer_digest` String,
  `template_digest` String,
  `precision` String,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, ordinal, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS refreshes (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `worker_id` LowCardinality(String),
  `incarnation` LowCardinality(String),
  `kind` LowCardinality(String),
  `epoch` Int64,
  `number` Int64,
  `digest` String,
  `fetch_us` Int64,
  `pause_us` Int64,
  `load_us` Int64,
  `probe_error` Float64,
  `inflight` Int64,
  `detail` String,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, worker_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS worker_states (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `worker_id` LowCardinality(String),
  `role` LowCardinality(String),
  `address` String,
  `capacity` Int64,
  `incarnation` LowCardinality(String),
  `status` LowCardinality(String),
  `epoch` Int64,
  `number` Int64,
  `host` String,
  `pid` Int64,
  `detail` String,
  `started_at` DateTime64(6, 'UTC'),
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, worker_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS metric_points (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `name` LowCardinality(String),
  `unit` LowCardinality(String),
  `value` Float64,
  `labels` Map(LowCardinality(String), String),
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String)
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, name, ts) TTL toDateTime(ts) + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS dead_letters (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `origin_topic` LowCardinality(String),
  `origin_partition` Int64,
  `origin_offset` Int64,
  `part` Int64,
  `parts` Int64,
  `schema_id` Int64,
  `error_class` String,
  `error` String,
  `consumer` LowCardinality(String),
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `raw_bytes` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, origin_topic, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS control_events (
  `run_id` LowCardinality(String),
  `ts` DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `src_offset` UInt64 CODEC(Delta, ZSTD(1)),
  `kind` LowCardinality(String),
  `counts` Map(LowCardinality(String), Int64),
  `scheduler_epoch` Int64,
  `scheduler_id` LowCardinality(String),
  `reason` String,
  `at` DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
  `writer_id` LowCardinality(String),
  `settings_bytes` Int64,
  `ends_n` Int64
)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (run_id, src_partition, src_offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS sink_ranges (
  `run_id` LowCardinality(String),
  `src_topic` LowCardinality(String),
  `src_partition` UInt16,
  `first` Int64,
  `last` Int64,
  `state` LowCardinality(String),
  `written` Int64
)
ENGINE = ReplacingMergeTree(written) ORDER BY (run_id, src_topic, src_partition);

CREATE TABLE IF NOT EXISTS metric_1m (
  `t` DateTime('UTC'),
  `run_id` LowCardinality(String),
  `name` LowCardinality(String),
  `q` AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64),
  `n` SimpleAggregateFunction(sum, UInt64),
  `s` SimpleAggregateFunction(sum, Float64),
  `mn` SimpleAggregateFunction(min, Float64),
  `mx` SimpleAggregateFunction(max, Float64),
  `bad` SimpleAggregateFunction(sum, UInt64)
)
ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(t) ORDER BY (run_id, name, t) TTL t + INTERVAL 365 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS metric_1m_mv TO metric_1m AS
SELECT
  toStartOfMinute(ts) AS t, run_id, name,
  quantilesTDigestStateIf(0.5, 0.95, 0.99)(value, isFinite(value)) AS q,
  count() AS n,
  sumIf(value, isFinite(value)) AS s,
  minIf(value, isFinite(value)) AS mn,
  maxIf(value, isFinite(value)) AS mx,
  countIf(NOT isFinite(value)) AS bad
FROM metric_points
GROUP BY t, run_id, name;
