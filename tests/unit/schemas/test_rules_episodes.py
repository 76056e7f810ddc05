"""Whose scheduler counts, and where an episode's life stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.enums import AbandonReason, ControlKind, EpisodeEventKind, StopCause
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.rules.episodes import EpisodeLife, Floors, SchedulerFences

K = EpisodeEventKind


def event(kind: EpisodeEventKind, **fields: Any) -> EpisodeEvent:
    """Return one event of episode r.0.0."""
    fields.setdefault("writer_id", WorkerId("e1"))
    return EpisodeEvent(
        run_id=RunId("r"),
        episode_id=EpisodeId("r.0.0"),
        group_id=GroupId("r.0.g"),
        kind=kind,
        at_us=0,
        **fields,
    )


def leased(attempt: int, worker: str = "e1", **fields: Any) -> EpisodeEvent:
    """Return a lease of an attempt."""
    return event(K.LEASED, attempt=attempt, worker_id=WorkerId(worker), lease_ms=60_000, **fields)


def ended(attempt: int, cause: StopCause, worker: str = "e1") -> EpisodeEvent:
    """Return an Ended of an attempt."""
    return event(K.ENDED, attempt=attempt, stop_cause=cause, writer_id=WorkerId(worker))


def _life(*events: EpisodeEvent) -> tuple[EpisodeLife, list[bool]]:
    life = EpisodeLife()
    return life, [life.take(offset, 1000 + offset, e) for offset, e in enumerate(events)]


STOP, ERROR = StopCause.POLICY_STOP, StopCause.ENVIRONMENT_ERROR


def test_a_plain_life_ends_once() -> None:
    life, counts = _life(
        event(K.ISSUED, group_size=2),
        leased(1, tokens_floor=7, tool_events_floor=9),
        event(K.PROGRESS, attempt=1),
        ended(1, STOP),
        ended(1, STOP),
        event(K.ABANDONED),
        leased(2),
    )
    assert counts == [True, True, True, True, False, False, False]
    assert life.is_closed
    assert life.final_mark is not None
    assert life.final_mark.offset == 3
    assert life.final_mark.timestamp_ms == 1003
    assert life.abandoned is None
    assert life.floors == Floors(tokens=7, tool_events=9)
    assert life.lease is None
    assert life.superseded == 3


def test_the_first_issued_and_nothing_before_it_counts() -> None:
    _, counts = _life(leased(1), event(K.ISSUED), event(K.ISSUED))
    assert counts == [False, True, False]


def test_only_the_current_lease_may_speak() -> None:
    life, counts = _life(
        event(K.ISSUED),
        leased(1),
        leased(2, "e2"),
        event(K.PROGRESS, attempt=1),
        ended(1, STOP),
        ended(2, STOP, "e1"),
        ended(2, STOP, "e2"),
    )
    assert counts == [True, True, True, False, False, False, True]
    assert life.attempt == 2


def test_a_retried_cause_is_a_failure_and_not_the_end() -> None:
    life, counts = _life(
        event(K.ISSUED), leased(1), ended(1, ERROR), ended(1, STOP), leased(2), ended(2, STOP)
    )
    assert counts == [True, True, True, False, True, True]
    assert life.failures == {"environment_error": 1}
    assert life.final_ended is not None


def test_failures_named_by_a_lease_are_kept() -> None:
    life, _ = _life(event(K.ISSUED), leased(1), leased(2, after_failures={"lease_expired": 1}))
    assert life.failures == {"lease_expired": 1}


def test_abandoned_wins_when_it_comes_first() -> None:
    life, counts = _life(
        event(K.ISSUED),
        leased(1),
        event(K.ABANDONED, abandon_reason=AbandonReason.GROUP_DEADLINE),
        ended(1, STOP),
    )
    assert counts == [True, True, True, False]
    assert life.abandoned is not None
    assert life.final_ended is None


def test_a_pause_frees_the_lease_until_it_is_leased_again() -> None:
    life, counts = _life(
        event(K.ISSUED),
        leased(1),
        event(K.PAUSE_REQUESTED),
        event(K.PAUSED, attempt=1),
        event(K.PROGRESS, attempt=1),
        event(K.RESUMED),
        event(K.RESUMED),
        leased(2),
    )
    assert counts == [True, True, True, True, False, True, False, True]
    assert life.lease is not None
    assert life.lease.attempt == 2
    assert life.floors == Floors(tokens=0, tool_events=0)


def _by(epoch: int, scheduler: str, kind: EpisodeEventKind = K.ISSUED) -> EpisodeEvent:
    return event(kind, scheduler_epoch=epoch, scheduler_id=WorkerId(scheduler))


def test_of_two_scheduler_fences_with_one_epoch_the_first_wins() -> None:
    fences = SchedulerFences()
    fence = K.SCHEDULER_FENCE
    log = [
        _by(0, ""),
        _by(1, "a", fence),
        _by(1, "b", fence),
        _by(1, "a"),
        _by(1, "b"),
        _by(2, "b", fence),
        _by(1, "a"),
        _by(2, "b"),
        event(K.PROGRESS),
    ]
    answers = [fences.take(e) for e in log]
    assert answers == [False, True, False, True, False, True, False, True, True]
    assert fences.current == (2, WorkerId("b"))
    assert SchedulerFences(fences.current).take(_by(2, "b"))


def test_control_records_of_schedulers_need_their_fence() -> None:
    def control(kind: ControlKind, epoch: int = 0, scheduler: str = "") -> ControlEvent:
        return ControlEvent(
            run_id=RunId("r"),
            kind=kind,
            scheduler_epoch=epoch,
            scheduler_id=WorkerId(scheduler),
            at_us=0,
            writer_id=WorkerId("x"),
        )

    fences = SchedulerFences()
    assert fences.take_control(control(ControlKind.START))
    assert not fences.take_control(control(ControlKind.DRAINING, 1, "a"))
    assert fences.take_control(control(ControlKind.SCHEDULER_FENCE, 1, "a"))
    assert fences.take_control(control(ControlKind.DRAINING, 1, "a"))
    assert not fences.take_control(control(ControlKind.END_OF_STREAM, 1, "b"))


def test_of_two_processes_under_one_name_only_the_one_that_the_lease_names_may_speak() -> None:
    zombies = replace(ended(1, STOP), incarnation="old")
    life, counts = _life(
        event(K.ISSUED),
        leased(1, incarnation="new"),
        replace(event(K.PROGRESS, attempt=1), incarnation="old"),
        zombies,
        replace(ended(1, STOP), incarnation="new"),
    )
    assert counts == [True, True, False, False, True]
    assert life.final_mark is not None
    assert life.final_mark.offset == 4


def test_records_from_before_the_incarnation_was_told_count_by_their_worker_alone() -> None:
    _, of_an_old_scheduler = _life(
        event(K.ISSUED), leased(1), replace(ended(1, STOP), incarnation="new")
    )
    _, of_an_old_environment = _life(event(K.ISSUED), leased(1, incarnation="new"), ended(1, STOP))
    assert of_an_old_scheduler == of_an_old_environment == [True, True, True]
