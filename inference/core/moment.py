"""One moment on both clocks of a process: a time stamp that later lengths of time are added to.

Invariant: of two stamps made from one moment, the later is never below the earlier, however the
wall clock is set in between; so their difference is a length of time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When something happened."""

    wall_us: int
    """By the wall clock. Unit: us since 1970."""
    monotonic_us: int
    """By the clock that never goes back. Unit: us."""

    def wall_at(self, monotonic_us: int) -> int:
        """Return the time stamp of another moment of the same process, as this one's wall clock
        has it. Unit: us since 1970.
        """
        return self.wall_us + monotonic_us - self.monotonic_us
