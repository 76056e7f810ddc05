"""Which tasks are offered and not yet issued, so that the task source stays a bounded way ahead."""

from __future__ import annotations

from schemas.enums import EpisodeEventKind
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.rules.episodes import SchedulerFences
from stream_jobs.core.frontier import Frontier
from stream_jobs.core.snapshot import Snapshot


class Offering:
    """The cursor of the task stream after the records taken so far."""

    __slots__ = ("_fences", "_issued", "_offered", "next_ordinal", "repeats")

    def __init__(self) -> None:
        """Start before the first record."""
        self.next_ordinal = 0
        """One above the highest ordinal in `tasks`. Unit: tasks."""
        self.repeats = 0
        """Task records of an ordinal that was offered before: the first counts. Unit: records."""
        self._offered = Frontier()
        self._issued = Frontier()
        self._fences: dict[int, SchedulerFences] = {}

    def restore(self, snapshot: Snapshot) -> None:
        """Begin where a scheduler's snapshot stands, before the first record from its floors."""
        self.next_ordinal = snapshot.end
        self._offered = Frontier.below(snapshot.end, but=snapshot.unsettled)
        self._issued = Frontier.below(snapshot.end, but=snapshot.unsettled)
        self._fences = {p: SchedulerFences(fence) for p, fence in snapshot.fences.items()}

    def take_task(self, task: Task) -> None:
        """Take a Task of the run."""
        if task.ordinal in self._offered:
            self.repeats += 1
        self._offered.add(task.ordinal)
        self.next_ordinal = max(self.next_ordinal, task.ordinal + 1)

    def take_episode(self, partition: int, event: EpisodeEvent) -> None:
        """Take a record of `episodes`."""
        counts = self._fences.setdefault(partition, SchedulerFences()).take(event)
        if counts and event.kind is EpisodeEventKind.ISSUED:
            self._issued.add(event.ordinal)

    def wanted(self, *, look_ahead: int) -> tuple[int, ...]:
        """Return the ordinals to offer now, so that at most `look_ahead` tasks wait to be issued.

        Holes come first: records whose outcome was unknown and that are not in the log. One that
        lands late after all is a repeat, and the same task.
        """
        lowest, end = self._offered.lowest_open, self.next_ordinal
        holes = [ordinal for ordinal in range(lowest, end) if ordinal not in self._offered]
        free = max(0, look_ahead - (len(self._offered) - len(self._issued)))
        new = range(end, end + max(0, free - len(holes)))
        return (*holes, *new)
