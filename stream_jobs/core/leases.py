"""When a lease runs out, on the scheduler's own monotonic clock, counted from when it *read* each
record (design section 9).

Progress extends a lease only if a position moved or the episode waits at the gateway, and the
latter no longer than a request may take. An announced call extends it to its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.records.episode_event import EpisodeEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """Bounds on what Progress may extend."""

    request_deadline_ms: int
    """How long waiting at the gateway extends a lease. Unit: ms."""
    call_max_ms: int
    """Longest announced call. Unit: ms."""


@dataclass(slots=True, kw_only=True)
class LeaseClock:
    """One lease as the scheduler times it."""

    attempt: int
    lease_ms: int
    expires_at_ms: int
    incarnation: str
    """The process that the lease is for. Of a record that names none: the worker's when the lease
    was read, empty when the worker was not seen.
    """
    wal_position: int = -1
    tool_position: int = -1
    waits_since_ms: int | None = None

    @classmethod
    def begin(cls, event: EpisodeEvent, *, read_at_ms: int, incarnation: str) -> LeaseClock:
        """Start the clock of a Leased record; `incarnation` is its worker's, as far as is known."""
        return cls(
            attempt=event.attempt,
            lease_ms=event.lease_ms,
            expires_at_ms=read_at_ms + event.lease_ms,
            incarnation=event.incarnation or incarnation,
        )

    def progress(self, event: EpisodeEvent, *, read_at_ms: int, limits: LeaseLimits) -> None:
        """Take a Progress of this lease."""
        moved = event.wal_position > self.wal_position or event.tool_position > self.tool_position
        self.wal_position = max(self.wal_position, event.wal_position)
        self.tool_position = max(self.tool_position, event.tool_position)
        extends = moved or event.until_us > 0
        if moved or not event.at_gateway:
            self.waits_since_ms = None
        else:
            if self.waits_since_ms is None:
                self.waits_since_ms = read_at_ms
            waited_ms = read_at_ms - self.waits_since_ms
            extends = extends or waited_ms <= limits.request_deadline_ms
        if extends:
            self.expires_at_ms = max(self.expires_at_ms, read_at_ms + self.lease_ms)
        # The call's length is taken on the worker's own clock, so that the two clocks need not
        # agree.
        call_ms = min((event.until_us - event.at_us) // 1000, limits.call_max_ms)
        if event.until_us and call_ms > 0:
            self.expires_at_ms = max(self.expires_at_ms, read_at_ms + call_ms)

    def is_over(self, *, now_ms: int) -> bool:
        """Whether the lease has run out, as far as was read."""
        return now_ms >= self.expires_at_ms
