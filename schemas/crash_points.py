"""Named edges at which a test may end a process: code says `reach(point)` exactly there.

Nothing happens unless a test build has armed the points (`infra/chaos/crash.py` does, when its
environment variable names a folder): then each reach is handed to whoever armed them. Off, a reach
is one comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class CrashPoint(StrEnum):
    """An edge between two effects; to die there must lose nothing and count nothing twice."""

    AFTER_SAMPLE = "after_sample"
    """The engine has handed tokens out; none of them is appended."""
    AFTER_APPEND = "after_append"
    """A commit was handed to the producer; nothing is acknowledged."""
    AFTER_DURABLE = "after_durable"
    """A commit was acknowledged; nobody was told."""
    AFTER_EXPOSURE = "after_exposure"
    """The answer of a turn was written to its client."""
    IN_TOOL = "in_tool"
    """A tool runs: its Intent is durable, its effect may have happened."""
    AFTER_TOOL = "after_tool"
    """A tool has returned; its Result is not written."""
    AFTER_OPTIMISER_STEP = "after_optimiser_step"
    """The weights in memory moved; nothing says so."""
    AFTER_VERSION_FILES = "after_version_files"
    """A version's files stand; its Step is not written."""
    AFTER_RECORD = "after_record"
    """A Step is in the log; its version is not announced."""
    AFTER_ANNOUNCEMENT = "after_announcement"
    """A version is announced; what follows its Step has not begun."""
    AFTER_CHECKPOINT_FILES = "after_checkpoint_files"
    """A checkpoint's files stand; its marker does not."""
    AFTER_MARKER = "after_marker"
    """A checkpoint is marked; its record is not written."""
    DURING_REFRESH = "during_refresh"
    """A worker has paused and drained; the new weights are not loaded."""


Handler: TypeAlias = Callable[[CrashPoint], None]

_handler: Handler | None = None


def reach(point: CrashPoint) -> None:
    """Say that this edge was reached."""
    if _handler is not None:
        _handler(point)


def arm(handler: Handler | None) -> None:
    """Hand every reach to `handler` from now on; None turns the points off again."""
    global _handler
    _handler = handler
