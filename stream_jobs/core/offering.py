"""Which tasks are offered and not yet issued, so that the task source stays a bounded way ahead."""

from __future__ import annotations

from schemas.enums import EpisodeEventKind
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.rules.episodes import SchedulerFences
from stream_jobs.core.frontier import Frontier


class Offering:
    """The cursor of the task stream after the records taken so far."""

    __slots__ = ("_fences", "_issued", "next_ordinal", "repeats")

    def __init__(self) -> None:
        """Start before the first record."""
        self.next_ordinal = 0
        """One above the highest ordinal in `tasks`. Unit: tasks."""
        self.repeats = 0
        """Task records below the highest ordinal: the first of an ordinal counts. Unit: records."""
        self._issued = Frontier()
        self._fences: dict[int, SchedulerFences] = {}

    def take_task(self, task: Task) -> None:
        """Take a Task of the run."""
        if task.ordinal < self.next_ordinal:
            self.repeats += 1
        self.next_ordinal = max(self.next_ordinal, task.ordinal + 1)

    def take_episode(self, partition: int, event: EpisodeEvent) -> None:
        """Take a record of `episodes`."""
        counts = self._fences.setdefault(partition, SchedulerFences()).take(event)
        if counts and event.kind is EpisodeEventKind.ISSUED:
            self._issued.add(event.ordinal)

    def wanted(self, *, look_ahead: int) -> range:
        """Return the ordinals to offer now, so that at most `look_ahead` tasks wait to be
        issued.
        """
        waiting = self.next_ordinal - len(self._issued)
        return range(self.next_ordinal, self.next_ordinal + max(0, look_ahead - waiting))
