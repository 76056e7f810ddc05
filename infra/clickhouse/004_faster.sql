-- migration 4: what the dashboards ask of every row, kept with the rows; percentiles per hour
--
-- A projection is written with the rows of each insert and merged with them, so that it never says
-- anything but what they say. The engine takes it for a query whose aggregates are written alike.

ALTER TABLE token_commits ADD PROJECTION IF NOT EXISTS by_writer (
  SELECT run_id, writer_id, min(ts), max(ts),
    countIf(kind = 'action'),
    sumIf(`count`, kind = 'action'),
    sumIf(prefilled_tokens, kind = 'action' AND finish_reason NOT IN ('none', '')),
    sumIf(reused_tokens, kind = 'action' AND finish_reason NOT IN ('none', '')),
    countIf(toUnixTimestamp64Micro(at) / 1000 > toUnixTimestamp64Milli(ts) + 1000),
    countIf(toUnixTimestamp64Micro(at) / 1000 < toUnixTimestamp64Milli(ts) - 60000)
  GROUP BY run_id, writer_id
);

ALTER TABLE token_commits MATERIALIZE PROJECTION by_writer;

ALTER TABLE token_commits ADD PROJECTION IF NOT EXISTS by_episode (
  SELECT run_id, episode_id, epoch, number, countIf(kind = 'action'),
    sumIf(`count`, kind = 'action')
  GROUP BY run_id, episode_id, epoch, number
);

ALTER TABLE token_commits MATERIALIZE PROJECTION by_episode;

ALTER TABLE episode_events ADD PROJECTION IF NOT EXISTS by_attempt (
  SELECT run_id, episode_id, attempt,
    anyIf(worker_id, kind = 'leased'),
    countIf(kind = 'leased'),
    minIf(toUnixTimestamp64Milli(ts), kind = 'leased'),
    maxIf(toUnixTimestamp64Milli(ts), kind IN ('leased', 'progress', 'paused', 'ended'))
  GROUP BY run_id, episode_id, attempt
);

ALTER TABLE episode_events MATERIALIZE PROJECTION by_attempt;

-- Made from quantity_minutes, hour by hour; of several makings of an hour the newest counts. Read it
-- through quantity_1h.
CREATE TABLE IF NOT EXISTS quantity_hours (
  `t` DateTime('UTC'),
  `run_id` LowCardinality(String),
  `quantity` LowCardinality(String),
  `environment` LowCardinality(String),
  `worker` LowCardinality(String),
  `q` AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64),
  `n` UInt64,
  `bad` UInt64,
  `s` Float64,
  `mn` Float64,
  `mx` Float64,
  `rolled` Int64
)
ENGINE = ReplacingMergeTree(rolled) PARTITION BY toYYYYMM(t)
ORDER BY (run_id, quantity, t, environment, worker);
