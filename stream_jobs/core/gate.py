"""One partition of the gate: which groups are open, what is decided, what is owed to the learner
(design section 8).

Invariants. The first decision of a group in the log is the decision, whoever wrote it; `gated`
follows decisions that were read, never decisions that were made. A Trajectory whose group is not
open is superseded. The input offset is the lowest trajectory not finished: undecided, or admitted
with a `gated` record that is not acknowledged. Floors agree with one another, so that a restart
finds each open group's first Issued, and the decision of each group of which it finds any Issued: a
member that was issued anew, because its first Issued was lost, stands far above its siblings.

The caller gives episodes and decisions up to ends that it sampled after a trajectory arrived, and
only then the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.enums import EpisodeEventKind, GateOutcome, Purpose
from schemas.ids import EpisodeId, GroupId, TaskId, WorkerId, group_of_episode
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.parts import MemberDecision
from schemas.records.trajectory import Trajectory
from schemas.rules.decisions import Decisions
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.topics import EPISODES, GATE_DECISIONS
from stream_jobs.core.floors import Floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A trajectory as the gate read it."""

    offset: int
    timestamp_ms: int
    episode_id: EpisodeId
    trajectory: Trajectory | None
    """None when the record could not be decoded; its key names the episode."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The first decision of a group."""

    offset: int
    decision: GateDecision

    def member(self, arrived: Arrived) -> MemberDecision | None:
        """Return what it says of this very trajectory."""
        for member in self.decision.members:
            if (member.episode_id, member.trajectory_offset) == (
                arrived.episode_id,
                arrived.offset,
            ):
                return member
        return None


@dataclass(slots=True, kw_only=True, eq=False)
class OpenGroup:
    """A group for training that is issued and not finished."""

    group_id: GroupId
    task_id: TaskId
    ordinal: int
    size: int
    issued_offset: int
    fence: tuple[int, WorkerId]
    """The SchedulerFence that was current at its first Issued."""
    last_issued_offset: int = -1
    """Offset of the last Issued of its members that was read. Unit: records."""
    lives: dict[EpisodeId, EpisodeLife] = field(default_factory=dict)
    firsts: dict[EpisodeId, Arrived] = field(default_factory=dict)
    abandoned: set[EpisodeId] = field(default_factory=set)
    decided: Decided | None = None
    unsent: set[int] = field(default_factory=set)
    """Offsets of admitted trajectories without an acknowledged `gated`."""

    @property
    def is_complete(self) -> bool:
        """Whether every member has a first Trajectory or an Abandoned that counts."""
        return self.decided is None and len(self.firsts) + len(self.abandoned) == self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A `gated` record to write: an Admit of a first decision, with the trajectory."""

    arrived: Arrived
    decided: Decided
    member: MemberDecision


class GatePartition:
    """See the module. `superseded` and `skipped` count trajectories that are finished without a
    decision.
    """

    def __init__(self, floors: Floors) -> None:
        """Start at committed floors, or at the run's starts."""
        self.next_offset = floors.offset
        """One above the last trajectory taken. Unit: records."""
        self.committed = floors.offset
        """The committed input offset, which `gated` records carry. Unit: records."""
        self.superseded = 0
        self.skipped = 0
        self._started_at = floors.offset
        self._fences = SchedulerFences(floors.fence)
        self._next = {name: floors.others[name] for name in (EPISODES.name, GATE_DECISIONS.name)}
        self._decisions = Decisions()
        self._groups: dict[GroupId, OpenGroup] = {}
        self._finished: dict[GroupId, tuple[int, int]] = {}
        """Its last Issued and its decision, until no Issued of it is at or above the floor."""
        self._strangers: dict[GroupId, Decided] = {}
        self._unfinished: set[int] = set()
        self._owed: dict[int, Owed] = {}

    @property
    def open_groups(self) -> int:
        """Groups issued and not finished."""
        return len(self._groups)

    @property
    def has_strangers(self) -> bool:
        """Whether decisions were read that wait for more of `episodes`; see `place_strangers`."""
        return bool(self._strangers)

    def take_episode(self, offset: int, timestamp_ms: int, event: EpisodeEvent) -> None:
        """Take the next record of `episodes`."""
        self._next[EPISODES.name] = offset + 1
        if not self._fences.take(event) or event.purpose is not Purpose.TRAIN:
            return
        if event.kind in (EpisodeEventKind.SCHEDULER_FENCE, EpisodeEventKind.PROGRESS):
            return
        if event.kind is EpisodeEventKind.ISSUED:
            group = self._issue(offset, event)
        else:
            group = self._groups.get(event.group_id)
        if group is None:
            return
        life = group.lives.setdefault(event.episode_id, EpisodeLife())
        if life.take(offset, timestamp_ms, event) and event.kind is EpisodeEventKind.ABANDONED:
            group.abandoned.add(event.episode_id)
            early = group.firsts.pop(event.episode_id, None)
            if early is not None:
                self._unfinished.discard(early.offset)
                self.superseded += 1

    def take_decision(self, offset: int, decision: GateDecision) -> None:
        """Take the next record of `gate-decisions`, whoever wrote it."""
        self._next[GATE_DECISIONS.name] = offset + 1
        if decision.group_id in self._finished or not self._decisions.take(offset, decision):
            return
        decided = Decided(offset=offset, decision=decision)
        group = self._groups.get(decision.group_id)
        if group is not None and group.is_complete:
            self._attach(group, decided)
        else:
            # Its writer had read more of `episodes`: some Issued of the group may be yet to come.
            self._strangers[decision.group_id] = decided

    def place_strangers(self) -> None:
        """Follow the decisions on groups that are open and drop the others, once episodes were read
        past ends sampled after the decisions.

        The Issued of the others lie below the floor: they were finished before this gate owned the
        partition.
        """
        for group_id, decided in self._strangers.items():
            group = self._groups.get(group_id)
            if group is None:
                self._decisions.forget(group_id)
            else:
                self._attach(group, decided)
        self._strangers.clear()

    def take_trajectory(self, arrived: Arrived) -> None:
        """Take the next record of `trajectories`."""
        self.next_offset = arrived.offset + 1
        trajectory = arrived.trajectory
        if trajectory is not None and trajectory.purpose is not Purpose.TRAIN:
            self.skipped += 1
            return
        group = self._groups.get(_group_of(arrived))
        if group is None or arrived.episode_id in group.abandoned:
            self.superseded += 1
        elif group.decided is not None:
            self._settle(group, group.decided, arrived)
            self._finish_if_done(group)
        elif arrived.episode_id in group.firsts or arrived.episode_id not in group.lives:
            self.superseded += 1
        else:
            group.firsts[arrived.episode_id] = arrived
            self._unfinished.add(arrived.offset)

    def complete(self) -> Iterator[OpenGroup]:
        """Return the groups that are to be decided now."""
        return (group for group in self._groups.values() if group.is_complete)

    def owed(self) -> tuple[Owed, ...]:
        """Return the `gated` records to write, in the order of their trajectories."""
        return tuple(self._owed[offset] for offset in sorted(self._owed))

    def sent(self, owed: Owed) -> None:
        """Take the acknowledgement of a `gated` record."""
        offset = owed.arrived.offset
        self._owed.pop(offset, None)
        self._unfinished.discard(offset)
        group = self._groups.get(owed.decided.decision.group_id)
        if group is not None:
            group.unsent.discard(offset)
            self._finish_if_done(group)

    @property
    def input_offset(self) -> int:
        """The lowest trajectory that is not finished, or the next one. Unit: records."""
        return min(self._unfinished, default=self.next_offset)

    def floors(self) -> Floors:
        """Return what to commit now."""
        oldest = min(self._groups.values(), key=lambda group: group.issued_offset, default=None)
        episodes = oldest.issued_offset if oldest else self._next[EPISODES.name]
        self._finished = {
            group: places for group, places in self._finished.items() if places[0] >= episodes
        }
        decided = [offset for _, offset in self._finished.values()]
        decided += [g.decided.offset for g in self._groups.values() if g.decided is not None]
        decided += [stranger.offset for stranger in self._strangers.values()]
        return Floors(
            offset=self.input_offset,
            others={
                EPISODES.name: episodes,
                GATE_DECISIONS.name: min(decided, default=self._next[GATE_DECISIONS.name]),
            },
            fence=oldest.fence if oldest else self._fences.current,
        )

    def _issue(self, offset: int, event: EpisodeEvent) -> OpenGroup | None:
        finished = self._finished.get(event.group_id)
        if finished is not None:
            self._finished[event.group_id] = (offset, finished[1])
            return None
        group = self._groups.get(event.group_id)
        if group is None:
            group = self._groups[event.group_id] = self._opened(offset, event)
        group.last_issued_offset = offset
        return group

    def _opened(self, offset: int, event: EpisodeEvent) -> OpenGroup:
        return OpenGroup(
            group_id=event.group_id,
            task_id=event.task_id,
            ordinal=event.ordinal,
            size=event.group_size,
            issued_offset=offset,
            fence=self._fences.current,
        )

    def _attach(self, group: OpenGroup, decided: Decided) -> None:
        group.decided = decided
        # What lies below the offset this gate started at was finished when that offset was
        # committed.
        group.unsent = {
            member.trajectory_offset
            for member in decided.decision.members
            if member.outcome is GateOutcome.ADMIT and member.trajectory_offset >= self._started_at
        }
        for arrived in group.firsts.values():
            self._settle(group, decided, arrived)
        group.firsts.clear()
        self._finish_if_done(group)

    def _settle(self, group: OpenGroup, decided: Decided, arrived: Arrived) -> None:
        member = decided.member(arrived)
        if member is not None and member.outcome is GateOutcome.ADMIT:
            if arrived.offset in group.unsent:
                self._unfinished.add(arrived.offset)
                self._owed[arrived.offset] = Owed(arrived=arrived, decided=decided, member=member)
            return
        self._unfinished.discard(arrived.offset)
        if member is None:
            self.superseded += 1

    def _finish_if_done(self, group: OpenGroup) -> None:
        if group.decided is None or group.unsent:
            return
        self._finished[group.group_id] = (group.last_issued_offset, group.decided.offset)
        self._decisions.forget(group.group_id)
        del self._groups[group.group_id]


def _group_of(arrived: Arrived) -> GroupId:
    if arrived.trajectory is not None:
        return arrived.trajectory.group_id
    try:
        return group_of_episode(arrived.episode_id)
    except ValueError:
        return GroupId("")
