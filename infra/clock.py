"""The machine's clocks behind the Clock port."""

from __future__ import annotations

import time


class MachineClock:
    """Wall and monotonic time of this machine."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """Microseconds that never go back."""
        return time.monotonic_ns() // 1_000
