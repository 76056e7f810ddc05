"""Which offset may be committed: below it everything is finished, whatever was finished out of
order.

Invariants: the frontier never goes back; it never passes a record that is begun and not finished; a
partition that is not owned has none.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from schemas.errors import InvariantError


class PartitionFrontier:
    """The lowest offset of one partition that is not finished."""

    def __init__(self, start: int) -> None:
        self._begun: set[int] = set()
        self._heap: list[int] = []
        self._next = start

    @property
    def offset(self) -> int:
        """The offset to commit: the lowest begun and unfinished one, else the next to be begun."""
        while self._heap and self._heap[0] not in self._begun:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else self._next

    @property
    def unfinished(self) -> int:
        """Records begun and not finished."""
        return len(self._begun)

    def begin(self, offset: int) -> None:
        """Note a record as begun. Offsets rise, with gaps where the log was compacted.

        Raises InvariantError when the offset was passed before.
        """
        if offset < self._next:
            raise InvariantError(f"offset {offset} was read before; the next one is {self._next}")
        self._begun.add(offset)
        heapq.heappush(self._heap, offset)
        self._next = offset + 1

    def finish(self, offset: int) -> None:
        """Note a record as finished; finishing twice, or what was never begun, changes nothing."""
        self._begun.discard(offset)


class Frontier:
    """The frontiers of the partitions that are owned now."""

    def __init__(self) -> None:
        self._of: dict[int, PartitionFrontier] = {}

    @property
    def owned(self) -> frozenset[int]:
        """Partitions owned now."""
        return frozenset(self._of)

    @property
    def unfinished(self) -> int:
        """Records begun and not finished, over all owned partitions."""
        return sum(one.unfinished for one in self._of.values())

    def assign(self, starts: Mapping[int, int]) -> None:
        """Own partitions from these offsets on."""
        self._of.update({p: PartitionFrontier(start) for p, start in starts.items()})

    def revoke(self, partitions: Collection[int]) -> None:
        """Own these partitions no longer; what is finished for them later changes nothing."""
        for partition in partitions:
            self._of.pop(partition, None)

    def begin(self, partition: int, offset: int) -> None:
        """Note a record of an owned partition as begun; InvariantError when it is not owned."""
        if partition not in self._of:
            raise InvariantError(f"partition {partition} is not owned")
        self._of[partition].begin(offset)

    def finish(self, partition: int, offset: int) -> None:
        """Note a record as finished; nothing happens for a partition that is not owned any more."""
        if (one := self._of.get(partition)) is not None:
            one.finish(offset)

    def offsets(self) -> dict[int, int]:
        """Return the offset to commit of every owned partition."""
        return {partition: one.offset for partition, one in self._of.items()}
