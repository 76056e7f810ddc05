"""The reading rules of `episodes` and `control`: whose scheduler counts, and where an episode's
life stands (design 7, 9).

A scheduler's record counts only under the current SchedulerFence of its partition; an environment's
only under the current lease, by the process that the lease names; Abandoned and final Ended exclude
each other, the first in the log wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.enums import AbandonReason, ControlKind, EpisodeEventKind, StopCause
from schemas.ids import WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent

NO_SCHEDULER: tuple[int, WorkerId] = (0, WorkerId(""))
"""The fence before the first: scheduler epochs start at 1."""

UNKNOWN_TOOL = AbandonReason.UNKNOWN_TOOL.value
"""Failure class of an attempt that ended because nobody knows what a tool did, and the word that
the detail of its Ended begins with. The next attempt would find the same Unknown in the log.
"""
LEASE_LOST = "lease_lost"
"""How the evidence calls a lease that ended without a record of its environment."""

_EVIDENCE_MAX = 8
_DETAIL_MAX = 240
_BY_SCHEDULER = frozenset(
    {
        EpisodeEventKind.ISSUED,
        EpisodeEventKind.LEASED,
        EpisodeEventKind.PAUSE_REQUESTED,
        EpisodeEventKind.RESUMED,
        EpisodeEventKind.ABANDONED,
    }
)
_CONTROL_BY_SCHEDULER = frozenset(
    {ControlKind.DRAINING, ControlKind.END_OF_STREAM, ControlKind.SNAPSHOT}
)


class SchedulerFences:
    """The scheduler that counts, for one run, in one partition of `episodes` (or in `control`), in
    log order.

    A reader that starts at a floor after the fence keeps `current` with its floor and gives it back
    here.
    """

    __slots__ = ("current", "void")

    def __init__(self, current: tuple[int, WorkerId] = NO_SCHEDULER) -> None:
        """Start before the first record, or from the fence that was current at the
        reader's floor.
        """
        self.current = current
        """(epoch, scheduler id) of the current fence."""
        self.void = 0
        """Records that did not count. Unit: records."""

    def take(self, event: EpisodeEvent) -> bool:
        """Take the next record of the partition; return whether it counts as far as its scheduler
        goes.

        An environment's records answer True: leases decide about them. Of two fences with one epoch
        the first counts.
        """
        if event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            return self._fence(event.scheduler_epoch, event.scheduler_id)
        if event.kind not in _BY_SCHEDULER:
            return True
        return self._is_current(event.scheduler_epoch, event.scheduler_id)

    def take_control(self, event: ControlEvent) -> bool:
        """Take the next record of `control`; records of the command line answer True."""
        if event.kind is ControlKind.SCHEDULER_FENCE:
            return self._fence(event.scheduler_epoch, event.scheduler_id)
        if event.kind not in _CONTROL_BY_SCHEDULER:
            return True
        return self._is_current(event.scheduler_epoch, event.scheduler_id)

    def _fence(self, epoch: int, scheduler: WorkerId) -> bool:
        if epoch <= self.current[0]:
            self.void += 1
            return False
        self.current = (epoch, scheduler)
        return True

    def _is_current(self, epoch: int, scheduler: WorkerId) -> bool:
        if epoch > 0 and (epoch, scheduler) == self.current:
            return True
        self.void += 1
        return False


def failure_class(ended: EpisodeEvent) -> str:
    """Return the class under which a retried Ended counts against the budgets."""
    is_unknown = ended.detail.partition(":")[0] == UNKNOWN_TOOL
    if is_unknown and ended.stop_cause is StopCause.ENVIRONMENT_ERROR:
        return UNKNOWN_TOOL
    return ended.stop_cause.value


def is_for(lease_of: str, incarnation: str) -> bool:
    """Whether a lease of one incarnation is one of another; empty on either side: not told, so that
    records from before the field are read as they were.
    """
    return lease_of == incarnation or not (lease_of and incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The lease that counts."""

    attempt: int
    worker_id: WorkerId
    incarnation: str
    """The process of that worker which it is for; empty: any, as in records before this field."""
    lease_ms: int
    offset: int
    """Offset of its Leased record. Unit: records."""
    timestamp_ms: int
    """Broker time of its Leased record. Unit: ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """End offsets read just before the first lease: every record of the episode lies at or above
    them.
    """

    tokens: int
    tool_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A record of the episode that counts, with its place and the broker's time."""

    event: EpisodeEvent
    offset: int
    timestamp_ms: int


class EpisodeLife:
    """The life of one episode after the records taken so far, in log order.

    Give it only what `SchedulerFences.take` let through.
    """

    __slots__ = (
        "abandoned_mark",
        "attempt",
        "evidence",
        "failures",
        "final_mark",
        "floors",
        "is_pause_requested",
        "is_paused",
        "issued_mark",
        "last_progress",
        "lease",
        "pauses",
        "superseded",
    )

    def __init__(self) -> None:
        """Start before the first record."""
        self.issued_mark: Mark | None = None
        self.final_mark: Mark | None = None
        self.abandoned_mark: Mark | None = None
        self.last_progress: Mark | None = None
        """The newest Progress under the current lease."""
        self.lease: Lease | None = None
        """The lease that counts; None before the first, after Paused, after an Ended, and once
        closed.
        """
        self.attempt = 0
        """Attempt of the newest lease; 0 before the first. Unit: attempts."""
        self.floors: Floors | None = None
        self.failures: dict[str, int] = {}
        """Failures so far by class: retried stop causes, and what Leased records name (lease expiry
        included).
        """
        self.evidence: tuple[str, ...] = ()
        """What became of the newest failed attempts, oldest first: attempt, worker, class, words.
        """
        self.is_paused = False
        self.is_pause_requested = False
        self.pauses = 0
        """Paused records that counted. Unit: times."""
        self.superseded = 0
        """Records that did not count. Unit: records."""

    @property
    def issued(self) -> EpisodeEvent | None:
        """The Issued that counts."""
        return self.issued_mark.event if self.issued_mark else None

    @property
    def final_ended(self) -> EpisodeEvent | None:
        """The final Ended, or None."""
        return self.final_mark.event if self.final_mark else None

    @property
    def abandoned(self) -> EpisodeEvent | None:
        """The Abandoned that counts, or None."""
        return self.abandoned_mark.event if self.abandoned_mark else None

    @property
    def is_closed(self) -> bool:
        """Whether a final Ended or an Abandoned stands."""
        return self.final_mark is not None or self.abandoned_mark is not None

    def take(self, offset: int, timestamp_ms: int, event: EpisodeEvent) -> bool:
        """Take the next record of the episode in log order; return whether it counts."""
        counts = self._take(Mark(event=event, offset=offset, timestamp_ms=timestamp_ms))
        if not counts:
            self.superseded += 1
        return counts

    def _take(self, mark: Mark) -> bool:
        event = mark.event
        if event.kind is EpisodeEventKind.ISSUED:
            return self._issue(mark)
        if self.issued_mark is None or self.is_closed:
            return False
        match event.kind:
            case EpisodeEventKind.LEASED:
                return self._begin_lease(mark)
            case EpisodeEventKind.ABANDONED:
                self.abandoned_mark = mark
                self.lease = None
                return True
            case EpisodeEventKind.PAUSE_REQUESTED:
                self.is_pause_requested = self.lease is not None
                return self.is_pause_requested
            case EpisodeEventKind.RESUMED:
                counts = self.is_paused
                self.is_paused = False
                return counts
            case _:
                return self._is_by_lease(event) and self._take_environment(mark)

    def _issue(self, mark: Mark) -> bool:
        if self.issued_mark is not None:
            return False
        self.issued_mark = mark
        return True

    def _begin_lease(self, mark: Mark) -> bool:
        event = mark.event
        if event.attempt <= self.attempt:
            return False
        if self.lease is not None:
            self._note(self.lease, self._lost_as(event), self._last_words())
        self.attempt = event.attempt
        self.lease = Lease(
            attempt=event.attempt,
            worker_id=event.worker_id,
            incarnation=event.incarnation,
            lease_ms=event.lease_ms,
            offset=mark.offset,
            timestamp_ms=mark.timestamp_ms,
        )
        if self.floors is None:
            self.floors = Floors(tokens=event.tokens_floor, tool_events=event.tool_events_floor)
        for name, times in event.after_failures.items():
            self.failures[name] = max(times, self.failures.get(name, 0))
        self.last_progress = None
        self.is_paused = self.is_pause_requested = False
        return True

    def _lost_as(self, leased: EpisodeEvent) -> str:
        risen = (n for n, t in leased.after_failures.items() if t > self.failures.get(n, 0))
        return next(risen, LEASE_LOST)

    def _last_words(self) -> str:
        if self.last_progress is None:
            return "no Progress"
        event = self.last_progress.event
        return f"last Progress at WAL {event.wal_position}, tools {event.tool_position}"

    def _note(self, lease: Lease, failure: str, detail: str) -> None:
        words = f"attempt {lease.attempt} on {lease.worker_id}: {failure}: {detail[:_DETAIL_MAX]}"
        self.evidence = (*self.evidence[1 - _EVIDENCE_MAX :], words)

    def _is_by_lease(self, event: EpisodeEvent) -> bool:
        lease = self.lease
        return (
            lease is not None
            and event.attempt == lease.attempt
            and event.writer_id == lease.worker_id
            and is_for(lease.incarnation, event.incarnation)
        )

    def _take_environment(self, mark: Mark) -> bool:
        event = mark.event
        match event.kind:
            case EpisodeEventKind.PROGRESS:
                self.last_progress = mark
                return True
            case EpisodeEventKind.PAUSED:
                self.is_paused, self.is_pause_requested = True, False
                self.pauses += 1
                self.lease = None
                return True
            case EpisodeEventKind.ENDED if event.stop_cause.is_final:
                self.final_mark = mark
                self.lease = None
                return True
            case EpisodeEventKind.ENDED if event.stop_cause.is_retried:
                failure = failure_class(event)
                self.failures[failure] = self.failures.get(failure, 0) + 1
                assert self.lease is not None
                self._note(self.lease, failure, event.detail)
                self.lease = None
                return True
            case _:
                return False
