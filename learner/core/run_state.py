"""What `control` tells the learner, and whether the stream that ended is the one it consumed
(design section 9).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from schemas.enums import ControlKind
from schemas.errors import Boundary, InvariantError
from schemas.ids import EpisodeId
from schemas.records.control_event import ControlEvent
from schemas.rules.episodes import SchedulerFences


class RunControl:
    """The state of the run after the control records taken so far."""

    def __init__(self) -> None:
        self._fences = SchedulerFences()
        self.is_paused = False
        self.is_stopped = False
        self.is_draining = False
        self.end: ControlEvent | None = None

    def take(self, event: ControlEvent) -> bool:
        """Take the next record of the run in log order; return whether it counts."""
        if not self._fences.take_control(event):
            return False
        match event.kind:
            case ControlKind.PAUSE:
                self.is_paused = True
            case ControlKind.RESUME | ControlKind.START:
                self.is_paused = self.is_stopped = False
            case ControlKind.STOP:
                self.is_stopped = True
            case ControlKind.DRAINING:
                self.is_draining = True
            case ControlKind.END_OF_STREAM if self.end is None:
                self.end = event
            case _:
                pass
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The learner's counts beside those of EndOfStream."""

    counts: Mapping[str, int]
    """What Closed says. Unit: episodes."""
    untrained: tuple[EpisodeId, ...]
    """Admitted, in no surviving step, thereby dropped (run_ended)."""


def compare(
    end: ControlEvent,
    *,
    trained: Collection[EpisodeId],
    skipped: Collection[EpisodeId],
    waiting: Collection[EpisodeId],
) -> Comparison:
    """Return the counts for Closed. The sets are those of the lineage, read to the ends that `end`
    names.

    Raises InvariantError when the scheduler admitted another number than the learner saw: a wrong
    count is refused.
    """
    seen = set(trained) | set(skipped) | set(waiting)
    admitted = end.counts.get("admitted", -1)
    if admitted != len(seen):
        raise InvariantError(
            f"EndOfStream counts {admitted} admitted episodes, the learner saw {len(seen)} "
            f"({len(trained)} trained, {len(skipped)} skipped, {len(waiting)} waiting)",
            boundary=Boundary.BUS,
            hint="`sluice audit` names the ids that differ; the run is not closed",
        )
    untrained = tuple(sorted(seen - set(trained) - set(skipped)))
    counts = dict(end.counts) | {
        "trained": len(trained),
        "skipped": len(set(skipped) - set(trained)),
        "run_ended": len(untrained),
    }
    return Comparison(counts=counts, untrained=untrained)
