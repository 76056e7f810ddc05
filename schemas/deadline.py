"""One budget of time, handed down a whole path instead of a timeout per call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A point on the caller's monotonic clock, with the name of what is waited for."""

    at_ms: int
    """Monotonic time at which the wait is over. Unit: ms."""
    waiting_for: str
    """What the wait is for; every message about it says so."""

    @classmethod
    def after(cls, budget_ms: int, *, now_ms: int, waiting_for: str) -> Deadline:
        """Return the deadline `budget_ms` from now."""
        return cls(at_ms=now_ms + budget_ms, waiting_for=waiting_for)

    def left_ms(self, *, now_ms: int) -> int:
        """Return the milliseconds left, never below 0."""
        return max(0, self.at_ms - now_ms)

    def is_over(self, *, now_ms: int) -> bool:
        """Whether the budget is spent."""
        return now_ms >= self.at_ms

    def sooner(self, budget_ms: int, *, now_ms: int, waiting_for: str) -> Deadline:
        """Return a deadline for a part of the path: `budget_ms` from now, but never later than this
        one.
        """
        return Deadline(at_ms=min(self.at_ms, now_ms + budget_ms), waiting_for=waiting_for)
