-- migration 7: projections by the number of an episode, and that number in older parts
--
-- Grouping a long run by its episodes costs most in the grouping itself, and a third less by numbers
-- than by names. Parts from before migration 6 get the number now instead of when they merge.

ALTER TABLE episode_events MATERIALIZE COLUMN `episode`;

ALTER TABLE trajectories MATERIALIZE COLUMN `episode`;

ALTER TABLE gate_members MATERIALIZE COLUMN `episode`;

ALTER TABLE trained_members MATERIALIZE COLUMN `episode`;

ALTER TABLE skipped_members MATERIALIZE COLUMN `episode`;

ALTER TABLE verdicts MATERIALIZE COLUMN `episode`;

ALTER TABLE verify_requests MATERIALIZE COLUMN `episode`;

ALTER TABLE token_commits DROP PROJECTION IF EXISTS by_episode;

ALTER TABLE token_commits ADD PROJECTION IF NOT EXISTS by_number (
  SELECT run_id, cityHash64(run_id, episode_id), epoch, number, countIf(kind = 'action'),
    sumIf(`count`, kind = 'action')
  GROUP BY run_id, cityHash64(run_id, episode_id), epoch, number
);

ALTER TABLE token_commits MATERIALIZE PROJECTION by_number;

ALTER TABLE episode_events DROP PROJECTION IF EXISTS by_attempt;

ALTER TABLE episode_events ADD PROJECTION IF NOT EXISTS by_run (
  SELECT run_id, episode, attempt,
    anyIf(worker_id, kind = 'leased'),
    countIf(kind = 'leased'),
    minIf(toUnixTimestamp64Milli(ts), kind = 'leased'),
    maxIf(toUnixTimestamp64Milli(ts), kind IN ('leased', 'progress', 'paused', 'ended'))
  GROUP BY run_id, episode, attempt
);

ALTER TABLE episode_events MATERIALIZE PROJECTION by_run;
