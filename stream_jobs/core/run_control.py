"""What `control` says about a run: paused, stopped, draining, ended.

A scheduler's Draining and EndOfStream count only under the current SchedulerFence of the partition.
"""

from __future__ import annotations

from schemas.enums import ControlKind
from schemas.records.control_event import ControlEvent
from schemas.rules.episodes import SchedulerFences


class RunControl:
    """The state of one run's control log after the records taken so far, in log order."""

    __slots__ = (
        "draining_since_ms",
        "end_of_stream",
        "fences",
        "is_paused",
        "snapshot",
        "stop_offset",
    )

    def __init__(self) -> None:
        """Start before the first record."""
        self.fences = SchedulerFences()
        self.is_paused = False
        self.stop_offset: int | None = None
        """Offset of the newest Stop that no Start or Resume followed. Unit: records."""
        self.draining_since_ms: int | None = None
        """Broker time of the first Draining that counts. Unit: ms."""
        self.end_of_stream: ControlEvent | None = None
        self.snapshot: ControlEvent | None = None
        """The newest Snapshot that counts."""

    @property
    def is_draining(self) -> bool:
        """Whether the run's budget is reached, so that nothing more is issued or admitted."""
        return self.draining_since_ms is not None

    def take(self, offset: int, timestamp_ms: int, event: ControlEvent) -> bool:
        """Take the next record of the run in log order; return whether it counts."""
        if not self.fences.take_control(event):
            return False
        match event.kind:
            case ControlKind.PAUSE:
                self.is_paused = True
            case ControlKind.RESUME | ControlKind.START:
                self.is_paused, self.stop_offset = False, None
            case ControlKind.STOP:
                self.stop_offset = offset
            case ControlKind.DRAINING if self.draining_since_ms is None:
                self.draining_since_ms = timestamp_ms
            case ControlKind.END_OF_STREAM if self.end_of_stream is None:
                self.end_of_stream = event
            case ControlKind.SNAPSHOT:
                self.snapshot = event
            case _:
                pass
        return True
