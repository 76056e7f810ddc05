"""Which gate decision counts: the first of its group in log order, whoever wrote it (design section
8).
"""

from __future__ import annotations

from schemas.ids import GroupId
from schemas.records.gate_decision import GateDecision


class Decisions:
    """The groups decided so far, in the log order of their partition."""

    __slots__ = ("_first", "superseded")

    def __init__(self) -> None:
        """Start before the first record."""
        self._first: dict[GroupId, int] = {}
        self.superseded = 0
        """Decisions that came after the first of their group. Unit: records."""

    def take(self, offset: int, decision: GateDecision) -> bool:
        """Take the next decision in log order; return whether it is the first of its group.

        A record that was taken before (the same offset again, after a rewind) keeps its answer.
        """
        first = self._first.setdefault(decision.group_id, offset)
        if first == offset:
            return True
        self.superseded += 1
        return False

    def offset_of(self, group: GroupId) -> int | None:
        """Return the offset of the decision on a group, or None while it is undecided."""
        return self._first.get(group)

    def forget(self, group: GroupId) -> None:
        """Drop a settled group that can no longer be decided, so that memory stays bounded."""
        self._first.pop(group, None)
