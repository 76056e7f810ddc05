"""The place where a restored learner is tried before it trains on (requirements R76).

What it returns stands in `Restored.canary`; raising refuses the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from learner.core.restore import Choice

Canary: TypeAlias = Callable[[Choice], Awaitable[str]]


async def no_canary(choice: Choice) -> str:
    """Return what Restored says of the canary when none is set up."""
    return "" if choice.folder is None else "not run"
