"""A world for the scheduler's core: logs in memory, and a scheduler that writes its commands into
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from schemas.enums import (
    ControlKind,
    DropReason,
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
    Role,
    StopCause,
    WorkerStatus,
)
from schemas.ids import EpisodeId, WorkerId, episode_id, group_id, task_id
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import MemberDecision, SkippedMember, TrainedMember
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.records.worker_state import WorkerState
from schemas.rules.episodes import Floors
from stream_jobs.core.authorship import Author
from stream_jobs.core.issue import (
    BeginDraining,
    Command,
    EndStream,
    GiveLease,
    GiveUp,
    IssueGroup,
    IssueRules,
    RequestPause,
    Round,
    decide,
)
from stream_jobs.core.leases import LeaseLimits
from stream_jobs.core.ledger import Ledger
from stream_jobs.core.partial import PartialRules
from tests.support.fake_rollout import RUN, task

LIMITS = LeaseLimits(request_deadline_ms=5_000, call_max_ms=60_000)
RULES = IssueRules(
    batch=4,
    eta=1,
    max_concurrent=8,
    steps=1_000,
    drain_ms=1_000,
    group_deadline_ms=10_000_000,
    retries_max={"environment_error": 2, "infrastructure_error": 2, "lease_expired": 1},
    retry_delay_ms=0,
    pause_iterations_max=5,
    partial=PartialRules(share=Decimal(1), prompts=2, completions=2),
)


def author(epoch: int = 1) -> Author:
    """Return a scheduler that writes under an epoch."""
    return Author(
        run_id=RUN,
        worker_id=WorkerId("scheduler-0"),
        epoch=epoch,
        scheduler_id=WorkerId(f"scheduler-0:{epoch}"),
    )


def issued_event(ordinal: int, *, member: int = 0, size: int = 2, epoch: int = 1) -> EpisodeEvent:
    """Return an Issued that names no scheduler."""
    return EpisodeEvent(
        run_id=RUN,
        episode_id=episode_id(RUN, ordinal, member),
        group_id=group_id(RUN, ordinal),
        kind=EpisodeEventKind.ISSUED,
        task_id=task_id(RUN, ordinal),
        ordinal=ordinal,
        member=member,
        group_size=size,
        scheduler_epoch=epoch,
        at_us=1,
        writer_id=WorkerId(""),
    )


@dataclass
class World:
    """Records in the order in which they were written, with the topic's own offsets."""

    rules: IssueRules = RULES
    size: int = 2
    now_ms: int = 1_000
    log: list[tuple[int, int, Any]] = field(default_factory=list)
    """Offset in its topic, broker time, record."""
    ledger: Ledger = field(init=False)
    author: Author = field(default_factory=author)
    tasks: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.ledger = self.new_ledger()
        self.take_over(self.author)

    def take_over(self, by: Author) -> None:
        """Let a scheduler fence and act from here on."""
        self.author = by
        self.write(by.fence(at_us=1))
        self.write(by.control(ControlKind.SCHEDULER_FENCE, at_us=1))

    def new_ledger(self) -> Ledger:
        """Return an empty ledger."""
        return Ledger(RUN, worker_gone_ms=20_000, limits=LIMITS)

    def write(self, record: Any) -> int:
        """Append a record and let the scheduler read it; return its offset in its topic."""
        offset = sum(type(one) is type(record) for _, _, one in self.log)
        self.log.append((offset, self.now_ms, record))
        self.feed(self.ledger, offset, self.now_ms, record)
        return offset

    def feed(self, ledger: Ledger, offset: int, at_ms: int, record: Any) -> None:
        """Give one record to a ledger."""
        match record:
            case EpisodeEvent():
                ledger.take_episode(0, offset, at_ms, record, read_at_ms=self.now_ms)
            case Task():
                ledger.take_task((0, offset), record)
            case GateDecision():
                ledger.take_decision((0, offset), record)
            case LearnerEvent():
                ledger.take_learner(offset, at_ms, record)
            case WorkerState():
                ledger.take_worker(record, seen_ms=at_ms)
            case ControlEvent():
                ledger.take_control(offset, at_ms, record)
            case Trajectory():
                ledger.take_trajectory((0, offset), record)
            case _:
                raise AssertionError(record)

    def rebuilt(self) -> Ledger:
        """Return a ledger that has read the whole log anew, topic by topic: a restarted
        scheduler.
        """
        ledger = self.new_ledger()
        order = (
            GateDecision,
            LearnerEvent,
            Trajectory,
            EpisodeEvent,
            ControlEvent,
            WorkerState,
            Task,
        )
        for kind in order:
            for offset, at_ms, record in self.log:
                if type(record) is kind:
                    self.feed(ledger, offset, at_ms, record)
        return ledger

    def offer(self, count: int, **fields: Any) -> None:
        """Let the task source offer some tasks."""
        for _ in range(count):
            self.write(task(self.tasks, size=self.size, **fields))
            self.tasks += 1

    def worker(
        self,
        name: str = "environment-0",
        capacity: int = 100,
        incarnation: str = "a",
        status: WorkerStatus = WorkerStatus.READY,
    ) -> None:
        """Let an environment worker be there; a later letter of `incarnation` started later."""
        self.write(
            WorkerState(
                run_id=RUN,
                worker_id=WorkerId(name),
                role=Role.ENVIRONMENT,
                capacity=capacity,
                incarnation=incarnation,
                status=status,
                started_us=ord(incarnation),
                at_us=1,
                writer_id=WorkerId(name),
            )
        )

    def look(self) -> Round:
        """Let the scheduler decide and write what it decides."""
        done = decide(self.ledger, self.rules, now_ms=self.now_ms, wall_ms=self.now_ms)
        for command in done.commands:
            self.obey(command)
        return done

    def settle(self) -> Round:
        """Look until nothing more is decided; return the last round."""
        for _ in range(50):
            done = self.look()
            if not done.commands:
                return done
        raise AssertionError("the scheduler does not come to rest")

    def obey(self, command: Command) -> None:
        """Write the records of a command."""
        by = self.author
        match command:
            case IssueGroup():
                for event in by.issued(command, ordinal=0, at_us=1):
                    self.write(event)
            case GiveLease():
                floors = Floors(tokens=0, tool_events=0)
                for event in by.leased(command, lease_ms=30_000, floors=floors, frame=b"", at_us=1):
                    self.write(event)
            case RequestPause():
                self.write(by.pause_requested(command, at_us=1))
            case GiveUp():
                self.write(by.abandoned(command, at_us=1))
            case BeginDraining():
                self.write(by.control(ControlKind.DRAINING, at_us=1))
            case EndStream():
                self.write(by.control(ControlKind.END_OF_STREAM, at_us=1))

    def environment(self, episode: EpisodeId, kind: EpisodeEventKind, **fields: Any) -> None:
        """Let the environment that holds a lease write an event."""
        rollout = next(r for r in self.ledger.rollouts() if r.episode_id == episode)
        lease = rollout.life.lease
        assert lease is not None
        self.write(
            replace(
                issued_event(rollout.group.ordinal, member=rollout.member),
                kind=kind,
                purpose=rollout.group.purpose,
                attempt=lease.attempt,
                writer_id=lease.worker_id,
                **fields,
            )
        )

    def end(self, episode: EpisodeId, cause: StopCause = StopCause.POLICY_STOP) -> None:
        """Let an attempt end."""
        self.environment(episode, EpisodeEventKind.ENDED, stop_cause=cause)

    def gate(self, ordinal: int, outcomes: dict[int, GateOutcome]) -> None:
        """Let the gate decide on a group."""
        group = self.ledger.groups[ordinal]
        gone = [r.episode_id for r in group.members.values() if r.life.abandoned is not None]
        self.write(
            GateDecision(
                run_id=RUN,
                group_id=group.group_id,
                ordinal=ordinal,
                members=tuple(
                    MemberDecision(
                        episode_id=episode_id(RUN, ordinal, member),
                        trajectory_offset=0,
                        outcome=outcome,
                    )
                    for member, outcome in outcomes.items()
                ),
                abandoned=tuple(sorted(gone)),
                at_us=1,
                writer_id=WorkerId("gate-0"),
            )
        )

    def learner(self, kind: LearnerEventKind, **fields: Any) -> None:
        """Let the learner write an event."""
        self.write(
            LearnerEvent(
                run_id=RUN,
                kind=kind,
                learner_id=WorkerId("learner-0"),
                at_us=1,
                writer_id=WorkerId("learner-0"),
                **({"epoch": 1, "number": self.number, "ordinal": self.number} | fields),
            )
        )

    def start_learner(self) -> None:
        """Let the learner start."""
        self.learner(LearnerEventKind.EPOCH_STARTED)
        self.learner(LearnerEventKind.RESTORED)

    def step(self, episodes: list[EpisodeId]) -> None:
        """Let the learner take a step."""
        self.number += 1
        members = tuple(TrainedMember(episode_id=e, partition=0, offset=0) for e in episodes)
        self.learner(LearnerEventKind.STEP, trained=members)

    def skip(self, episode: EpisodeId) -> None:
        """Let the learner discard a trajectory."""
        member = SkippedMember(episode_id=episode, partition=0, offset=0, reason=DropReason.AGE)
        self.learner(LearnerEventKind.SKIPPED, skipped=(member,))

    def leased(self) -> list[EpisodeId]:
        """Return the episodes that run."""
        return [r.episode_id for r in self.ledger.rollouts() if r.is_leased]

    @property
    def bound(self) -> int:
        """What F6 allows to be held now."""
        return (self.rules.eta + self.ledger.version + 1) * self.rules.batch

    def trajectory(self, ordinal: int, member: int) -> None:
        """Let the assembler seal an episode that is not for training."""
        self.write(
            Trajectory(
                run_id=RUN,
                episode_id=episode_id(RUN, ordinal, member),
                group_id=group_id(RUN, ordinal),
                task_id=task_id(RUN, ordinal),
                ordinal=ordinal,
                member=member,
                purpose=Purpose.EVALUATE,
                at_us=1,
                writer_id=WorkerId("assembler-0"),
            )
        )
