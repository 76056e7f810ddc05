"""Tables and definitions agree, and every record becomes a whole row."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas import topics
from schemas.ids import Version
from schemas.packing import Span, Timing, pack_ids, pack_logprobs, pack_spans, pack_timing
from schemas.ports import Delivered
from stream_jobs.core.sink_columns import Kind, instants, moments
from stream_jobs.core.sink_statements import parse_migrations
from stream_jobs.core.sink_tables import (
    CONTENTS,
    TABLES,
    TOPICS,
    tables_of,
    timings,
    versions,
)
from tests.support.random_records import RecordBuilder
from tests.support.records import commit

DEFINITIONS = Path(__file__).resolve().parents[3] / "infra" / "clickhouse"
ADDED = re.compile(r"^  ADD COLUMN IF NOT EXISTS `(\w+)` (.+?),?$", re.MULTILINE)
COLUMN = re.compile(r"^  `(\w+)` (.+?)(?: CODEC\(.*\))?,?$", re.MULTILINE)


def defined() -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
    """Return each table's definition, and the columns that later migrations gave it."""
    texts = [path.read_text() for path in sorted(DEFINITIONS.glob("*.sql"))]
    found: dict[str, str] = {}
    added: dict[str, list[tuple[str, str]]] = {}
    for migration in parse_migrations(texts).migrations:
        for statement in migration.statements:
            made = re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", statement)
            if made is not None:
                found[made[1]] = statement
            more = re.match(r"ALTER TABLE (\w+)\n", statement)
            if more is not None:
                # What the table computes from a row by itself is no column of an insert.
                added.setdefault(more[1], []).extend(
                    (name, kind)
                    for name, kind in ADDED.findall(statement)
                    if " MATERIALIZED " not in kind
                )
    return found, added


def delivered(topic: topics.Topic[Any], record: Any, offset: int = 5) -> Delivered[Any]:
    return Delivered(
        topic=topic.name, partition=2, offset=offset, timestamp_ms=1_000, key=None, record=record
    )


def test_every_topic_but_the_payloads_has_a_table() -> None:
    assert set(topics.ALL) - set(TOPICS) == {topics.PAYLOADS}


def test_the_definitions_hold_exactly_the_columns_of_the_tables() -> None:
    definitions, added = defined()
    for tables in tables_of(has_contents=True).values():
        for table in tables:
            columns = COLUMN.findall(definitions[table.name]) + added.get(table.name, [])
            # Inserts name their columns, so a later one may stand last.
            assert sorted(columns) == sorted((c.name, c.kind.value) for c in table.columns)
            assert f"ORDER BY ({', '.join(table.order)})" in definitions[table.name]
            assert "non_replicated_deduplication_window" in definitions[table.name]


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_any_record_becomes_one_row_of_the_first_table_and_one_per_part_of_the_others(
    topic: topics.Topic[Any],
) -> None:
    builder = RecordBuilder(11, size_max=60)
    for _ in range(20):
        record = builder.record(topic)
        first, *others = TABLES[topic.name]
        rows = first.rows([delivered(topic, record), delivered(topic, record, offset=6)])
        assert {len(values) for values in rows.values()} == {2}
        assert list(rows["src_offset"]) == [5, 6]
        assert list(rows["run_id"]) == [record.run_id] * 2
        for column in first.columns:
            if column.kind is Kind.TIME_US:
                assert all(0 <= value <= 4_102_444_800_000_000 for value in rows[column.name])
        for table in others:
            part_rows = table.rows([delivered(topic, record)])
            assert table.parts is not None
            assert {len(values) for values in part_rows.values()} == {len(table.parts(record))}


def test_a_commit_is_told_by_its_size_its_times_and_its_oldest_version() -> None:
    timing = Timing(
        requested_us=1, first_token_us=2, last_token_us=3, prefilled_tokens=4, reused_tokens=5
    )
    spans = pack_spans([Span(0, 1, Version(1, 7)), Span(1, 2, Version(1, 8))])
    record = replace(commit(3), timing=pack_timing(timing), spans=spans, count=2)
    (table,) = TABLES[topics.TOKENS.name]
    row = {
        name: values[0] for name, values in table.rows([delivered(topics.TOKENS, record)]).items()
    }
    assert (row["epoch"], row["number"], row["count"]) == (1, 7, 2)
    assert (row["requested_at"], row["first_token_at"], row["last_token_at"]) == (1, 2, 3)
    assert (row["prefilled_tokens"], row["reused_tokens"]) == (4, 5)
    assert not {"token_ids", "logprobs", "spans", "sampling", "timing"} & set(row)


def test_tokens_are_told_as_they_are_packed_and_damaged_ones_cost_no_row() -> None:
    whole = replace(commit(3), token_ids=pack_ids([7, 300]), logprobs=pack_logprobs([-0.5, -2.0]))
    damaged = replace(whole, token_ids=b"short", logprobs=b"\xff")
    assert CONTENTS not in TABLES[topics.TOKENS.name]
    assert CONTENTS in tables_of(has_contents=True)[topics.TOKENS.name]
    rows = CONTENTS.rows([delivered(topics.TOKENS, one) for one in (whole, damaged)])
    assert [list(one) for one in rows["token_ids"]] == [[7, 300], []]
    assert [list(one) for one in rows["logprobs"]] == [[-0.5, -2.0], []]
    assert list(rows["episode_id"]) == [whole.episode_id] * 2


def test_damaged_packed_fields_cost_no_row() -> None:
    record = replace(commit(3), timing=b"short", spans=b"\xff" * 32)
    (table,) = TABLES[topics.TOKENS.name]
    rows = table.rows([delivered(topics.TOKENS, record)])
    assert (*rows["epoch"], *rows["requested_at"]) == (-1, 0)


def test_the_packed_fields_of_a_batch_are_read_as_one_by_one() -> None:
    timing = Timing(
        requested_us=11, first_token_us=12, last_token_us=13, prefilled_tokens=14, reused_tokens=15
    )
    commits = [
        replace(commit(0), timing=pack_timing(timing)),
        replace(commit(1), timing=b"", spans=pack_spans([])),
        replace(commit(2), timing=pack_timing(timing) + b"x", spans=b"y"),
        replace(
            commit(3), spans=pack_spans([Span(0, 4, Version(3, 9)), Span(4, 6, Version(4, 1))])
        ),
        replace(commit(4), spans=pack_ids([1, 2, 3, 4, 5, 6, 7, -8])),
    ]
    assert timings(commits).tolist() == [[11, 12, 13, 14, 15]] + [[0] * 5] * 4
    assert versions(commits).tolist() == [[-1, -1], [-1, -1], [-1, -1], [3, 9], [-1, -1]]


def test_moments_of_wild_clocks_are_brought_within_what_the_tables_hold() -> None:
    assert moments([-(2**63), -1, 5, 2**63 - 1]).tolist() == [0, 0, 5, 4_102_444_800_000_000]
    assert instants([-1, 7, 2**62]).tolist() == [0, 7, 4_102_444_800_000]
