"""The reading rule of the tool log of one episode: which Intents and Results count (design section
6).

A Fence raises the attempt; an Intent, Result or Unknown of a lower attempt after it is void, except
that an accepted Observation in the WAL makes the Result it names count.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.enums import ToolEventKind
from schemas.records.tool_event import ToolEvent


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """What the log says of one tool call; treat it as read-only."""

    intent: ToolEvent | None = None
    """The newest Intent that counts: a call that is run again after a crash has one per try."""
    intent_offset: int = -1
    result: ToolEvent | None = None
    """The first Result that counts."""
    result_offset: int = -1
    unknown: ToolEvent | None = None
    """Set when the outcome was recorded as not known."""

    @property
    def is_open(self) -> bool:
        """Whether there is an Intent without Result or Unknown."""
        return self.intent is not None and self.result is None and self.unknown is None


class ToolLog:
    """The state of one episode's tool log after the records taken so far, in log order."""

    __slots__ = (
        "_named",
        "_void_results",
        "calls",
        "fence_attempt",
        "first_offset",
        "last_offset",
        "void",
    )

    def __init__(self) -> None:
        """Start before the first record."""
        self.fence_attempt = 0
        """Attempt of the highest Fence; 0 before the first. Unit: attempts."""
        self.calls: dict[str, Call] = {}
        """By call key, in the order of their first Intent."""
        self.void = 0
        """Records that do not count. Unit: records."""
        self.first_offset = -1
        self.last_offset = -1
        """Offset of the last record that counts; -1 when none. Unit: records."""
        self._void_results: dict[int, ToolEvent] = {}
        self._named: set[int] = set()

    def take(self, offset: int, event: ToolEvent) -> bool:
        """Take the next record of the episode in log order; return whether it counts.

        Of two Fences with one attempt the first counts; a Result without an Intent before it is
        void.
        """
        if self.first_offset < 0:
            self.first_offset = offset
        counts = self._take(offset, event)
        if counts:
            self.last_offset = offset
        else:
            self.void += 1
        return counts

    def _take(self, offset: int, event: ToolEvent) -> bool:
        match event.kind:
            case ToolEventKind.FENCE:
                if event.attempt <= self.fence_attempt:
                    return False
                self.fence_attempt = event.attempt
                return True
            case ToolEventKind.INTENT:
                return event.attempt >= self.fence_attempt and self._intent(offset, event)
            case ToolEventKind.RESULT:
                if event.attempt < self.fence_attempt and offset not in self._named:
                    self._void_results[offset] = event
                    return False
                return self._result(offset, event)
            case ToolEventKind.UNKNOWN_OUTCOME:
                return event.attempt >= self.fence_attempt and self._unknown(event)
            case _:
                return False

    def accept_result(self, offset: int) -> bool:
        """An accepted Observation names the Result at `offset`: it counts whatever its attempt.

        The Observation may be read before the Result; the answer then is False and the Result
        counts when it comes.
        """
        self._named.add(offset)
        event = self._void_results.pop(offset, None)
        if event is None:
            return False
        counts = self._result(offset, event)
        if counts:
            self.void -= 1
            self.last_offset = max(self.last_offset, offset)
        return counts

    def _intent(self, offset: int, event: ToolEvent) -> bool:
        call = self.calls.setdefault(event.call_key, Call())
        if call.result is not None:
            return False
        call.intent = event
        call.intent_offset = offset
        return True

    def _result(self, offset: int, event: ToolEvent) -> bool:
        call = self.calls.get(event.call_key)
        if call is None or call.intent is None or call.result is not None:
            return False
        call.result = event
        call.result_offset = offset
        return True

    def _unknown(self, event: ToolEvent) -> bool:
        call = self.calls.get(event.call_key)
        if call is None or call.intent is None or call.result is not None:
            return False
        call.unknown = event
        return True
