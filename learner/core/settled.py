"""Which tasks of the run are settled: the cursor that a checkpoint carries (design section 9).

An ordinal is settled once nothing more can come of its group: every member is abandoned, dropped by
the gate, trained or skipped by the learner, or, when it is not for training, assembled. The cursor
is the highest ordinal up to which all are. Paused episodes are told beside it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from schemas.enums import EpisodeEventKind, GateOutcome, Purpose
from schemas.ids import EpisodeId, GroupId
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.trajectory import Trajectory
from schemas.rules.episodes import EpisodeLife, SchedulerFences


@dataclass(slots=True)
class _Member:
    life: EpisodeLife = field(default_factory=EpisodeLife)
    snapshot: str = ""
    is_assembled: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing more comes of it when no decision waits for it."""
        return self.is_assembled or self.life.abandoned_mark is not None


@dataclass(slots=True)
class _Group:
    ordinal: int
    size: int
    members: dict[EpisodeId, _Member] = field(default_factory=dict)


class Settled:
    """The settled tasks of one run after the records taken so far, topic by topic in log order."""

    def __init__(self) -> None:
        self.issued_end = 0
        """One above the highest ordinal issued. Unit: tasks."""
        self._fences: dict[int, SchedulerFences] = {}
        self._groups: dict[GroupId, _Group] = {}
        self._decided: dict[GroupId, tuple[EpisodeId, ...]] = {}
        """Admitted members by the first decision, of groups that are not settled."""
        self._assembled: set[EpisodeId] = set()
        """Not for training, and read before their Issued."""
        self._lowest = 0
        self._above: set[int] = set()

    def take_episode(
        self, partition: int, offset: int, timestamp_ms: int, event: EpisodeEvent
    ) -> None:
        """Take the next record of a partition of `episodes`."""
        counts = self._fences.setdefault(partition, SchedulerFences()).take(event)
        if not counts or event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            return
        if self._is_closed(event.ordinal):
            return
        if event.kind is EpisodeEventKind.ISSUED:
            self.issued_end = max(self.issued_end, event.ordinal + 1)
            group = self._groups.setdefault(
                event.group_id, _Group(event.ordinal, max(1, event.group_size))
            )
            group.members.setdefault(event.episode_id, _Member()).is_assembled |= (
                event.episode_id in self._assembled
            )
            self._assembled.discard(event.episode_id)
        member = self._member(event.group_id, event.episode_id)
        if member is None or not member.life.take(offset, timestamp_ms, event):
            return
        if event.kind is EpisodeEventKind.PAUSED:
            member.snapshot = event.snapshot_id

    def take_decision(self, decision: GateDecision) -> None:
        """Take the next record of a partition of `gate-decisions`; the first of a group counts."""
        if self._is_closed(decision.ordinal):
            return
        self._decided.setdefault(
            decision.group_id,
            tuple(m.episode_id for m in decision.members if m.outcome is GateOutcome.ADMIT),
        )

    def take_trajectory(self, trajectory: Trajectory) -> None:
        """Take a record of `trajectories`: it settles an episode that is not for training."""
        if trajectory.purpose is Purpose.TRAIN or self._is_closed(trajectory.ordinal):
            return
        member = self._member(trajectory.group_id, trajectory.episode_id)
        if member is None:
            self._assembled.add(trajectory.episode_id)
        else:
            member.is_assembled = True

    def cursor(self, consumed: Container[EpisodeId]) -> int:
        """Return the highest contiguous settled ordinal, -1 before the first. Unit: tasks.

        `consumed` are the episodes trained or skipped on the lineage.
        """
        for identity, group in tuple(self._groups.items()):
            if self._is_settled(identity, group, consumed):
                del self._groups[identity]
                self._decided.pop(identity, None)
                self._above.add(group.ordinal)
        while self._lowest in self._above:
            self._above.remove(self._lowest)
            self._lowest += 1
        return self._lowest - 1

    def paused(self) -> list[dict[str, Any]]:
        """Return the paused episodes as JSON values, by id."""
        found = [
            {"episode": episode, "ordinal": group.ordinal, "snapshot": member.snapshot}
            for group in self._groups.values()
            for episode, member in group.members.items()
            if member.life.is_paused
        ]
        return sorted(found, key=lambda one: one["episode"])

    def _is_settled(self, identity: GroupId, group: _Group, consumed: Container[EpisodeId]) -> bool:
        if len(group.members) < group.size:
            return False
        admitted = self._decided.get(identity)
        if admitted is not None:
            return all(episode in consumed for episode in admitted)
        return all(member.is_settled for member in group.members.values())

    def _member(self, group: GroupId, episode: EpisodeId) -> _Member | None:
        known = self._groups.get(group)
        return known.members.get(episode) if known else None

    def _is_closed(self, ordinal: int) -> bool:
        return ordinal < self._lowest or ordinal in self._above
