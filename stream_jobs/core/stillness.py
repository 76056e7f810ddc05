"""Whether a reader stands still while its topics move on.

Health is progress, not a process that is alive: a partition is stuck when records wait in it and
none was read for longer than a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[str, int]
"""Logical topic name and partition."""


@dataclass(slots=True, kw_only=True)
class Stillness:
    """What was seen of every partition, and since when it stands."""

    limit_ms: int
    """Records may wait so long while none is read. Unit: ms."""
    _seen: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Next offset to read, and when it was first seen with records waiting. Unit: ms."""

    def look(
        self, *, read: Mapping[Place, int], ends: Mapping[Place, int], now_ms: int
    ) -> tuple[Place, ...]:
        """Return the partitions that stood still for longer than the limit.

        read: next offset to read. ends: end offsets now. now_ms: monotonic.
        """
        stuck: list[Place] = []
        for place, end in ends.items():
            at = read.get(place, 0)
            if at >= end:
                self._seen.pop(place, None)
                continue
            before, since_ms = self._seen.get(place, (-1, now_ms))
            if before != at:
                since_ms = now_ms
            self._seen[place] = (at, since_ms)
            if now_ms - since_ms >= self.limit_ms:
                stuck.append(place)
        return tuple(stuck)
