"""How long to wait before trying again: doubling, with a ceiling."""

from __future__ import annotations

FIRST_MS = 2
CEILING_MS = 200


def wait_ms(tries: int, *, left_ms: int) -> int:
    """Return the wait after `tries` refusals (from 1), never beyond what is left. Unit: ms."""
    if tries < 1:
        raise ValueError(f"tries counts from 1, not {tries}")
    return min(FIRST_MS << min(tries - 1, 16), CEILING_MS, left_ms)
