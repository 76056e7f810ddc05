"""Failure classes have budgets of their own; what spends one is given up with its evidence."""

from __future__ import annotations

from dataclasses import replace

from schemas.enums import AbandonReason, EpisodeEventKind, StopCause, WorkerStatus
from schemas.ids import EpisodeId
from schemas.records.episode_event import EpisodeEvent
from schemas.records.worker_state import WorkerState
from stream_jobs.core.issue import GiveLease
from tests.unit.stream_jobs.scheduling import RULES, World


def ready() -> World:
    world = World()
    world.start_learner()
    world.worker()
    return world


def abandoned(world: World) -> list[tuple[str, AbandonReason]]:
    return [
        (record.episode_id, record.abandon_reason)
        for _, _, record in world.log
        if isinstance(record, EpisodeEvent) and record.kind is EpisodeEventKind.ABANDONED
    ]


def test_a_lost_attempt_is_leased_again_under_the_next_number_and_keeps_its_floors() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    world.end(EpisodeId("run-1.0.0"), StopCause.ENVIRONMENT_ERROR)
    (command,) = world.look().commands
    assert isinstance(command, GiveLease)
    assert command.attempt == 2
    again = world.log[-1][2]
    assert again.after_failures == {"environment_error": 1}
    assert world.rebuilt().groups[0].members[0].failures == {"environment_error": 1}


def test_a_retry_waits_twice_as_long_each_time() -> None:
    world = ready()
    world.rules = replace(RULES, retry_delay_ms=100)
    world.offer(1)
    world.settle()
    world.end(EpisodeId("run-1.0.0"), StopCause.ENVIRONMENT_ERROR)
    assert world.look().commands == ()
    world.now_ms += 100
    world.settle()
    world.end(EpisodeId("run-1.0.0"), StopCause.ENVIRONMENT_ERROR)
    world.now_ms += 199
    assert world.look().commands == ()
    world.now_ms += 1
    assert len(world.look().commands) == 1


def test_after_its_retries_an_episode_is_abandoned_with_the_class_that_failed() -> None:
    world = ready()
    world.offer(1)
    for _ in range(3):
        world.settle()
        world.end(EpisodeId("run-1.0.0"), StopCause.ENVIRONMENT_ERROR)
    world.settle()
    assert abandoned(world) == [("run-1.0.0", AbandonReason.RETRIES_EXHAUSTED)]


def test_an_unknown_tool_outcome_is_never_retried_and_has_its_own_reason() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    world.environment(
        EpisodeId("run-1.0.0"),
        EpisodeEventKind.ENDED,
        stop_cause=StopCause.ENVIRONMENT_ERROR,
        detail="unknown_tool: nobody knows the outcome of run-1.0.0/0/1/0",
    )
    world.settle()
    assert abandoned(world) == [("run-1.0.0", AbandonReason.UNKNOWN_TOOL)]
    assert "nobody knows the outcome of run-1.0.0/0/1/0" in world.log[-1][2].detail


def test_budgets_of_failure_classes_are_apart() -> None:
    world = ready()
    world.offer(1)
    for cause in [StopCause.ENVIRONMENT_ERROR, StopCause.INFRASTRUCTURE_ERROR] * 2:
        world.settle()
        world.end(EpisodeId("run-1.0.0"), cause)
    world.settle()
    assert abandoned(world) == []
    world.end(EpisodeId("run-1.0.0"), StopCause.INFRASTRUCTURE_ERROR)
    world.settle()
    assert abandoned(world) == [("run-1.0.0", AbandonReason.RETRIES_EXHAUSTED)]


def test_a_quarantined_task_carries_the_evidence_of_its_attempts() -> None:
    world = ready()
    world.rules = replace(RULES, retries_max={"lease_expired": 2, "environment_error": 9})
    world.offer(1)
    world.settle()
    world.environment(
        EpisodeId("run-1.0.0"),
        EpisodeEventKind.ENDED,
        stop_cause=StopCause.ENVIRONMENT_ERROR,
        detail="the container broke",
    )
    for _ in range(3):
        world.settle()
        world.environment(EpisodeId("run-1.0.0"), EpisodeEventKind.PROGRESS, wal_position=5)
        world.now_ms += 30_000
        world.worker()
        world.ledger.expire({0}, sampled_at_ms=world.now_ms)
    world.settle()
    told = {
        r.episode_id: r for _, _, r in world.log if getattr(r, "abandon_reason", "none") != "none"
    }
    detail = told[EpisodeId("run-1.0.0")].detail
    assert detail.startswith("lease_expired 3 times in 4 attempts; ")
    assert "attempt 1 on environment-0: environment_error: the container broke" in detail
    assert "attempt 3 on environment-0: lease_expired: last Progress at WAL 5" in detail
    assert detail.endswith("attempt 4 on environment-0: lease_expired")


def test_the_evidence_of_an_episode_that_fails_for_ever_stays_bounded() -> None:
    world = ready()
    world.rules = replace(RULES, retries_max={"environment_error": 100})
    world.offer(1)
    for _ in range(50):
        world.settle()
        world.environment(
            EpisodeId("run-1.0.0"),
            EpisodeEventKind.ENDED,
            stop_cause=StopCause.ENVIRONMENT_ERROR,
            detail="x" * 100_000,
        )
    evidence = world.ledger.groups[0].members[0].evidence
    assert len(evidence) == 8
    assert sum(map(len, evidence)) < 4_000


def test_a_task_whose_leases_run_out_again_and_again_is_quarantined() -> None:
    world = ready()
    world.offer(1)
    for _ in range(2):
        world.settle()
        world.now_ms += 30_000
        world.worker()
        world.ledger.expire({0}, sampled_at_ms=world.now_ms)
    world.settle()
    assert abandoned(world) == [
        ("run-1.0.0", AbandonReason.POISONED_TASK),
        ("run-1.0.1", AbandonReason.POISONED_TASK),
    ]


def test_a_worker_that_comes_back_as_another_process_loses_its_leases_at_once() -> None:
    world = ready()
    world.rules = replace(RULES, retries_max={"worker_lost": 5})
    world.offer(1)
    world.settle()
    world.worker(incarnation="b")
    world.ledger.expire({0}, sampled_at_ms=world.now_ms)
    world.settle()
    assert {r.life.attempt for r in world.ledger.rollouts()} == {2}
    assert world.log[-1][2].after_failures == {"worker_lost": 1}


def incarnations(world: World) -> set[str]:
    return {r.life.lease.incarnation for r in world.ledger.rollouts() if r.life.lease is not None}


def lost_when(*, after: str, leased_to: str = "a") -> int:
    """Return how many leases are lost once a process under the worker's name is heard of."""
    world = ready()
    world.worker(incarnation=leased_to)
    world.offer(1)
    world.settle()
    assert incarnations(world) == {leased_to}
    world.worker(incarnation=after)
    return world.ledger.expire({0}, sampled_at_ms=world.now_ms)


def test_a_lease_names_the_process_that_runs_under_the_workers_id() -> None:
    assert lost_when(leased_to="b", after="b") == 0
    assert lost_when(leased_to="b", after="c") == 2


def test_a_process_that_was_replaced_takes_nothing_back_by_announcing_itself_again() -> None:
    assert lost_when(leased_to="b", after="a") == 0


def test_a_restarted_scheduler_knows_from_the_log_which_process_a_lease_was_for() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    world.worker(incarnation="b")
    rebuilt = world.rebuilt()
    assert rebuilt.expire({0}, sampled_at_ms=world.now_ms) == 2
    blind = world.new_ledger()
    for offset, at_ms, record in world.log:
        if not isinstance(record, WorkerState):
            world.feed(blind, offset, at_ms, record)
    assert blind.expire({0}, sampled_at_ms=world.now_ms) == 0, "nobody was heard of yet"


def test_once_the_younger_process_is_gone_the_older_one_gets_work_again() -> None:
    world = ready()
    world.worker(incarnation="b", status=WorkerStatus.STOPPED)
    world.worker(incarnation="a")
    world.offer(1)
    world.settle()
    assert incarnations(world) == {"a"}
