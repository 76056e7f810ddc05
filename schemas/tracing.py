"""The ids of traces and spans: digests of what the log calls a thing, so that whoever tells of it
names it the same.

An episode is one trace; so is a policy version, with the step that made it. Nobody draws an id and
nobody hands one on: the environment, the exporter and a second run of the exporter derive the same
ones. Sources: OpenTelemetry, "Trace" (128-bit trace ids, 64-bit span ids, never zero); W3C Trace
Context, section 3.2 (`traceparent`).
"""

from __future__ import annotations

import hashlib
from typing import NewType

from schemas.ids import EpisodeId, RunId, Version

TraceId = NewType("TraceId", int)
SpanId = NewType("SpanId", int)

_TRACE_BYTES = 16
_SPAN_BYTES = 8
_VERSION = "00"
_SAMPLED = "01"


def trace_of_episode(episode: EpisodeId) -> TraceId:
    """Return the 128-bit trace id of a rollout."""
    return TraceId(_digest(_TRACE_BYTES, "episode", episode))


def trace_of_version(run: RunId, version: Version) -> TraceId:
    """Return the 128-bit trace id of a policy version: its step, its publication, its refreshes."""
    return TraceId(_digest(_TRACE_BYTES, "version", run, str(version)))


def span_of(trace: TraceId, stage: str, *parts: str | int) -> SpanId:
    """Return the 64-bit id of a stage's span in a trace; `parts` tell several of a stage apart."""
    return SpanId(_digest(_SPAN_BYTES, f"{trace:032x}", stage, *map(str, parts)))


def root_span(trace: TraceId) -> SpanId:
    """Return the id of the span that all others of a trace stand under."""
    return span_of(trace, "root")


def attempt_span(trace: TraceId, attempt: int) -> SpanId:
    """Return the id of an attempt's span."""
    return span_of(trace, "attempt", attempt)


def turn_span(trace: TraceId, attempt: int, branch: int, turn: int) -> SpanId:
    """Return the id of a turn's span."""
    return span_of(trace, "turn", attempt, branch, turn)


def traceparent(trace: TraceId, parent: SpanId) -> str:
    """Return the header by which a callee's own spans join the trace, under the span `parent`."""
    return f"{_VERSION}-{trace:032x}-{parent:016x}-{_SAMPLED}"


def _digest(size: int, *parts: str) -> int:
    # A separator that stands in no id keeps ("a", "bc") and ("ab", "c") apart.
    text = "\0".join(("sluice", *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big") or 1
