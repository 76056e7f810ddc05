"""What a migration file must say, and which errors of the engine pass."""

from __future__ import annotations

import pytest

from infra.run.worker import table_definitions
from schemas.errors import SettingsError
from stream_jobs.core.sink_statements import (
    changed,
    engine_code,
    on_cluster,
    outstanding,
    parse_migrations,
    passes,
)


def test_an_insert_is_tried_again_only_when_its_error_can_pass() -> None:
    assert engine_code("x: Code: 252. DB::Exception: Too many parts") == 252
    assert passes("Code: 252. DB::Exception: Too many parts")
    assert passes("connection reset by peer")
    # A server that is overloaded or goes down, a replica that is away, a load that was cancelled,
    # a disk that takes no file.
    for code in (203, 225, 285, 286, 394, 517, 696, 745, 75, 1001):
        assert passes(f"Code: {code}. DB::Exception: it passes")
    assert not passes("Code: 16. DB::Exception: No such column zz")
    assert not passes("Code: 40. DB::Exception: Checksum doesn't match")


def migration(number: int, body: str = "SELECT 1;\n") -> str:
    return f"-- migration {number}: some name\n-- a comment; with semicolon\n{body}"


def test_a_migration_is_split_at_semicolons_that_end_a_line() -> None:
    text = migration(
        1, "CREATE TABLE a (\n x Int64 -- it; is\n);\n\nCREATE VIEW b AS\nSELECT ';' ;\n"
    )
    (only,) = parse_migrations([text]).migrations
    assert (only.version, only.name) == (1, "some name")
    assert [one.split()[1] for one in only.statements] == ["TABLE", "VIEW"]


@pytest.mark.parametrize(
    "texts", [["CREATE TABLE x"], [migration(2)], [migration(1), migration(1)]]
)
def test_migrations_without_header_or_with_a_gap_are_refused(texts: list[str]) -> None:
    with pytest.raises(SettingsError):
        parse_migrations(texts)


def test_only_what_is_outstanding_is_applied_and_a_changed_one_is_refused() -> None:
    one, two = parse_migrations([migration(2), migration(1)]).migrations
    assert outstanding((one, two), {1: one.checksum}) == (two,)
    assert outstanding((one, two), {}) == (one, two)
    with pytest.raises(SettingsError, match="was changed since"):
        outstanding((one, two), {1: "other"})
    with pytest.raises(SettingsError, match="is newer"):
        outstanding((one,), {1: one.checksum, 2: two.checksum})


def test_an_earlier_text_that_a_migration_names_is_as_good_as_its_own() -> None:
    (old,) = parse_migrations([migration(1)]).migrations
    text = migration(1, "SELECT 2;\n").replace("\n", f"\n-- formerly {old.checksum}\n", 1)
    new = parse_migrations([text]).migrations
    assert outstanding(new, {1: old.checksum}) == ()
    with pytest.raises(SettingsError, match="was changed since"):
        outstanding(parse_migrations([migration(1, "SELECT 3;\n")]).migrations, {1: old.checksum})


def repeatable(name: str, body: str = "SELECT 1;\n") -> str:
    return f"-- repeatable {name}: what it is\n{body}"


def test_views_are_applied_from_the_first_that_changed_on_and_all_of_them_after_a_migration() -> (
    None
):
    found = parse_migrations([migration(1), repeatable("a"), repeatable("b"), repeatable("c")])
    same = {one.name: one.checksum for one in found.repeatable}
    assert changed(found, (), same) == ()
    assert [one.name for one in changed(found, (), same | {"b": "other"})] == ["b", "c"]
    assert [one.name for one in changed(found, (), {})] == ["a", "b", "c"]
    assert changed(found, found.migrations, same) == found.repeatable


def test_a_rollup_names_the_table_that_it_reads_and_one_that_reads_none_is_refused() -> None:
    body = "INSERT INTO b\nSELECT 1 FROM a\nWHERE ts >= {since};\n"
    (one,) = parse_migrations([migration(1), f"-- rollups: what they are\n{body}"]).rollups
    assert (one.name, one.table) == ("b from a", "a")
    with pytest.raises(SettingsError, match="does not read one table"):
        parse_migrations([migration(1), "-- rollups: x\nINSERT INTO b SELECT 1;\n"])


def test_rollups_of_records_that_name_a_group_alone_wait_for_tasks_but_of_commits() -> None:
    told = parse_migrations(table_definitions()).rollups
    assert {one.name for one in told if one.waits_for_tasks} == {
        f"quantity_minutes from {table}"
        for table in ("gate_members", "episode_events", "tool_events", "verdicts")
    }


def test_definitions_become_replicated_ones_on_a_cluster_and_stay_as_they_are_without() -> None:
    table = (
        "CREATE TABLE IF NOT EXISTS a (x Int64)\nENGINE = ReplacingMergeTree(x) ORDER BY x\n"
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    assert on_cluster(table, "") == table
    assert on_cluster(table, "main") == (
        "CREATE TABLE IF NOT EXISTS a ON CLUSTER 'main' (x Int64)\n"
        "ENGINE = ReplicatedReplacingMergeTree(x) ORDER BY x\n"
        "SETTINGS replicated_deduplication_window = 10000"
    )
    assert on_cluster("ALTER TABLE a\n  ADD COLUMN b Int64", "m") == (
        "ALTER TABLE a ON CLUSTER 'm'\n  ADD COLUMN b Int64"
    )
    view = on_cluster("CREATE OR REPLACE VIEW v AS\nSELECT 'ENGINE'", "m")
    assert view == "CREATE OR REPLACE VIEW v ON CLUSTER 'm' AS\nSELECT 'ENGINE'"
    with pytest.raises(SettingsError, match="no name of a cluster"):
        on_cluster(table, "m'; DROP TABLE a")
