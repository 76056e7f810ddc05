"""Tool calls of one episode: a span for each try, from its Intent to its Result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from infra.tracing.core.spans import Span, said
from schemas.enums import ToolEventKind, ToolExit
from schemas.records.tool_event import ToolEvent
from schemas.rules.tools import ToolLog
from schemas.tracing import TraceId, span_of, turn_span


class ToolTrace:
    """The open calls of one episode, in log order. What tools were told and said is not kept."""

    __slots__ = ("_log", "_open", "_trace", "last_offset")

    def __init__(self, trace: TraceId) -> None:
        """Start before the first record."""
        self._trace = trace
        self._log = ToolLog()
        self._open: dict[str, tuple[int, int, ToolEvent]] = {}
        """By call key: offset and time of the Intent, and the Intent without its text."""
        self.last_offset = -1
        """Offset of the last record taken. Unit: records."""

    def take(self, offset: int, at_us: int, event: ToolEvent) -> Iterator[Span]:
        """Take the next record of the episode; yield the spans that it ends."""
        self.last_offset = max(self.last_offset, offset)
        light = replace(event, arguments="", output="")
        if not self._log.take(offset, light):
            return
        key = event.call_key
        match event.kind:
            case ToolEventKind.INTENT:
                if (earlier := self._open.pop(key, None)) is not None:
                    yield self._span(*earlier, at_us, None, "cut short, and tried again")
                self._open[key] = (offset, at_us, light)
            case ToolEventKind.RESULT if (intent := self._open.pop(key, None)) is not None:
                failed = event.exit_class not in (ToolExit.OK, ToolExit.NONE)
                error = f"{event.exit_class.value} {event.status_raw}".strip() if failed else ""
                yield self._span(*intent, at_us, event, error)
            case ToolEventKind.UNKNOWN_OUTCOME if (intent := self._open.pop(key, None)) is not None:
                yield self._span(*intent, at_us, None, "its outcome is not known")

    def finish(self) -> Iterator[Span]:
        """Yield the open calls: no more records of the episode are expected."""
        for offset, at_us, intent in self._open.values():
            yield self._span(offset, at_us, intent, at_us, None, "no end of it was recorded")
        self._open.clear()

    def _span(
        self, offset: int, began_us: int, intent: ToolEvent, ended_us: int,
        result: ToolEvent | None, error: str,
    ) -> Span:  # fmt: skip
        attributes = said(
            tool=intent.tool, call_key=intent.call_key, attempt=intent.attempt,
            turn=intent.turn, branch=intent.branch, idempotent=intent.idempotent,
            external=intent.external, intent_offset=offset, worker_id=intent.writer_id,
        )  # fmt: skip
        if result is not None:
            attributes |= said(
                exit_class=result.exit_class.value, duration_us=result.duration_us,
                replayed=result.replayed, truncation=result.truncation,
            )  # fmt: skip
        return Span(
            trace_id=self._trace,
            span_id=span_of(self._trace, "tool", offset),
            parent_id=turn_span(self._trace, intent.attempt, intent.branch, intent.turn),
            name=f"tool {intent.tool}".strip(),
            start_us=began_us,
            end_us=ended_us,
            attributes=attributes,
            error=error,
        )
