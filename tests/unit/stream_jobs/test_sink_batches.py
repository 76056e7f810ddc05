"""Where a partition's records are cut into batches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ports import Delivered
from schemas.topics import TOKENS
from stream_jobs.core.sink_batches import Batches
from stream_jobs.core.sink_ranges import Range
from tests.support.records import commit

P = (TOKENS.name, 0)
MESSAGE: Delivered[Any] = Delivered(
    topic=TOKENS.name, partition=0, offset=0, timestamp_ms=1, key=None, record=commit()
)


def at(offset: int) -> Delivered[Any]:
    return replace(MESSAGE, offset=offset)


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
    assert (first.range, [m.offset for m in first.messages]) == (Range(0, 6), [0, 3, 5])
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
    assert [m.offset for batch in found for m in batch.messages] == offsets
    assert all(a.range.last < b.range.first for a, b in itertools.pairwise(found))
    assert all(
        batch.range.first <= m.offset <= batch.range.last for batch in found for m in batch.messages
    )
