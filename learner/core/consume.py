"""What the learner has taken from `gated`, what waits, and what a checkpoint must remember (design
sections 8 and 10).

Per partition: W is the highest committed input offset of the gate named by earlier records; a
record whose trajectory lies below W, or whose trajectory offset is taken, is a repeat. Offsets
settle out of order, so the position of a partition is its lowest unsettled offset, and the W and
taken offsets that a checkpoint holds are those *at that position*: a W from beyond it would turn
waiting trajectories into repeats when they are read again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.core.staleness import (
    Bounds,
    Lineage,
    Staleness,
    judge,
    oldest_version,
    versions_of,
)
from schemas.enums import DropReason
from schemas.errors import InvariantError
from schemas.ids import EpisodeId, GroupId
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import SkippedMember
from schemas.records.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A gated trajectory that was read and is neither trained nor discarded."""

    partition: int
    """Partition in gated.v1."""
    offset: int
    """Offset in gated.v1. Unit: records."""
    arrival: int
    """Place in the order of reading, from 0. Unit: records."""
    gated: GatedTrajectory
    trajectory: Trajectory

    @property
    def episode_id(self) -> EpisodeId:
        """The rollout."""
        return self.trajectory.episode_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A trajectory of the next step with its staleness at that moment."""

    waiting: Waiting
    staleness: Staleness


@dataclass(slots=True)
class _Entry:
    offset: int
    trajectory_offset: int
    input_offset: int
    settled: bool


@dataclass(slots=True)
class _Partition:
    position: int
    """Lowest unsettled offset."""
    floor: int = 0
    """W at the position."""
    taken: set[int] = field(default_factory=set)
    """Settled trajectory offsets at or above the floor, from records below the position or a
    checkpoint.
    """
    head_floor: int = 0
    """W over all that was read."""
    seen: set[int] = field(default_factory=set)
    """Trajectory offsets read at or above the head's W."""
    entries: deque[_Entry] = field(default_factory=deque)
    """What was read at or above the position, in log order."""

    @property
    def next_offset(self) -> int:
        """Next offset to read."""
        return self.entries[-1].offset + 1 if self.entries else self.position

    def has(self, trajectory_offset: int) -> bool:
        """Whether a trajectory was read or consumed: below the head's W, or at a seen offset."""
        return trajectory_offset < self.head_floor or trajectory_offset in self.seen

    def enter(self, entry: _Entry) -> None:
        """Take the next entry."""
        self.entries.append(entry)
        if entry.trajectory_offset >= 0:
            self.seen.add(entry.trajectory_offset)
        if entry.input_offset > self.head_floor:
            self.head_floor = entry.input_offset
            self.seen = {at for at in self.seen if at >= self.head_floor}
        self.advance()

    def advance(self) -> None:
        """Move the position over settled entries."""
        while self.entries and self.entries[0].settled:
            entry = self.entries.popleft()
            self.position = entry.offset + 1
            if entry.trajectory_offset >= 0:
                self.taken.add(entry.trajectory_offset)
            if entry.input_offset > self.floor:
                self.floor = entry.input_offset
                self.taken = {offset for offset in self.taken if offset >= self.floor}

    def all_taken(self) -> set[int]:
        """Taken offsets as of the position: what lies above it and is settled included."""
        above = {
            entry.trajectory_offset
            for entry in self.entries
            if entry.settled and entry.trajectory_offset >= self.floor
        }
        return self.taken | above


class Consumption:
    """The learner's side of `gated`: reads in, batches and discards out. No clock, no bus."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        """Start at the given next offset of each partition, with nothing taken."""
        self._partitions = {p: _Partition(position=offset) for p, offset in positions.items()}
        self._waiting: dict[EpisodeId, Waiting] = {}
        self._arrivals = 0
        self.repeats = 0
        """Repeated records seen since `take_repeats`."""
        self.clock_skews = 0
        """Judgements in which broker time lay ahead of the learner's clock."""
        self.expired: Counter[tuple[str, str]] = Counter()
        """Discards by (reason, environment)."""

    @property
    def waiting(self) -> int:
        """Trajectories read and not settled. Unit: trajectories."""
        return len(self._waiting)

    def waiting_episodes(self) -> frozenset[EpisodeId]:
        """The rollouts that were read and are not settled."""
        return frozenset(self._waiting)

    def next_offsets(self) -> dict[int, int]:
        """Next offset to read per partition."""
        return {p: state.next_offset for p, state in self._partitions.items()}

    def positions(self) -> dict[int, int]:
        """Lowest unsettled offset per partition: where a reader that knows nothing of us would have
        to start.
        """
        return {p: state.position for p, state in self._partitions.items()}

    def is_repeat(self, partition: int, gated: GatedTrajectory) -> bool:
        """Whether the next record of a partition repeats one that was read or consumed."""
        state = self._partitions.get(partition)
        if gated.episode_id in self._waiting:
            return True
        return state is not None and state.has(gated.trajectory_offset)

    def is_taken(self, partition: int, trajectory_offset: int) -> bool:
        """Whether the trajectory at an offset was read or consumed."""
        state = self._partitions.get(partition)
        return state is not None and state.has(trajectory_offset)

    def take(
        self, partition: int, offset: int, gated: GatedTrajectory, trajectory: Trajectory
    ) -> bool:
        """Take the next record of a partition; return False when it is a repeat.

        Raises InvariantError when the offset was read before.
        """
        if self.is_repeat(partition, gated):
            self.take_repeat(partition, offset, gated)
            return False
        self._next(partition, offset).enter(
            _Entry(offset, gated.trajectory_offset, gated.input_offset, False)
        )
        self._waiting[gated.episode_id] = Waiting(
            partition=partition,
            offset=offset,
            arrival=self._arrivals,
            gated=gated,
            trajectory=trajectory,
        )
        self._arrivals += 1
        return True

    def take_repeat(self, partition: int, offset: int, gated: GatedTrajectory) -> None:
        """Pass over a repeat; it is counted apart and is no drop."""
        # It says nothing of its trajectory: the first copy may still wait, and is not taken then.
        self._next(partition, offset).enter(_Entry(offset, -1, gated.input_offset, True))
        self.repeats += 1

    def take_foreign(self, partition: int, offset: int) -> None:
        """Pass over a record that is not ours: another run's."""
        self._next(partition, offset).enter(_Entry(offset, -1, 0, True))

    def take_unusable(
        self,
        partition: int,
        offset: int,
        trajectory_offsets: Iterable[int] = (),
        input_offset: int = 0,
    ) -> None:
        """Pass over a record that cannot be used.

        The trajectories named with it are taken: later copies of them are repeats.
        """
        state = self._next(partition, offset)
        for at in trajectory_offsets:
            state.seen.add(at)
            state.taken.add(at)
        state.enter(_Entry(offset, -1, input_offset, True))

    def _next(self, partition: int, offset: int) -> _Partition:
        state = self._partitions.setdefault(partition, _Partition(position=offset))
        if offset < state.next_offset:
            raise InvariantError(f"gated partition {partition} offset {offset} was read before")
        return state

    def expire(self, *, now_us: int, lineage: Lineage, bounds: Bounds) -> tuple[SkippedMember, ...]:
        """Discard what may no longer be consumed, and say why; its places are settled at once."""
        discarded = []
        for waiting in tuple(self._waiting.values()):
            staleness = self._judge(waiting, now_us, lineage, bounds)
            if staleness.reason is not DropReason.NONE:
                discarded.append(self.discard(waiting, staleness.reason, staleness))
        return tuple(discarded)

    def _judge(self, waiting: Waiting, now_us: int, lineage: Lineage, bounds: Bounds) -> Staleness:
        staleness = judge(
            oldest=oldest_version(waiting.trajectory),
            trajectory_us=waiting.gated.trajectory_us,
            first_token_us=waiting.trajectory.first_token_us,
            now_us=now_us,
            lineage=lineage,
            bounds=bounds,
            versions=versions_of(waiting.trajectory),
        )
        self.clock_skews += staleness.clock_skew
        return staleness

    def discard(
        self, waiting: Waiting, reason: DropReason, staleness: Staleness | None = None
    ) -> SkippedMember:
        """Discard one waiting trajectory and return what a Skipped record says of it."""
        self._settle(waiting)
        self.expired[reason.value, waiting.trajectory.environment] += 1
        return SkippedMember(
            episode_id=waiting.episode_id,
            partition=waiting.partition,
            offset=waiting.offset,
            reason=reason,
            lag_steps=staleness.lag_steps if staleness else 0,
            age_ms=staleness.age_ms if staleness else 0,
            action_tokens=waiting.trajectory.action_tokens,
        )

    def members_waiting(self, group: GroupId) -> tuple[Waiting, ...]:
        """The waiting members of a group."""
        return tuple(w for w in self._waiting.values() if w.gated.group_id == group)

    def choose(
        self, *, batch: int, whole_groups: bool, now_us: int, lineage: Lineage, bounds: Bounds
    ) -> tuple[Chosen, ...]:
        """Return the next step's trajectories, or nothing while fewer than `batch` wait. Settles
        nothing.

        Groups go in the order in which their first waiting member arrived. With `whole_groups` a
        group that does not fit into what is left lets later ones pass that do; when none does, it
        is cut, so nothing waits for a group. Call `expire` with the same moment before: a stale one
        here raises InvariantError.
        """
        if len(self._waiting) < batch:
            return ()
        groups: dict[GroupId, list[Waiting]] = {}
        for waiting in self._waiting.values():
            groups.setdefault(waiting.gated.group_id, []).append(waiting)
        picked: list[Waiting] = []
        cut: list[Waiting] = []
        for members in groups.values():
            if whole_groups and len(members) > batch - len(picked):
                cut.extend(members)
            else:
                picked.extend(members)
            if len(picked) >= batch:
                break
        chosen = (picked + cut)[:batch]
        out = []
        for waiting in sorted(chosen, key=lambda waiting: waiting.arrival):
            staleness = self._judge(waiting, now_us, lineage, bounds)
            if staleness.reason is not DropReason.NONE:
                raise InvariantError(f"{waiting.episode_id} is stale and was not discarded first")
            out.append(Chosen(waiting=waiting, staleness=staleness))
        return tuple(out)

    def settle(self, episodes: Iterable[EpisodeId]) -> None:
        """Mark waiting trajectories as trained; raise InvariantError for one that does not wait."""
        for episode in episodes:
            waiting = self._waiting.get(episode)
            if waiting is None:
                raise InvariantError(f"{episode} was trained without waiting for it")
            self._settle(waiting)

    def _settle(self, waiting: Waiting) -> None:
        del self._waiting[waiting.episode_id]
        state = self._partitions[waiting.partition]
        for entry in state.entries:
            if entry.offset == waiting.offset:
                entry.settled = True
                break
        state.advance()

    def take_repeats(self) -> int:
        """Return the repeats seen since the last call."""
        seen, self.repeats = self.repeats, 0
        return seen

    def counters(self) -> dict[str, Any]:
        """Return what went stale so far, as JSON values."""
        return {
            "clock_skews": self.clock_skews,
            "expired": [[*key, count] for key, count in sorted(self.expired.items())],
        }

    def restore_counters(self, saved: Mapping[str, Any]) -> None:
        """Go on counting from what `counters` returned."""
        self.clock_skews = int(saved["clock_skews"])
        self.expired = Counter({(reason, name): n for reason, name, n in saved["expired"]})

    def to_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON values: per partition position, W and taken
        offsets.
        """
        return {
            str(p): {
                "position": state.position,
                "floor": state.floor,
                "taken": sorted(state.all_taken()),
            }
            for p, state in sorted(self._partitions.items())
        }

    @classmethod
    def from_state(cls, saved: Mapping[str, Any], starts: Mapping[int, int]) -> Consumption:
        """Return the state that `to_state` described; what it lacks begins at `starts`."""
        out = cls(starts)
        for key, values in saved.items():
            floor, taken = int(values["floor"]), {int(at) for at in values["taken"]}
            out._partitions[int(key)] = _Partition(
                position=int(values["position"]),
                floor=floor,
                taken=set(taken),
                head_floor=floor,
                seen=set(taken),
            )
        return out
