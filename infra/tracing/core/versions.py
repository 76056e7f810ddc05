"""A policy version is a trace: the step that made it, its publication, and its loading by every
worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from infra.tracing.core.spans import Happening, Link, Span, Value, said
from schemas.enums import LearnerEventKind, RefreshEventKind
from schemas.ids import RunId, Version
from schemas.ports import Position
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.rules.lineage import START, LearnerLog
from schemas.tracing import SpanId, TraceId, root_span, span_of, trace_of_episode, trace_of_version

_VERSIONS_KEPT = 256
_REFRESHES_KEPT = 4_096
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, kw_only=True)
class _Refresh:
    """A worker's change to a version, from the coordinator's Prepare."""

    place: Position
    """Where the record stands that began it."""
    began_us: int
    happenings: list[Happening]


class VersionTraces:
    """The open publications and refreshes of one run; bounded."""

    def __init__(self, run_id: RunId) -> None:
        """Start before the first record."""
        self._run = run_id
        self._log = LearnerLog()
        self._stepped: dict[Version, tuple[int, Position]] = {}
        """Steps that count and whose publication was not read: when, and where."""
        self._published: dict[Version, tuple[int, PolicyVersion, Position]] = {}
        self._refreshes: dict[tuple[str, Version], _Refresh] = {}
        self.is_closed = False
        """Whether the learner has closed the run."""

    def judge(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> bool:
        """Take the next record of the learner for its place in the lineage; return whether it
        counts. Which episodes it names is not kept.
        """
        counts = self._log.take(offset, timestamp_ms, replace(event, trained=(), skipped=()))
        self.is_closed = self._log.closed is not None
        return counts

    def stepped(
        self, place: Position, at_us: int, event: LearnerEvent, *, counts: bool
    ) -> Iterator[Span]:
        """Yield the span of a Step, and of its version's publication if that was read before."""
        version = Version(event.epoch, event.number)
        trace = trace_of_version(self._run, version)
        losses: dict[str, Value] = {f"sluice.loss.{k}": v for k, v in event.losses.items()}
        phases: dict[str, Value] = {f"sluice.phase.{k}_us": v for k, v in event.phases_us.items()}
        yield Span(
            trace_id=trace,
            span_id=root_span(trace),
            parent_id=None,
            name="learner step",
            start_us=began_us(at_us, event),
            end_us=at_us,
            attributes=said(
                run_id=self._run, version=str(version), ordinal=event.ordinal, counts=counts,
                trained=len(event.trained), action_tokens=event.action_tokens,
                kept_tokens=event.kept_tokens, loss_name=event.loss_name,
                policy_digest=event.policy_digest, worker_id=event.writer_id,
            ) | losses | phases,
            links=tuple(
                Link(trace_id=its, span_id=root_span(its))
                for its in (trace_of_episode(member.episode_id) for member in event.trained)
            ),
            error="" if counts else "a newer learner had fenced this one, or it does not follow",
        )  # fmt: skip
        if counts:
            _keep(self._stepped, version, (at_us, place), _VERSIONS_KEPT)
            yield from self._publication(version)

    def published(self, place: Position, at_us: int, record: PolicyVersion) -> Iterator[Span]:
        """Take an announced version; yield its publication if its Step was read before."""
        version = Version(record.epoch, record.number)
        if version != START:
            _keep(self._published, version, (at_us, record, place), _VERSIONS_KEPT)
            yield from self._publication(version)

    def refreshed(self, place: Position, at_us: int, event: RefreshEvent) -> Iterator[Span]:
        """Take a phase of a refresh; yield its span at the end."""
        version = Version(event.epoch, event.number)
        key = (event.worker_id, version)
        match event.kind:
            case RefreshEventKind.PREPARE:
                begun = _Refresh(place=place, began_us=at_us, happenings=[])
                _keep(self._refreshes, key, begun, _REFRESHES_KEPT)
            case RefreshEventKind.LOADED:
                if (known := self._refreshes.get(key)) is not None:
                    known.happenings.append(Happening(name="loaded", at_us=at_us))
            case RefreshEventKind.SERVING | RefreshEventKind.FAILED:
                took_us = event.fetch_us + max(event.load_us, event.pause_us)
                own = _Refresh(place=place, began_us=at_us - max(0, took_us), happenings=[])
                yield self._refresh(self._refreshes.pop(key, own), at_us, version, event)

    def places(self) -> Iterator[Position]:
        """Yield where the records stand that open spans begin with."""
        yield from (place for _, place in self._stepped.values())
        yield from (place for _, _, place in self._published.values())
        yield from (one.place for one in self._refreshes.values())

    def _publication(self, version: Version) -> Iterator[Span]:
        if version not in self._stepped or version not in self._published:
            return
        stepped_us, _ = self._stepped.pop(version)
        at_us, record, _ = self._published.pop(version)
        trace = trace_of_version(self._run, version)
        yield Span(
            trace_id=trace,
            span_id=span_of(trace, "publication"),
            parent_id=root_span(trace),
            name="publication",
            start_us=stepped_us,
            end_us=at_us,
            attributes=said(
                version=str(version), ordinal=record.ordinal, digest=record.digest,
                bytes_total=record.bytes_total,
            ),
        )  # fmt: skip

    def _refresh(self, made: _Refresh, at_us: int, version: Version, event: RefreshEvent) -> Span:
        trace = trace_of_version(self._run, version)
        failed = event.kind is RefreshEventKind.FAILED
        return Span(
            trace_id=trace,
            span_id=span_of(trace, "refresh", made.place.partition, made.place.offset),
            parent_id=_step_of(trace, version),
            name="refresh",
            start_us=made.began_us,
            end_us=at_us,
            attributes=said(
                run_id=self._run, version=str(version), worker_id=event.worker_id,
                fetch_us=event.fetch_us, load_us=event.load_us, pause_us=event.pause_us,
                inflight=event.inflight, probe_error=event.probe_error,
            ),
            happenings=tuple(made.happenings),
            error=(event.detail or "failed") if failed else "",
        )  # fmt: skip


def began_us(at_us: int, event: LearnerEvent) -> int:
    """Return when a step began: its phases sum to it. Unit: microseconds since 1970."""
    if event.kind is not LearnerEventKind.STEP:
        return at_us
    return at_us - sum(max(0, phase) for phase in event.phases_us.values())


def _step_of(trace: TraceId, version: Version) -> SpanId | None:
    """No step made the starting weights: what is told of them stands under nothing."""
    return None if version == START else root_span(trace)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
