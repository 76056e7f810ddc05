"""The worker's own clock of its lease: it ends no later than the scheduler's.

The scheduler counts from when it read a record, the worker from when it sent it, minus a margin; so
a worker that believes in its lease is right. A Progress renews only if a position moved, or if the
episode waits at the gateway and not longer than a request may take (design section 9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A Progress as it was sent."""

    sent_ms: int
    """Monotonic time just before it was handed to the producer. Unit: ms."""
    wal_position: int
    tool_position: int
    at_gateway: bool
    until_ms: int = 0
    """Monotonic time until which it announces a call; 0 when none. Unit: ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClock:
    """Until when this worker may act for an episode."""

    lease_ms: int
    margin_ms: int
    counted_from_ms: int
    """Monotonic time from which the lease runs. Unit: ms."""
    until_ms: int = 0
    """Monotonic time until which an acknowledged Progress announces a call; 0 when none. Unit:
    ms.
    """
    wal_position: int = -1
    tool_position: int = -1
    waits_since_ms: int = -1
    """Since when the episode waits at the gateway without a position moving; -1 when not. Unit:
    ms.
    """
    wait_ms_max: int = 0
    """Longest wait at the gateway that renews. Unit: ms."""

    @classmethod
    def granted(
        cls, *, lease_ms: int, margin: float, read_ms: int, age_ms: int, wait_ms_max: int
    ) -> LeaseClock:
        """Return the clock of a lease read just now.

        `age_ms` is how long ago the broker stamped it by this machine's clock: what has passed is
        gone. A broker ahead of us gives a negative age, which counts as 0. `margin` is the share of
        the lease that is left unused.
        """
        return cls(
            lease_ms=lease_ms,
            margin_ms=int(lease_ms * margin),
            counted_from_ms=read_ms - max(0, age_ms),
            wait_ms_max=wait_ms_max,
        )

    @property
    def ends_ms(self) -> int:
        """Monotonic time at which the worker stops. Unit: ms."""
        return max(self.counted_from_ms + self.lease_ms, self.until_ms) - self.margin_ms

    def covers(self, *, now_ms: int, call_ms: int = 0) -> bool:
        """Whether the lease still holds now, and through a call of `call_ms`."""
        return now_ms + call_ms < self.ends_ms

    def waiting(self, *, now_ms: int, at_gateway: bool) -> LeaseClock:
        """Return the clock with the beginning or the end of a wait at the gateway noted."""
        if not at_gateway:
            return replace(self, waits_since_ms=-1)
        return self if self.waits_since_ms >= 0 else replace(self, waits_since_ms=now_ms)

    def renewed(self, progress: Progress) -> LeaseClock:
        """Return the clock after a Progress was acknowledged; unchanged when it does not renew."""
        moved = (
            progress.wal_position > self.wal_position or progress.tool_position > self.tool_position
        )
        waits = (
            progress.at_gateway
            and self.waits_since_ms >= 0
            and progress.sent_ms - self.waits_since_ms <= self.wait_ms_max
        )
        if not moved and not waits and not progress.until_ms:
            return self
        return replace(
            self,
            counted_from_ms=max(self.counted_from_ms, progress.sent_ms),
            until_ms=max(self.until_ms, progress.until_ms),
            wal_position=max(self.wal_position, progress.wal_position),
            tool_position=max(self.tool_position, progress.tool_position),
            waits_since_ms=(
                progress.sent_ms if moved and progress.at_gateway else self.waits_since_ms
            ),
        )
