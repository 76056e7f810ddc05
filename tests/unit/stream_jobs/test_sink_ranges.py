"""What a batch means against the stored range: the whole table of cases, and crashes anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InvariantError
from stream_jobs.core.sink_ranges import (
    Bury,
    Insert,
    Passed,
    Range,
    Rewind,
    Skip,
    Stored,
    Written,
    passed,
    progress,
    resume_at,
    settle,
    token,
)

BEFORE = Stored(Range(10, 19), Written.BEFORE)
AFTER = Stored(Range(10, 19), Written.AFTER)


@pytest.mark.parametrize(
    ("new", "before", "after"),
    [
        (Range(20, 29), (Rewind(Range(10, 19)),), (Insert(Range(20, 29)),)),
        (Range(10, 19), (Insert(Range(10, 19)),), (Skip(Range(10, 19)),)),
        (
            Range(10, 24),
            (Insert(Range(10, 19)), Insert(Range(20, 24))),
            (Skip(Range(10, 19)), Insert(Range(20, 24))),
        ),
        (Range(12, 17), (Bury(Range(12, 17)),), (Skip(Range(12, 17)),)),
        (Range(10, 17), (Bury(Range(10, 17)),), (Skip(Range(10, 17)),)),
        (Range(5, 19), (Insert(Range(10, 19)),), (Skip(Range(10, 19)),)),
        (
            Range(5, 24),
            (Insert(Range(10, 19)), Insert(Range(20, 24))),
            (Skip(Range(10, 19)), Insert(Range(20, 24))),
        ),
        (Range(15, 24), (Rewind(Range(10, 19)),), (Skip(Range(15, 19)), Insert(Range(20, 24)))),
    ],
)
def test_a_batch_is_settled_against_the_stored_range_as_the_table_says(
    new: Range, before: tuple[object, ...], after: tuple[object, ...]
) -> None:
    assert settle(BEFORE, new) == before
    assert settle(AFTER, new) == after


@pytest.mark.parametrize("stored", [BEFORE, AFTER])
def test_a_batch_below_the_stored_range_stops_the_sink(stored: Stored) -> None:
    with pytest.raises(InvariantError, match="somebody rewound"):
        settle(stored, Range(0, 9))


def test_without_a_stored_range_a_batch_is_inserted() -> None:
    assert settle(None, Range(3, 4)) == (Insert(Range(3, 4)),)


def test_a_range_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvariantError):
        Range(4, 3)


def test_reading_resumes_at_a_range_that_may_have_been_inserted_and_behind_one_that_was() -> None:
    assert resume_at(None, 7) == (7, None)
    assert resume_at(BEFORE, 7) == (10, 19)
    assert resume_at(AFTER, 7) == (20, None)


def test_a_token_names_topic_partition_and_offsets() -> None:
    assert token("run-1", "t", 3, Range(10, 19)) == "run-1:t:3:10-19"


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["none", "ahead", "rows"])), max_size=8)
)
def test_every_offset_is_inserted_once_whatever_dies_between_the_notes(
    plan: list[tuple[int, str]],
) -> None:
    """Each entry cuts a batch of so many offsets and dies: not, after BEFORE, or after the rows."""
    tokens: dict[str, tuple[int, ...]] = {}
    rows: list[int] = []
    stored: Stored | None = None

    def insert(piece: Range) -> None:
        offsets = tuple(range(piece.first, piece.last + 1))
        name = token("run-1", "t", 0, piece)
        if name not in tokens:
            tokens[name] = offsets
            rows.extend(offsets)
        assert tokens[name] == offsets

    for size, death in [*plan, (1, "none")]:
        first, border = resume_at(stored, 0)
        new = Range(first, border if border is not None else first + size - 1)
        for piece in settle(stored, new):
            assert isinstance(piece, Insert)
            stored = Stored(piece.range, Written.BEFORE)
            if death == "ahead":
                break
            insert(piece.range)
            if death == "rows":
                break
            stored = Stored(piece.range, Written.AFTER)
    assert rows == list(range(len(rows)))


def test_progress_rises_with_the_offsets_and_from_before_to_after() -> None:
    steps = [
        Stored(Range(0, 4), Written.BEFORE),
        Stored(Range(0, 4), Written.AFTER),
        Stored(Range(5, 5), Written.BEFORE),
        Stored(Range(5, 5), Written.AFTER),
    ]
    numbers = [progress(one) for one in steps]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        (Range(0, 9), Passed.WHOLLY, Passed.WHOLLY),
        (Range(10, 19), Passed.NO, Passed.WHOLLY),
        (Range(5, 14), Passed.INSIDE, Passed.WHOLLY),
        (Range(10, 24), Passed.NO, Passed.INSIDE),
        (Range(15, 24), Passed.NO, Passed.INSIDE),
        (Range(20, 29), Passed.NO, Passed.NO),
    ],
)
def test_an_owner_sees_how_far_another_one_has_gone_past_it(
    part: Range, before: Passed, after: Passed
) -> None:
    assert passed(BEFORE, part) is before
    assert passed(AFTER, part) is after
    assert passed(None, part) is Passed.NO
