"""Consumer groups of the memory bus: cooperative and sticky, with generations, as values and plain
methods.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from schemas.ports import Floor


class Fenceable(Protocol):
    """A member's reader, which learns that another process took its member id."""

    is_fenced: bool


class Group:
    """One consumer group on one topic.

    A partition that moves is first given up by its holder, in the holder's own poll, and only then
    taken by the next.
    """

    def __init__(self, *, topic: str, partitions: int) -> None:
        self.topic = topic
        self.generation = 0
        self.committed: dict[int, Floor] = {}
        self._partitions = partitions
        self._members: list[str] = []
        self._target: dict[int, str] = {}
        self._holder: dict[int, str] = {}
        self._lost: dict[str, set[int]] = {}
        self.readers: dict[str, Fenceable] = {}

    def fence(self, member: str) -> None:
        """Shut out the present holder of a member id; what it held is free, and what it lost before
        is no loss of the newcomer's.
        """
        self._lost.pop(member, None)
        if member in self.readers:
            self.readers[member].is_fenced = True
            self.leave(member)

    @property
    def members(self) -> tuple[str, ...]:
        """Members in the order in which they joined."""
        return tuple(self._members)

    def join(self, member: str) -> None:
        """Add a member and share the partitions anew."""
        if member not in self._members:
            self._members.append(member)
            self._rebalance()

    def leave(self, member: str) -> None:
        """Remove a member; what it held is free."""
        if member in self._members:
            self._members.remove(member)
            for partition in self.held(member):
                del self._holder[partition]
            self._rebalance()

    def expel(self, member: str) -> None:
        """Take a member's partitions as lost; others may hold them before it learns so."""
        lost = self.held(member)
        self.leave(member)
        self._lost.setdefault(member, set()).update(lost)

    def take_lost(self, member: str) -> tuple[int, ...]:
        """Return what was lost since the last call."""
        return tuple(sorted(self._lost.pop(member, set())))

    def held(self, member: str) -> frozenset[int]:
        """Return the partitions that a member owns now."""
        return frozenset(p for p, holder in self._holder.items() if holder == member)

    def to_give_up(self, member: str) -> tuple[int, ...]:
        """Return held partitions that are meant for another member."""
        return tuple(sorted(p for p in self.held(member) if self._target.get(p) != member))

    def give_up(self, member: str, partitions: Collection[int]) -> None:
        """Free partitions that a member holds."""
        for partition in partitions:
            assert self._holder.get(partition) == member
            del self._holder[partition]

    def take(self, member: str) -> tuple[int, ...]:
        """Take the free partitions meant for a member, and return them."""
        taken = tuple(
            sorted(p for p, m in self._target.items() if m == member and p not in self._holder)
        )
        for partition in taken:
            self._holder[partition] = member
        return taken

    def commit(self, member: str, floors: Mapping[int, Floor]) -> None:
        """Keep the floors of partitions that the member owns now; others are left out."""
        held = self.held(member)
        self.committed.update({p: floor for p, floor in floors.items() if p in held})

    def _rebalance(self) -> None:
        self.generation += 1
        if not self._members:
            self._target = {}
            return
        share, rest = divmod(self._partitions, len(self._members))
        # The first members keep one more, so that nobody gives up a partition without need.
        quota = {m: share + (index < rest) for index, m in enumerate(self._members)}
        target: dict[int, str] = {}
        for partition in sorted(self._holder):
            holder = self._holder[partition]
            if quota.get(holder, 0) > 0:
                target[partition] = holder
                quota[holder] -= 1
        open_seats = [m for m in self._members for _ in range(quota[m])]
        free = [p for p in range(self._partitions) if p not in target]
        target.update(zip(free, open_seats, strict=True))
        self._target = target
