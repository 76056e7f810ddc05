"""The door to an OpenTelemetry collector: spans as values go out as OTLP over HTTP.

Waits for the collector inside a deadline, on a thread of its own that nobody waits for when the
process ends. Unblocked by its answer, or by the deadline. The one module that imports
OpenTelemetry; nothing imports it while no endpoint is set.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as OtelLink
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from infra.tracing.core.spans import Span
from infra.version import VERSION

_SCOPE = InstrumentationScope("sluice.tracing", VERSION)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Collector:
    """Sends batches to one collector, one at a time."""

    def __init__(self, endpoint: str, *, resource: Mapping[str, str], retry_s: float) -> None:
        """Open no connection yet; `retry_s` bounds the tries of one batch. Unit: s."""
        self._resource = Resource(dict(resource))
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, timeout=retry_s, compression=Compression.Gzip
        )

    async def send(self, spans: Sequence[Span]) -> bool:
        """Send a batch, trying again as the OTLP specification says; return whether it was taken.

        429, 502, 503, 504 and a broken connection are tried again inside `retry_s`; any other
        refusal is final.
        """
        made = [readable(span, self._resource) for span in spans]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def tell(taken: bool) -> None:
            if not answer.done():
                answer.set_result(taken)

        def work() -> None:
            taken = self._exporter.export(made) is SpanExportResult.SUCCESS
            # Closed: the process is ending, and nobody waits for the answer any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, taken)

        threading.Thread(target=work, name="otlp", daemon=True).start()
        return await answer

    def close(self) -> None:
        """Give up what is being tried."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK leaves it untyped


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """Return a span as the SDK's exporters take it, with the ids that it has."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=resource,
        attributes=dict(span.attributes),
        events=[Event(one.name, dict(one.attributes), one.at_us * 1000) for one in span.happenings],
        links=[OtelLink(_context(link.trace_id, link.span_id)) for link in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_us * 1000,
        end_time=span.end_us * 1000,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
