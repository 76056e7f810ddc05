"""Where a partition's records are cut into batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ports import Delivered
from schemas.topics import TOKENS
from stream_jobs.core.sink_batches import Batches
from stream_jobs.core.sink_ranges import Range
from stream_jobs.core.sink_slabs import Held, Slab
from tests.support.records import commit

P = (TOKENS.name, 0)
MESSAGE: Delivered[Any] = Delivered(
    topic=TOKENS.name, partition=0, offset=0, timestamp_ms=1, key=None, record=commit()
)


def at(offset: int) -> Delivered[Any]:
    return replace(MESSAGE, offset=offset)


def offsets_of(messages: Sequence[Held]) -> list[int]:
    return [
        int(offset)
        for one in messages
        for offset in (one.offsets if isinstance(one, Slab) else [one.offset])
    ]


def batches(first: int = 0, border: int | None = None, offsets_max: int = 10) -> Batches:
    return Batches({P: (first, border)}, offsets_max=offsets_max, interval_ms=1_000)


def test_a_batch_is_due_when_its_oldest_record_is_old_enough_and_not_before() -> None:
    held = batches()
    held.take(at(0), now_ms=100)
    held.take(at(1), now_ms=900)
    assert held.due(now_ms=1_099) == []
    assert held.held == 2
    (batch,) = held.due(now_ms=1_100)
    assert (batch.range, len(batch.messages), held.held) == (Range(0, 1), 2, 0)


def test_a_full_batch_is_cut_at_once_and_the_rest_waits() -> None:
    held = batches()
    for offset in range(25):
        held.take(at(offset), now_ms=0)
    assert [one.range for one in held.full()] == [Range(0, 9), Range(10, 19)]
    assert held.held == 5
    (rest,) = held.due(now_ms=0, all_of_it=True)
    assert rest.range == Range(20, 24)


def test_the_first_batch_ends_at_the_border_that_was_written_ahead_even_without_its_records() -> (
    None
):
    held = batches(border=6)
    for offset in (0, 3, 5):
        held.take(at(offset), now_ms=0)
    assert held.due(now_ms=10_000) == []
    # The record at the border was compacted away: only the position says that it was passed.
    held.reach({P: 9})
    held.take(at(9), now_ms=0)
    first, second = held.due(now_ms=10_000)
    assert (first.range, offsets_of(first.messages)) == (Range(0, 6), [0, 3, 5])
    assert second.range == Range(9, 9)


def test_offsets_of_other_runs_alone_make_no_batch() -> None:
    held = batches()
    held.reach({P: 1_000})
    assert held.due(now_ms=10_000, all_of_it=True) == []
    held.take(at(1_000), now_ms=0)
    (batch,) = held.due(now_ms=0, all_of_it=True)
    assert batch.range == Range(1_000, 1_000)


def test_after_a_rewind_the_partition_is_cut_at_the_stored_range_again() -> None:
    held = batches(first=10)
    held.take(at(10), now_ms=0)
    held.rewind(P, Range(4, 7))
    assert held.held == 0
    for offset in range(4, 12):
        held.take(at(offset), now_ms=0)
    assert [b.range for b in held.due(now_ms=0, all_of_it=True)] == [Range(4, 7), Range(8, 11)]


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=25),
    st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_batches_cover_every_record_once_in_order(steps: list[int], looks: list[bool]) -> None:
    held = batches()
    offset, offsets, found = 0, [], []
    for step, look in zip(steps, looks, strict=False):
        offset += step
        offsets.append(offset)
        held.take(at(offset), now_ms=0)
        if look:
            found += held.full()
    found += held.due(now_ms=0, all_of_it=True)
    assert [at for batch in found for at in offsets_of(batch.messages)] == offsets
    assert all(a.range.last < b.range.first for a, b in itertools.pairwise(found))
    assert all(
        batch.range.first <= offset <= batch.range.last
        for batch in found
        for offset in offsets_of(batch.messages)
    )


def slab(offsets: list[int]) -> Slab:
    found = np.array(offsets, np.int64)
    return Slab(
        topic=TOKENS.name, partition=0, offsets=found, times_ms=found, values={"src_offset": found}
    )


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 12),
    st.none() | st.integers(0, 40),
    st.integers(0, 30),
)
def test_records_in_slabs_are_cut_as_records_one_by_one(
    steps: list[tuple[int, bool, bool]], offsets_max: int, border: int | None, again: int
) -> None:
    alone, many = (batches(border=border, offsets_max=offsets_max) for _ in range(2))
    offsets = [index + gap for index, gap in enumerate(itertools.accumulate(s[0] for s in steps))]
    pieces: list[list[int]] = []
    for offset, (_, is_new, _) in zip(offsets, steps, strict=True):
        if is_new or not pieces:
            pieces.append([])
        pieces[-1].append(offset)
    # What is read anew after a rewind begins with what was taken already.
    pieces.append([*offsets[again:], offsets[-1] + 1])
    for piece, (_, _, in_slab) in zip(pieces, itertools.cycle(steps), strict=False):
        for offset in piece:
            alone.take(at(offset), now_ms=0)
        for one in [slab(piece)] if in_slab else map(at, piece):
            many.take(one, now_ms=0)
        assert many.held + many.rows == alone.held
    assert many.oldest_ms() == alone.oldest_ms()
    last = pieces[-1][-1] + 1
    expected = [*alone.full(), *alone.due(now_ms=0, all_of_it=True)]
    found = [*many.full(), *many.due(now_ms=0, all_of_it=True)]
    assert [one.range for one in found] == [one.range for one in expected]
    for cut, other in zip(found, expected, strict=True):
        assert offsets_of(cut.messages) == offsets_of(other.messages)
        for part in (Range(0, last), Range(cut.range.first, cut.range.first)):
            assert offsets_of(cut.within(part)) == offsets_of(other.within(part))
    assert many.held + many.rows == alone.held


def test_of_much_that_is_held_the_fullest_partitions_are_cut_and_the_others_grow_on() -> None:
    sizes = {0: 3, 1: 8, 2: 5, 3: 1}
    held = Batches(
        {(TOKENS.name, partition): (0, None) for partition in sizes},
        offsets_max=10, interval_ms=1_000,
    )  # fmt: skip
    for partition, size in sizes.items():
        for offset in range(size):
            held.take(replace(at(offset), partition=partition), now_ms=0)
    assert [(one.place[1], one.range) for one in held.fullest(rows_min=9)] == [
        (1, Range(0, 7)),
        (2, Range(0, 4)),
    ]
    assert held.held == 4
    assert [one.range for one in held.fullest(rows_min=1)] == [Range(0, 2)]


def test_a_partition_without_its_border_is_not_cut_for_room() -> None:
    held = batches(border=5)
    held.take(at(0), now_ms=0)
    assert held.fullest(rows_min=1) == []


def test_what_stays_after_a_full_batch_is_as_old_as_when_it_came() -> None:
    held = batches()
    for offset in range(15):
        held.take(at(offset), now_ms=100 * offset)
    assert [one.range for one in held.full()] == [Range(0, 9)]
    assert held.oldest_ms() == 1_000
    assert held.due(now_ms=1_999) == []
    assert [one.range for one in held.due(now_ms=2_000)] == [Range(10, 14)]
