"""The worker's lease clock never outlives the scheduler's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.core.lease import LeaseClock, Progress
from schemas.enums import EpisodeEventKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.episode_event import EpisodeEvent
from stream_jobs.core.leases import LeaseClock as SchedulerClock
from stream_jobs.core.leases import LeaseLimits


def granted(**changes: int) -> LeaseClock:
    values = {"lease_ms": 1000, "read_ms": 5000, "age_ms": 0, "wait_ms_max": 3000, **changes}
    return LeaseClock.granted(margin=0.1, **values)


def progress(sent_ms: int, **changes: int | bool) -> Progress:
    values: dict[str, int | bool] = {
        "wal_position": -1, "tool_position": -1, "at_gateway": False, "until_ms": 0, **changes,
    }  # fmt: skip
    return Progress(sent_ms=sent_ms, **values)  # type: ignore[arg-type]  # a bool is an int


def test_what_passed_before_it_was_read_is_gone_and_a_margin_is_left() -> None:
    clock = granted(age_ms=300)
    assert clock.ends_ms == 5000 - 300 + 1000 - 100
    assert granted(age_ms=-300).ends_ms == 5900


def test_progress_renews_only_when_a_position_moved() -> None:
    clock = granted()
    assert clock.renewed(progress(5500)) == clock
    moved = clock.renewed(progress(5500, wal_position=7))
    assert moved.ends_ms == 6400
    assert moved.renewed(progress(6000, wal_position=7)) == moved
    assert moved.renewed(progress(6000, wal_position=7, tool_position=1)).ends_ms == 6900


def test_waiting_at_the_gateway_renews_no_longer_than_a_request_may_take() -> None:
    clock = granted().waiting(now_ms=5000, at_gateway=True)
    assert clock.renewed(progress(8000, at_gateway=True)).ends_ms == 8900
    assert clock.renewed(progress(8001, at_gateway=True)) == clock
    left = clock.waiting(now_ms=6000, at_gateway=False)
    assert left.renewed(progress(6000, at_gateway=True)) == left


def test_an_announced_call_is_covered_to_its_end() -> None:
    clock = granted()
    assert not clock.covers(now_ms=5000, call_ms=2000)
    announced = clock.renewed(progress(5000, until_ms=7200))
    assert announced.covers(now_ms=5000, call_ms=2000)
    assert not announced.covers(now_ms=7100)


Moves = st.lists(
    st.tuples(
        st.integers(1, 400),  # time until the next Progress
        st.integers(0, 200),  # time until the scheduler reads it
        st.booleans(),  # the WAL moved
        st.booleans(),  # at the gateway
        st.sampled_from([0, 0, 1500]),  # an announced call
    ),
    max_size=30,
)


@pytest.mark.slow
@given(moves=Moves, delay_ms=st.integers(0, 300))
def test_the_worker_stops_before_the_scheduler_expires_the_lease(
    moves: list[tuple[int, int, bool, bool, int]], delay_ms: int
) -> None:
    """Both clocks tick alike; records are read in order, later than they were sent."""
    scheduler = SchedulerClock.begin(event(0), read_at_ms=1000, incarnation="")
    limits = LeaseLimits(request_deadline_ms=3000, call_max_ms=10_000)
    worker = granted(read_ms=1000 + delay_ms, age_ms=delay_ms)
    now_ms, read_ms, position = 1000 + delay_ms, 1000, 0
    for wait_ms, lag_ms, moved, at_gateway, call_ms in moves:
        now_ms += wait_ms
        worker = worker.waiting(now_ms=now_ms, at_gateway=at_gateway)
        if not worker.covers(now_ms=now_ms):
            return
        position += moved
        until_ms = now_ms + call_ms if call_ms else 0
        worker = worker.renewed(
            progress(now_ms, wal_position=position, at_gateway=at_gateway, until_ms=until_ms)
        )
        read_ms = max(read_ms, now_ms + lag_ms)
        told = event(now_ms * 1000, wal_position=position, at_gateway=at_gateway,
                     until_us=until_ms * 1000)  # fmt: skip
        scheduler.progress(told, read_at_ms=read_ms, limits=limits)
        assert worker.ends_ms <= scheduler.expires_at_ms


def event(at_us: int, **fields: int | bool) -> EpisodeEvent:
    return EpisodeEvent(
        run_id=RunId("run"), episode_id=EpisodeId("run.0.0"), group_id=GroupId("run.0.g"),
        kind=EpisodeEventKind.PROGRESS, attempt=1, lease_ms=1000, at_us=at_us,
        writer_id=WorkerId("environment-1"), **fields,  # type: ignore[arg-type]  # a bool is an int
    )  # fmt: skip
