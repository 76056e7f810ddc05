"""What the log says about a run's work: groups, rollouts, leases, and the counters of the admission
bound (design section 9).

The state is a function of the records taken, in log order within a partition and in any order
between topics, so that a restarted scheduler rebuilds it by reading. Of closed groups only numbers
stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from schemas.enums import EpisodeEventKind, GateOutcome, Purpose, Role
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId, episode_id, group_id
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.records.worker_state import WorkerState
from schemas.rules.episodes import EpisodeLife, SchedulerFences, is_for
from schemas.rules.lineage import LearnerLog
from schemas.topics import GATE_DECISIONS, TASKS, TRAJECTORIES, Topic
from stream_jobs.core.frontier import Frontier
from stream_jobs.core.leases import LeaseClock, LeaseLimits
from stream_jobs.core.roster import Roster
from stream_jobs.core.run_control import RunControl

LEASE_EXPIRED = "lease_expired"
"""Failure class of a lease that ran out, beside the retried stop causes."""
WORKER_LOST = "worker_lost"
"""Failure class of a lease whose worker was replaced by a new process under its id."""


Place: TypeAlias = tuple[int, int]
"""Partition and offset of a record."""


@dataclass(slots=True, kw_only=True, eq=False)
class Rollout:
    """One member of an open group."""

    episode_id: EpisodeId
    member: int
    group: Group
    life: EpisodeLife = field(default_factory=EpisodeLife)
    clock: LeaseClock | None = None
    lost_as: str = ""
    """Failure class of its lease, once the log was read past the moment the lease was over."""
    evaluated_at: Place | None = None
    """Not for training, and its first Trajectory stands there."""
    ready_at_ms: int = 0
    """Monotonic time before which it is not leased again. Unit: ms."""
    paused_ms: int = 0
    """Broker time of its Paused. Unit: ms."""

    @property
    def is_evaluated(self) -> bool:
        """Whether its first Trajectory settled it, since it is not for training."""
        return self.evaluated_at is not None

    @property
    def is_leased(self) -> bool:
        """Whether a worker holds it now."""
        return self.life.lease is not None and not self.lost_as

    @property
    def is_waiting(self) -> bool:
        """Whether it wants a lease: never leased, failed, or its lease ran out."""
        life = self.life
        if life.is_closed or life.is_paused:
            return False
        return life.lease is None or bool(self.lost_as)

    @property
    def failures(self) -> dict[str, int]:
        """Failures so far by class, the lease that just ran out included."""
        failures = dict(self.life.failures)
        if self.lost_as:
            failures[self.lost_as] = failures.get(self.lost_as, 0) + 1
        return failures

    @property
    def evidence(self) -> tuple[str, ...]:
        """What became of its newest failed attempts, the lease that just ran out included."""
        lease = self.life.lease
        if not self.lost_as or lease is None:
            return self.life.evidence
        return (
            *self.life.evidence,
            f"attempt {lease.attempt} on {lease.worker_id}: {self.lost_as}",
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """A group that is issued and not settled."""

    ordinal: int
    group_id: GroupId
    partition: int
    purpose: Purpose
    size: int
    issued_ms: int
    """Broker time of its first Issued. Unit: ms."""
    issued_offset: int
    """Offset of its first Issued. Unit: records."""
    fence: tuple[int, WorkerId]
    """The SchedulerFence that was current there."""
    members: dict[int, Rollout] = field(default_factory=dict)
    abandoned: int = 0

    @property
    def missing(self) -> tuple[int, ...]:
        """Members without an Issued: a scheduler died between them."""
        return tuple(m for m in range(self.size) if m not in self.members)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Episodes of the run, by what became of them."""

    issued: int = 0
    admitted: int = 0
    dropped: int = 0
    abandoned: int = 0
    evaluated: int = 0
    issued_train: int = 0
    released_train: int = 0
    """Abandoned, or decided without Admit. Unit: episodes."""


class Ledger:
    """See the module; every `take_*` is given the records of one run only."""

    def __init__(self, run: RunId, *, worker_gone_ms: int, limits: LeaseLimits) -> None:
        """Start before the first record."""
        self.run = run
        self.learner = LearnerLog()
        self.control = RunControl()
        self.roster = Roster(Role.ENVIRONMENT, gone_ms=worker_gone_ms)
        self.counts = Counts()
        self.closed = Frontier()
        """Ordinals whose group is settled; its contiguous part is the settled cursor."""
        self.tasks: dict[int, Task] = {}
        """Tasks that are offered, or whose group is open."""
        self.groups: dict[int, Group] = {}
        self.fences: dict[int, SchedulerFences] = {}
        self._limits = limits
        self._task_places: dict[int, Place] = {}
        self._early_decisions: dict[int, tuple[Place, GateDecision]] = {}
        self._early_trajectories: dict[EpisodeId, Place] = {}

    @property
    def held(self) -> int:
        """Accepted + open of the admission bound, purpose train. Unit: episodes."""
        counts = self.counts
        return counts.issued_train - counts.released_train - len(self.learner.skipped)

    @property
    def version(self) -> int:
        """v of the bound: the newest ordinal on the lineage. Unit: updates."""
        return self.learner.newest_ordinal

    def rollouts(self) -> Iterator[Rollout]:
        """Return the members of open groups, oldest first."""
        for ordinal in sorted(self.groups):
            yield from self.groups[ordinal].members.values()

    def offered(self) -> Iterable[int]:
        """Return the ordinals that may be issued, in order."""
        return sorted(ordinal for ordinal in self.tasks if ordinal not in self.groups)

    def fence(self, partition: int) -> SchedulerFences:
        """Return the scheduler that counts in a partition of `episodes`."""
        return self.fences.setdefault(partition, SchedulerFences())

    def held_back(self, topic: Topic[Any]) -> Collection[Place]:
        """Return where the records of a topic stand that a rebuilt ledger must read again."""
        if topic is TASKS:
            return self._task_places.values()
        if topic is GATE_DECISIONS:
            return [at for at, _ in self._early_decisions.values()]
        assert topic is TRAJECTORIES
        return self._early_trajectories.values()

    def take_task(self, at: Place, task: Task) -> None:
        """Take a Task; the first record of an ordinal counts."""
        if task.ordinal not in self.closed and task.ordinal not in self.tasks:
            self.tasks[task.ordinal] = task
            self._task_places[task.ordinal] = at

    def take_control(self, offset: int, timestamp_ms: int, event: ControlEvent) -> None:
        """Take a record of `control`."""
        self.control.take(offset, timestamp_ms, event)

    def take_learner(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> None:
        """Take a record of `learner-steps`."""
        self.learner.take(offset, timestamp_ms, event)

    def take_worker(self, state: WorkerState, *, seen_ms: int) -> None:
        """Take a record of `workers` that was true at monotonic time `seen_ms`. Unit: ms."""
        self.roster.take(state, seen_ms=seen_ms)

    def take_episode(
        self,
        partition: int,
        offset: int,
        timestamp_ms: int,
        event: EpisodeEvent,
        *,
        read_at_ms: int,
    ) -> None:
        """Take a record of `episodes`, read at monotonic time `read_at_ms`. Unit: ms."""
        if not self.fence(partition).take(event):
            return
        if event.kind is EpisodeEventKind.SCHEDULER_FENCE or event.ordinal in self.closed:
            return
        if event.kind is EpisodeEventKind.ISSUED:
            self._issue(partition, offset, timestamp_ms, event)
            return
        group = self.groups.get(event.ordinal)
        rollout = group.members.get(event.member) if group else None
        if rollout is None or rollout.episode_id != event.episode_id:
            return
        if rollout.life.take(offset, timestamp_ms, event):
            self._after(rollout, event, timestamp_ms, read_at_ms)

    def take_decision(self, at: Place, decision: GateDecision) -> None:
        """Take a GateDecision; the first of its group counts."""
        ordinal = int(decision.group_id.rsplit(".", 2)[1])
        group = self.groups.get(ordinal)
        if ordinal in self.closed:
            return
        if group is None:
            self._early_decisions.setdefault(ordinal, (at, decision))
            return
        self._decide(group, decision)

    def take_trajectory(self, at: Place, trajectory: Trajectory) -> None:
        """Take a Trajectory: it settles a member that is not for training."""
        if trajectory.purpose is Purpose.TRAIN or trajectory.ordinal in self.closed:
            return
        group = self.groups.get(trajectory.ordinal)
        rollout = group.members.get(trajectory.member) if group else None
        if group is None or rollout is None:
            self._early_trajectories.setdefault(trajectory.episode_id, at)
            return
        self._evaluate(group, rollout, at)

    def overdue(self, *, now_ms: int) -> set[int]:
        """Return the partitions that hold leases which have run out as far as was read."""
        return {
            rollout.group.partition
            for rollout in self.rollouts()
            if rollout.is_leased and self._lost_as(rollout, now_ms)
        }

    def expire(self, partitions: Collection[int], *, sampled_at_ms: int) -> int:
        """End the leases that had run out at `sampled_at_ms`; return how many that are.

        The caller has read these partitions past the ends that it sampled at that time: a Progress
        that could have extended such a lease would have been seen.
        """
        ended = 0
        for rollout in self.rollouts():
            if rollout.group.partition not in partitions or not rollout.is_leased:
                continue
            rollout.lost_as = self._lost_as(rollout, sampled_at_ms)
            ended += bool(rollout.lost_as)
        return ended

    def _lost_as(self, rollout: Rollout, now_ms: int) -> str:
        clock, lease = rollout.clock, rollout.life.lease
        assert clock is not None
        assert lease is not None
        if clock.is_over(now_ms=now_ms):
            return LEASE_EXPIRED
        # A new process under the worker's id no longer runs what the lease gave the old one.
        newest = self.roster.incarnation(lease.worker_id)
        return "" if is_for(clock.incarnation, newest) else WORKER_LOST

    def _issue(self, partition: int, offset: int, timestamp_ms: int, event: EpisodeEvent) -> None:
        group = self.groups.get(event.ordinal)
        if group is None:
            group = Group(
                ordinal=event.ordinal,
                group_id=group_id(self.run, event.ordinal),
                partition=partition,
                purpose=event.purpose,
                size=event.group_size,
                issued_ms=timestamp_ms,
                issued_offset=offset,
                fence=self.fence(partition).current,
            )
            self.groups[event.ordinal] = group
            self.counts.issued += group.size
            if group.purpose is Purpose.TRAIN:
                self.counts.issued_train += group.size
        if event.member not in group.members:
            rollout = Rollout(
                episode_id=episode_id(self.run, event.ordinal, event.member),
                member=event.member,
                group=group,
            )
            group.members[event.member] = rollout
            rollout.life.take(offset, timestamp_ms, event)
            at = self._early_trajectories.pop(rollout.episode_id, None)
            if at is not None:
                self._evaluate(group, rollout, at)
        early = self._early_decisions.pop(event.ordinal, None)
        if early is not None:
            self._decide(group, early[1])

    def _after(
        self, rollout: Rollout, event: EpisodeEvent, timestamp_ms: int, read_at_ms: int
    ) -> None:
        match event.kind:
            case EpisodeEventKind.LEASED:
                rollout.lost_as = ""
                rollout.clock = LeaseClock.begin(
                    event,
                    read_at_ms=read_at_ms,
                    incarnation=self.roster.incarnation(event.worker_id),
                )
            case EpisodeEventKind.PROGRESS if rollout.clock is not None:
                rollout.clock.progress(event, read_at_ms=read_at_ms, limits=self._limits)
            case EpisodeEventKind.PAUSED:
                rollout.lost_as = ""
                rollout.paused_ms = timestamp_ms
            case EpisodeEventKind.ENDED:
                rollout.lost_as = ""
                rollout.ready_at_ms = read_at_ms
            case EpisodeEventKind.ABANDONED:
                self._abandon(rollout.group)
            case _:
                pass

    def _abandon(self, group: Group) -> None:
        group.abandoned += 1
        self.counts.abandoned += 1
        if group.purpose is Purpose.TRAIN:
            self.counts.released_train += 1
        self._close_if_settled(group)

    def _evaluate(self, group: Group, rollout: Rollout, at: Place) -> None:
        if rollout.is_evaluated or rollout.life.abandoned is not None:
            return
        rollout.evaluated_at = at
        self.counts.evaluated += 1
        self._close_if_settled(group)

    def _decide(self, group: Group, decision: GateDecision) -> None:
        outcomes = [member.outcome for member in decision.members]
        admitted = outcomes.count(GateOutcome.ADMIT)
        abandoned = len(decision.abandoned)
        self.counts.admitted += admitted
        self.counts.dropped += group.size - admitted - abandoned
        # A decision may be read before the Abandoned that it rests on; each counts once.
        self.counts.abandoned += abandoned - group.abandoned
        self.counts.released_train += group.size - admitted - group.abandoned
        self._close(group)

    def _close_if_settled(self, group: Group) -> None:
        settled = group.abandoned + sum(r.is_evaluated for r in group.members.values())
        if settled == group.size:
            self._close(group)

    def _close(self, group: Group) -> None:
        del self.groups[group.ordinal]
        self.tasks.pop(group.ordinal, None)
        self._task_places.pop(group.ordinal, None)
        self.closed.add(group.ordinal)
