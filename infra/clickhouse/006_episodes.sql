-- migration 6: the number of an episode, beside its name
--
-- Facts of episodes are counted and joined by `episode`, a hash of run and name: eight bytes instead
-- of some fifty. Of ten million episodes two have the same one with a chance of three in a million.
-- Parts that are older work it out as they are read, until they merge.

ALTER TABLE episode_events
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE trajectories
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE gate_members
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE trained_members
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE skipped_members
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE verdicts
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);

ALTER TABLE verify_requests
  ADD COLUMN IF NOT EXISTS `episode` UInt64 MATERIALIZED cityHash64(run_id, episode_id);
