-- migration 5: projections made when parts merge, and not with every insert
--
-- Made with each insert they doubled what an insert of 5,000 commits took of the processor. Rows of
-- parts that did not merge yet are read as rows, so that a query sees them all the same.

ALTER TABLE token_commits MODIFY SETTING
  materialize_projections_on_insert = 0, materialize_projections_on_merge = 1;

ALTER TABLE episode_events MODIFY SETTING
  materialize_projections_on_insert = 0, materialize_projections_on_merge = 1;
