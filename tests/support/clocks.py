"""Clocks for tests: one that is held and moved by hand, and the real one."""

from __future__ import annotations

import time


class HeldClock:
    """Stands still until `advance`."""

    def __init__(
        self, *, now_us: int = 1_800_000_000_000_000, monotonic_ms: int = 1_000_000
    ) -> None:
        self._now_us = now_us
        self._monotonic_ms = monotonic_ms

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return self._now_us

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return self._monotonic_ms

    def monotonic_us(self) -> int:
        """Microseconds that never go back."""
        return self._monotonic_ms * 1000

    def advance(self, ms: int) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        assert ms >= 0, "a clock does not go back"
        self._now_us += ms * 1000
        self._monotonic_ms += ms


class BackwardClock(HeldClock):
    """Its wall clock is set back by a second at every look: no length of time comes from it."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        self._now_us -= 1_000_000
        return self._now_us


class RealClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """Microseconds that never go back."""
        return time.monotonic_ns() // 1_000
