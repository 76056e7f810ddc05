"""Waits for a lease, attempts and pauses of one episode, from the events that count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.tracing.core.spans import Span, said
from schemas.enums import AbandonReason, EpisodeEventKind
from schemas.records.episode_event import EpisodeEvent
from schemas.rules.episodes import EpisodeLife
from schemas.tracing import TraceId, attempt_span, root_span, span_of


@dataclass(slots=True, kw_only=True)
class _Attempt:
    number: int
    worker_id: str
    began_us: int


class AttemptTrace:
    """The open attempt of one episode, in log order.

    Give it only what the partition's scheduler fences let through.
    """

    __slots__ = (
        "_attempt",
        "_paused_us",
        "_trace",
        "_waiting_us",
        "abandoned_us",
        "attempts",
        "ended_us",
        "issued_us",
        "life",
        "void",
    )

    def __init__(self, trace: TraceId) -> None:
        """Start before the first record."""
        self._trace = trace
        self._attempt: _Attempt | None = None
        self._waiting_us = 0
        self._paused_us = 0
        self.life = EpisodeLife()
        self.issued_us = 0
        """When it was issued; 0 before the record."""
        self.ended_us = 0
        """When its final Ended was made; 0 before it."""
        self.abandoned_us = 0
        self.attempts = 0
        self.void = 0
        """Records that do not count. Unit: records."""

    def take(
        self, offset: int, timestamp_ms: int, at_us: int, event: EpisodeEvent
    ) -> Iterator[Span]:
        """Take the next record of the episode; yield the spans that it ends."""
        if not self.life.take(offset, timestamp_ms, event):
            self.void += 1
            return
        match event.kind:
            case EpisodeEventKind.ISSUED:
                self.issued_us = self._waiting_us = at_us
            case EpisodeEventKind.LEASED:
                yield from self._leased(at_us, event)
            case EpisodeEventKind.PAUSED:
                yield from self._end(at_us, event, outcome="paused")
                self._paused_us = at_us
            case EpisodeEventKind.RESUMED:
                yield self._wait("paused", self._paused_us, at_us, event)
                self._waiting_us, self._paused_us = at_us, 0
            case EpisodeEventKind.ENDED:
                yield from self._end(at_us, event, outcome=event.stop_cause.value)
                self._waiting_us = at_us
                self.ended_us = at_us if event.stop_cause.is_final else 0
            case EpisodeEventKind.ABANDONED:
                error = "" if is_asked_for(event.abandon_reason) else event.abandon_reason.value
                yield from self._end(at_us, None, outcome="abandoned", error=error)
                self.abandoned_us = at_us

    def finish(self, at_us: int) -> Iterator[Span]:
        """Yield the open attempt: no more records of the episode are expected."""
        yield from self._end(at_us, None, outcome="unknown", error="no end of it was recorded")

    def _leased(self, at_us: int, event: EpisodeEvent) -> Iterator[Span]:
        yield from self._end(at_us, None, outcome="lease_lost", error="the lease was lost")
        if self._paused_us:
            yield self._wait("paused", self._paused_us, at_us, event)
        else:
            yield self._wait("lease wait", self._waiting_us, at_us, event)
        self._paused_us = 0
        self.attempts += 1
        self._attempt = _Attempt(number=event.attempt, worker_id=event.worker_id, began_us=at_us)

    def _wait(self, name: str, began_us: int, at_us: int, event: EpisodeEvent) -> Span:
        return Span(
            trace_id=self._trace,
            span_id=span_of(self._trace, name, event.attempt),
            parent_id=root_span(self._trace),
            name=name,
            start_us=began_us,
            end_us=at_us,
            attributes=said(attempt=event.attempt, after_failures=_failures(event)),
        )

    def _end(
        self, at_us: int, event: EpisodeEvent | None, *, outcome: str, error: str = ""
    ) -> Iterator[Span]:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if event is not None:
            if event.stop_cause.is_retried:
                error = event.detail or event.stop_cause.value
            if event.reset_us > 0:
                yield self._reset(attempt, event)
        yield Span(
            trace_id=self._trace,
            span_id=attempt_span(self._trace, attempt.number),
            parent_id=root_span(self._trace),
            name="attempt",
            start_us=attempt.began_us,
            end_us=at_us,
            attributes=said(
                attempt=attempt.number, worker_id=attempt.worker_id, outcome=outcome,
                **({} if event is None else _account(event)),
            ),
            error=error,
        )  # fmt: skip

    def _reset(self, attempt: _Attempt, event: EpisodeEvent) -> Span:
        began_us = attempt.began_us + max(0, event.queue_us)
        return Span(
            trace_id=self._trace,
            span_id=span_of(self._trace, "environment reset", attempt.number),
            parent_id=attempt_span(self._trace, attempt.number),
            name="environment reset",
            start_us=began_us,
            end_us=began_us + event.reset_us,
            attributes=said(attempt=attempt.number),
        )


def is_asked_for(reason: AbandonReason) -> bool:
    """Whether an episode was given up because the run or the user ended, which is no failure."""
    return reason in (AbandonReason.RUN_ENDED, AbandonReason.USER_CANCEL)


def _account(event: EpisodeEvent) -> dict[str, int]:
    if event.kind is not EpisodeEventKind.ENDED:
        return {}
    return {
        "turns": event.turns,
        "tool_calls": event.tool_calls,
        "tokens": event.token_count,
        "queue_us": event.queue_us,
        "reset_us": event.reset_us,
        "step_us": event.step_us,
    }


def _failures(event: EpisodeEvent) -> tuple[str, ...]:
    return tuple(f"{name}={times}" for name, times in sorted(event.after_failures.items()))
