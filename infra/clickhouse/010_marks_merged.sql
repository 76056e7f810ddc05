-- migration 10: marks of episodes are merged within ten minutes
--
-- Whoever reads them puts together what is not merged yet. Two large parts, as a start leaves that
-- marked all minutes anew, would stay apart for long, and quadruple what a question takes.

ALTER TABLE episode_marks MODIFY SETTING min_age_to_force_merge_seconds = 600;
