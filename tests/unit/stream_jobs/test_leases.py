"""When a lease runs out."""

from __future__ import annotations

from dataclasses import replace

from schemas.enums import EpisodeEventKind
from schemas.records.episode_event import EpisodeEvent
from stream_jobs.core.leases import LeaseClock
from tests.unit.stream_jobs.scheduling import LIMITS, issued_event

LEASED = replace(issued_event(0), kind=EpisodeEventKind.LEASED, attempt=1, lease_ms=30_000)
PROGRESS: EpisodeEvent = replace(issued_event(0), kind=EpisodeEventKind.PROGRESS, attempt=1)


def begun() -> LeaseClock:
    return LeaseClock.begin(LEASED, read_at_ms=1_000, incarnation="a")


def test_a_lease_runs_from_when_it_was_read() -> None:
    clock = begun()
    assert not clock.is_over(now_ms=30_999)
    assert clock.is_over(now_ms=31_000)


def test_progress_extends_only_if_a_position_moved() -> None:
    clock = begun()
    clock.progress(replace(PROGRESS, wal_position=4), read_at_ms=10_000, limits=LIMITS)
    assert clock.expires_at_ms == 40_000
    clock.progress(replace(PROGRESS, wal_position=4), read_at_ms=20_000, limits=LIMITS)
    assert clock.expires_at_ms == 40_000
    clock.progress(replace(PROGRESS, tool_position=1), read_at_ms=20_000, limits=LIMITS)
    assert clock.expires_at_ms == 50_000


def test_waiting_at_the_gateway_extends_no_longer_than_a_request_may_take() -> None:
    clock = begun()
    waiting = replace(PROGRESS, at_gateway=True)
    clock.progress(waiting, read_at_ms=10_000, limits=LIMITS)
    clock.progress(waiting, read_at_ms=15_000, limits=LIMITS)
    assert clock.expires_at_ms == 45_000
    clock.progress(waiting, read_at_ms=15_001, limits=LIMITS)
    assert clock.expires_at_ms == 45_000
    clock.progress(replace(waiting, wal_position=1), read_at_ms=20_000, limits=LIMITS)
    clock.progress(waiting, read_at_ms=21_000, limits=LIMITS)
    assert clock.expires_at_ms == 51_000


def test_an_announced_call_extends_by_its_length_on_the_workers_own_clock_up_to_a_limit() -> None:
    clock = begun()
    call = replace(PROGRESS, at_us=7_000_000, until_us=52_000_000)
    clock.progress(call, read_at_ms=2_000, limits=LIMITS)
    assert clock.expires_at_ms == 47_000
    clock.progress(replace(call, until_us=999_000_000), read_at_ms=2_000, limits=LIMITS)
    assert clock.expires_at_ms == 62_000
