-- A read-only user for dashboards, notebooks and `curl`, on a ClickHouse server of yours.
--
-- Run it once as an administrator, with the database of `sink.server_url` in the place of `sluice`
-- and a password in the place of the digest: printf %s "$PASSWORD" | sha256sum
-- Limits are those of the embedded engine; a client may only make them tighter.

CREATE SETTINGS PROFILE IF NOT EXISTS sluice_reader SETTINGS
  readonly = 2,
  allow_ddl = 0,
  max_execution_time = 10 MAX 10,
  max_result_rows = 100000 MAX 100000,
  result_overflow_mode = 'throw' CONST,
  max_memory_usage = 1000000000 MAX 1000000000;

CREATE ROLE IF NOT EXISTS sluice_reader SETTINGS PROFILE 'sluice_reader';

GRANT SELECT, SHOW ON sluice.* TO sluice_reader;

CREATE USER IF NOT EXISTS sluice_reader
  IDENTIFIED WITH sha256_hash BY '0000000000000000000000000000000000000000000000000000000000000000'
  DEFAULT ROLE sluice_reader;
