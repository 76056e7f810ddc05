"""Which minutes are made anew, and that every place in a statement is filled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_jobs.core.sink_rollups import (
    MINUTE_S,
    MINUTES_MAX,
    OF_MINUTES,
    Rollup,
    Stale,
    counting,
    made,
    minutes_of,
    noted,
    portions,
)

ROLLUP = Rollup(
    name="r from t", table="t", statement=f"SELECT {{rolled}} FROM t WHERE {OF_MINUTES}",
    definition="abc",
)  # fmt: skip


def test_minutes_are_due_once_an_interval_and_forgotten_once_they_are() -> None:
    stale = Stale(["t", "u"], interval_ms=1_000)
    stale.note("t", [120, 60])
    stale.note("not-rolled", [60])
    assert stale.waiting == 2
    assert stale.due(now_ms=1_000) == {"t": [60, 120]}
    stale.note("u", [60])
    assert stale.due(now_ms=1_500) == {}
    assert stale.due(now_ms=1_600, all_of_it=True) == {"u": [60]}
    assert stale.waiting == 0


def test_a_minute_that_was_made_without_a_task_is_stale_again_once_tasks_come() -> None:
    stale = Stale(["t", "u"], interval_ms=1_000)
    stale.wait("t", [60])
    stale.wait("t", [120])
    assert stale.waiting == 0
    stale.note("u", [60])
    assert stale.due(now_ms=1_000) == {"u": [60]}
    stale.note("tasks", [7_260])
    assert stale.due(now_ms=2_000) == {"t": [60, 120]}
    stale.note("tasks", [7_320])
    assert stale.waiting == 0, "it waits again only once it was made without one"


def test_a_broker_time_lies_in_the_minute_that_begins_at_or_before_it() -> None:
    assert minutes_of(np.array([0, 59_999, 60_000, 60_001])) == {0, 60}


@given(st.sets(st.integers(0, 10**7), max_size=2_000))
def test_portions_hold_every_minute_once_in_order_and_are_bounded(numbers: set[int]) -> None:
    minutes = sorted(number * MINUTE_S for number in numbers)
    parts = list(portions(minutes))
    assert [minute for part in parts for minute in part] == minutes
    assert all(1 <= len(part) <= MINUTES_MAX for part in parts)


def test_every_place_of_a_statement_is_filled() -> None:
    waits = replace(ROLLUP, waits_for_tasks=True)
    for text in (
        counting(ROLLUP, [60, 180]), counting(waits, [60, 180]), made(ROLLUP, [60, 180], rolled=7),
    ):  # fmt: skip
        assert "toDateTime64(60, 3" in text
        assert "toDateTime64(240, 3" in text
        assert "IN (60, 180)" in text
        assert "{" not in text
    assert "('r from t', 60, 4, 'abc', 7), ('r from t', 180, 5, 'abc', 7)" in noted(
        ROLLUP, [("60", "4"), ("180", "5")], rolled=7
    )
