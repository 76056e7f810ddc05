"""Commits that are read many at once become the same rows and dead letters as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from consumers.client import message_of
from schemas.enums import Role
from schemas.errors import InvariantError
from schemas.ids import RunId, WorkerId
from schemas.ports import Delivered, Frames, Poisoned
from schemas.topics import DEAD_LETTERS, TOKENS
from stream_jobs.core.sink_avro import Layout
from stream_jobs.core.sink_slabs import BULK, BULK_MIN, Held, Slab, count, in_bulk
from stream_jobs.core.sink_tables import TABLES
from stream_jobs.sink_intake import Intake
from stream_jobs.sink_store import arrow_of
from tests.support import commit_bytes
from tests.support.commit_bytes import DAMAGES, ODD, plain, spelled
from tests.support.fake_rollout import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.records import RUN

OTHER = RunId("run-2")
CODEC = commit_bytes.codec()
(TABLE,) = TABLES[TOKENS.name]
MANY = 4 * BULK_MIN
BENT = {**DAMAGES, **ODD}
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""To make hundreds of records smaller takes minutes and explains nothing."""


def framed(raws: Sequence[bytes]) -> Frames:
    return Frames(
        topic=TOKENS.name,
        partition=3,
        offsets=[10 + 2 * index for index in range(len(raws))],
        timestamps_ms=[1_764_442_000_000 + 977 * index for index in range(len(raws))],
        keys=[None] * len(raws),
        raws=raws,
    )


def one_by_one(frames: Frames) -> tuple[list[Delivered[Any]], list[Poisoned]]:
    """Return what every record is on its own: rows of the run, and what cannot be read."""
    rows = zip(frames.offsets, frames.timestamps_ms, frames.keys, frames.raws, strict=True)
    found = [
        message_of(CODEC, (frames.topic, frames.partition, offset), at, key=key, raw=raw)
        for offset, at, key, raw in rows
    ]
    ours = [one for one in found if isinstance(one, Delivered) and one.record.run_id == RUN]
    return ours, [one for one in found if isinstance(one, Poisoned)]


def many_at_once(frames: Frames) -> tuple[list[Held], list[Poisoned]]:
    """Return the same, read in bulk where that goes."""
    held: list[Held] = []
    poisoned: list[Poisoned] = []
    for one in in_bulk(frames, RUN, CODEC.frame(TOKENS)):
        if isinstance(one, Slab):
            held.append(one)
        else:
            ours, bad = one_by_one(one)
            held += ours
            poisoned += bad
    return held, poisoned


def texts_of(held: Sequence[Held]) -> pa.Table:
    """Return the rows with texts for words, whose numbers are anybody's choice."""
    data = arrow_of(TABLE, held)
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in data.columns
    ]
    return pa.table(dict(zip(data.column_names, columns, strict=True)))


def agree(frames: Frames) -> list[Held]:
    """Check that both ways give the same; return what the fast one gave."""
    ours, bad = one_by_one(frames)
    held, poisoned = many_at_once(frames)
    assert poisoned == bad
    assert count(held) == len(ours)
    expected = texts_of(ours)
    found = texts_of(held)
    assert found.schema == expected.schema
    assert found.equals(expected)
    # An insert is one block: its token stands for it whole.
    assert found.num_rows == 0 or len(found.to_batches()) == 1
    return held


@cache
def _raws(seed: int, size: int, runs: tuple[RunId, ...]) -> tuple[bytes, ...]:
    random = Random(seed)
    return tuple(CODEC.encode(TOKENS, plain(random, run=random.choice(runs))) for _ in range(size))


def raws_of(seed: int, size: int, *, others: bool = False) -> list[bytes]:
    return list(_raws(seed, size, (RUN, OTHER, RunId("run-10")) if others else (RUN,)))


@settings(max_examples=6, deadline=None, phases=_PHASES)
@given(st.integers(0, 2**31), st.booleans())
def test_random_commits_become_the_same_columns_as_one_by_one(seed: int, others: bool) -> None:
    held = agree(framed(raws_of(seed, MANY, others=others)))
    assert [type(one) for one in held] == [Slab]


@settings(max_examples=10, deadline=None, phases=_PHASES)
@given(
    st.integers(0, 2**31),
    st.lists(st.tuples(st.integers(0, MANY - 1), st.integers(0, 2_000)), min_size=1, max_size=4),
)
def test_flipped_bits_give_the_same_rows_and_the_same_letters(
    seed: int, flips: list[tuple[int, int]]
) -> None:
    raws = [bytearray(raw) for raw in raws_of(seed, MANY, others=True)]
    for index, bit in flips:
        place = bit % (8 * len(raws[index]))
        raws[index][place // 8] ^= 1 << place % 8
    agree(framed([bytes(raw) for raw in raws]))


@pytest.mark.parametrize(
    ("name", "place"),
    [*((name, MANY - 1) for name in BENT), ("bytes that follow", 0), ("no UTF-8", 200)],
)
def test_one_odd_record_among_many_costs_the_others_nothing(name: str, place: int) -> None:
    raws = raws_of(5, MANY)
    record = plain(Random(9), run=RUN)
    odd = raws[place] = BENT[name](record)
    frames = framed(raws)
    held = agree(frames)
    ours, bad = one_by_one(frames)
    assert len(bad) == (name in DAMAGES)
    assert len(ours) + len(bad) == MANY
    assert [one.raw for one in bad] == [odd] * len(bad)
    # All but those beside it are read in bulk still.
    assert sum(len(one) for one in held if isinstance(one, Slab)) >= MANY - BULK_MIN


@pytest.mark.parametrize("name", BENT)
def test_odd_records_alone_are_read_as_one_by_one(name: str) -> None:
    agree(framed([BENT[name](plain(Random(9), run=RUN))] * BULK_MIN))


def test_a_slab_is_cut_by_offsets_into_the_same_rows() -> None:
    frames = framed(raws_of(3, MANY))
    ours, _ = one_by_one(frames)
    (slab,) = agree(frames)
    assert isinstance(slab, Slab)
    for first, last in ((0, 10), (11, 12), (13, 300), (301, 10_000)):
        part = slab.within(first, last)
        expected = [one for one in ours if first <= one.offset <= last]
        assert (part.first, part.last) == (expected[0].offset, expected[-1].offset)
        assert texts_of([part]).equals(texts_of(expected))
    assert len(slab.within(11, 11)) == 0


def test_every_text_of_other_runs_is_looked_at_too() -> None:
    raws = raws_of(4, MANY)
    raws[7] = DAMAGES["no UTF-8"](plain(Random(1), run=OTHER))
    _, poisoned = many_at_once(framed(raws))
    assert [one.raw for one in poisoned] == [raws[7]]


def test_topics_in_bulk_fill_one_table_and_a_schema_of_other_types_is_refused() -> None:
    for name, bulk in BULK.items():
        assert TABLES[name] == (bulk.table,)
    with pytest.raises(InvariantError, match="ratio of type double cannot"):
        Layout({"fields": [{"name": "ratio", "type": "double"}]})


async def test_of_a_damaged_topic_every_row_is_taken_and_every_bad_record_buried() -> None:
    bus = MemoryBus(partitions=2)
    context = context_on(bus, "sink-0")
    raws = raws_of(6, 2 * MANY, others=True)
    bad = list(DAMAGES.values())
    for index, damage in enumerate(bad):
        raws[31 * index] = damage(plain(Random(index), run=RUN))
    for raw in raws:
        bus.append_raw(TOKENS, partition=1, raw=raw)
    intake = Intake(context, Role.SINK, bus.codec, {TOKENS: {0: 0, 1: 0}})
    held, looked_at = await intake.poll(records_max=10_000, timeout_s=1)
    await intake.close()
    messages = bus.messages(TOKENS, 1)
    ours = [one for one in messages if isinstance(one, Delivered) and one.record.run_id == RUN]
    assert looked_at == len(raws)
    assert texts_of(held).equals(texts_of(ours))
    assert any(isinstance(one, Slab) for one in held)
    letters = bus.records(DEAD_LETTERS)
    assert intake.poisoned == len(bad)
    assert [(one.origin_offset, one.raw, one.error) for one in letters] == [
        (one.offset, one.raw, one.error) for one in messages if isinstance(one, Poisoned)
    ]


async def test_a_few_records_are_not_worth_reading_in_bulk() -> None:
    bus = MemoryBus(partitions=1)
    for index in range(BULK_MIN - 1):
        bus.append(TOKENS, replace(plain(Random(index), run=RUN), seq=index), partition=0)
    intake = Intake(context_on(bus, "sink-0"), Role.SINK, bus.codec, {TOKENS: {0: 0}})
    held, _ = await intake.poll(records_max=10_000, timeout_s=1)
    assert [one.record.seq for one in held if isinstance(one, Delivered)] == list(
        range(BULK_MIN - 1)
    )


def test_the_reference_spelling_is_ours() -> None:
    record = plain(Random(2), run=RUN)
    assert spelled(record) == CODEC.encode(TOKENS, record)


def test_texts_that_are_few_as_a_rule_are_read_though_each_record_has_its_own() -> None:
    random = Random(5)
    raws = [
        CODEC.encode(TOKENS, replace(plain(random, run=RUN), writer_id=WorkerId(f"worker-{seq}")))
        for seq in range(MANY)
    ]
    held = agree(framed(raws))
    assert [type(one) for one in held] == [Slab]
