"""How long stages stood still, and what a learner did again, from records counted by hand."""

from __future__ import annotations

from typing import Any

from infra.chaos.findings import Hit
from infra.chaos.resuming import Resuming
from schemas.enums import EpisodeEventKind, LearnerEventKind, Role, WorkerStatus
from schemas.ids import EpisodeId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import TrainedMember
from schemas.records.worker_state import WorkerState

RUN = RunId("0")


def taken(*records: tuple[int, Any]) -> Resuming:
    """Take records, each with its partition."""
    made = Resuming(RUN)
    for offset, (partition, record) in enumerate(records):
        made.take(
            Delivered(
                topic="", partition=partition, offset=offset, timestamp_ms=0, key=b"", record=record
            )
        )
    return made


def hit(worker: str, at_ms: int) -> Hit:
    return Hit(worker_id=f"{worker}@0", at_ms=at_ms)


def decision(at_ms: int, worker: str, *, run: RunId = RUN) -> GateDecision:
    return GateDecision(
        run_id=run, group_id="0.0", at_us=at_ms * 1000, writer_id=WorkerId(f"{worker}@0"),  # type: ignore[arg-type]  # short id
    )  # fmt: skip


def event(at_ms: int, worker: str, kind: EpisodeEventKind) -> EpisodeEvent:
    return EpisodeEvent(
        run_id=RUN, episode_id="0.0.0", group_id="0.0", kind=kind,  # type: ignore[arg-type]  # short ids
        at_us=at_ms * 1000, writer_id=WorkerId(f"{worker}@0"),
    )  # fmt: skip


def learner(at_ms: int, kind: LearnerEventKind, epoch: int, ordinal: int = 0) -> LearnerEvent:
    members = tuple(
        TrainedMember(episode_id=EpisodeId(f"0.{ordinal}.{n}"), partition=0, offset=n)
        for n in range(4 if kind is LearnerEventKind.STEP else 0)
    )
    return LearnerEvent(
        run_id=RUN, kind=kind, epoch=epoch, ordinal=ordinal, number=ordinal, trained=members,
        action_tokens=100 if members else 0, at_us=at_ms * 1000,
        learner_id=WorkerId("learner-0@0"), writer_id=WorkerId("learner-0@0"),
    )  # fmt: skip


def state(at_ms: int, status: WorkerStatus, *, started_ms: int) -> WorkerState:
    worker = WorkerId("sink-0@0")
    return WorkerState(
        run_id=RUN, worker_id=worker, role=Role.SINK, incarnation=str(started_ms), status=status,
        started_us=started_ms * 1000, at_us=at_ms * 1000, writer_id=worker,
    )  # fmt: skip


def test_a_gate_is_resumed_when_any_partition_that_it_wrote_to_last_moves() -> None:
    found = taken(
        (0, decision(100, "gate-0")),
        (1, decision(200, "gate-0")),
        (2, decision(300, "gate-1")),
        (2, decision(1_100, "gate-1")),
        (1, decision(3_000, "gate-1")),
        (0, decision(2_500, "gate-1")),
    )
    assert found.resumed_s([hit("gate-0", 1_000)])["gate"].p50 == 1.5
    assert "gate" not in found.resumed_s([hit("gate-0", 5_000)])


def test_what_the_dead_had_sent_before_is_no_resumption_though_it_lands_later() -> None:
    found = taken(
        (0, decision(900, "gate-0")), (0, decision(990, "gate-0")), (0, decision(4_000, "gate-0"))
    )
    assert found.resumed_s([hit("gate-0", 1_000)])["gate"].p50 == 3.0


def test_a_standby_scheduler_that_dies_interrupts_nothing_and_its_fence_is_no_work() -> None:
    found = taken(
        (0, event(100, "scheduler-0", EpisodeEventKind.ISSUED)),
        (3, event(500, "environment-0", EpisodeEventKind.PROGRESS)),
        (1, event(2_000, "scheduler-1", EpisodeEventKind.SCHEDULER_FENCE)),
        (1, event(2_600, "scheduler-1", EpisodeEventKind.LEASED)),
    )
    assert found.resumed_s([hit("scheduler-1", 1_000)]) == {}
    assert found.resumed_s([hit("scheduler-0", 1_000)])["scheduler"].p50 == 1.6


def test_records_of_another_run_are_passed_over() -> None:
    found = taken(
        (0, decision(100, "gate-0")), (0, decision(1_500, "gate-1", run=RunId("another")))
    )
    assert found.resumed_s([hit("gate-0", 1_000)]) == {}


def test_a_process_is_back_when_its_next_start_is_ready() -> None:
    found = taken(
        (0, state(100, WorkerStatus.READY, started_ms=50)),
        (0, state(1_200, WorkerStatus.READY, started_ms=50)),
        (0, state(2_000, WorkerStatus.STARTING, started_ms=1_900)),
        (0, state(3_500, WorkerStatus.READY, started_ms=1_900)),
        (0, state(4_500, WorkerStatus.READY, started_ms=1_900)),
    )
    assert found.back_s([hit("sink-0", 1_000)])["sink"].p50 == 2.5
    assert found.back_s([hit("sink-0", 9_000), hit("sink-1", 1_000)]) == {}


def test_updates_beyond_the_restored_checkpoint_are_work_done_again() -> None:
    steps = [learner(n, LearnerEventKind.STEP, 1, n) for n in range(1, 6)]
    found = taken(
        (0, learner(0, LearnerEventKind.EPOCH_STARTED, 1)),
        (0, learner(0, LearnerEventKind.RESTORED, 1)),
        *((0, step) for step in steps),
        (0, learner(500, LearnerEventKind.EPOCH_STARTED, 2)),
        (0, learner(501, LearnerEventKind.STEP, 1, 6)),  # of the fenced one: void
        (0, learner(600, LearnerEventKind.RESTORED, 2, 2)),
        (0, learner(900, LearnerEventKind.STEP, 2, 3)),
    )
    work = found.learner
    assert (work.restarts, work.updates_lost) == (1, 3)
    assert (work.trajectories_again, work.tokens_again) == (12, 300)
    assert work.updates_lost_each.p50 == 3.0
    assert found.resumed_s([hit("learner-0", 100)])["learner"].p50 == 0.8
