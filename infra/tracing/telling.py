"""One episode's trace for people and programs, without a collector: `sluice replay --trace`.

The shape of `to_json` is an interface (docs/tracing.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.audit.reading import between
from infra.tracing.core.fold import READ, TraceFold
from infra.tracing.core.spans import Span
from schemas.errors import SettingsError
from schemas.ids import EpisodeId, RunId, group_of_episode
from schemas.partition import partition_of
from schemas.ports import Consumers, Delivered, Starts
from schemas.topics import EPISODES
from schemas.tracing import SpanId, trace_of_episode

_OPEN_MAX = 1_000_000
"""A partition of a run has fewer episodes; none is put out before it is told."""


async def trace_of(
    consumers: Consumers, run_id: RunId, episode_id: EpisodeId, starts: Starts | None = None
) -> list[Span]:
    """Return the spans of an episode as far as the topics tell them, parents before children.

    Reads the partition of its group and the learner's log. Raises SettingsError when no record
    names it, BusUnreachableError when no broker answers.
    """
    group = partition_of(group_of_episode(episode_id), await consumers.partitions(EPISODES))
    fold = TraceFold(run_id, open_max=_OPEN_MAX)
    trace = trace_of_episode(episode_id)
    spans: list[Span] = []
    for topic in READ:
        ends = dict(await consumers.ends(topic))
        wanted = [group] if topic.is_grouped else list(ends)
        known = (starts or {}).get(topic.name, {})
        begin = {partition: known.get(partition, 0) for partition in wanted}
        end = {partition: ends[partition] for partition in wanted}
        async for messages in between(consumers, topic, begin, end):
            for message in messages:
                if isinstance(message, Delivered) and message.record.run_id == run_id:
                    spans += [s for s in fold.take(message) if s.trace_id == trace]
    spans += [s for s in fold.all_read() + fold.pending(episode_id) if s.trace_id == trace]
    if not spans:
        raise SettingsError(
            f"no record of {episode_id} in partition {group}",
            hint="`sluice tail episodes --from-start` shows episode ids",
        )
    return [span for _, span in _tree(spans)]


def to_json(spans: Sequence[Span]) -> dict[str, Any]:
    """Return a trace as plain data: ids in hex as collectors show them, times in microseconds."""
    return {
        "trace_id": f"{spans[0].trace_id:032x}",
        "spans": [
            {
                "span_id": f"{span.span_id:016x}",
                "parent_id": None if span.parent_id is None else f"{span.parent_id:016x}",
                "name": span.name,
                "start_us": span.start_us,
                "end_us": span.end_us,
                "attributes": dict(span.attributes),
                "events": [
                    {"name": one.name, "at_us": one.at_us, "attributes": dict(one.attributes)}
                    for one in span.happenings
                ],
                "links": [
                    {"trace_id": f"{link.trace_id:032x}", "span_id": f"{link.span_id:016x}"}
                    for link in span.links
                ],
                "error": span.error or None,
            }
            for span in spans
        ],
    }


def print_trace(spans: Sequence[Span], *, console: Console | None = None) -> None:
    """Print a trace as a tree: when each span began, how long it took, and what it says."""
    out = console or Console(soft_wrap=True)
    out.print(f"trace {spans[0].trace_id:032x}")
    began_us = min(span.start_us for span in spans)
    table = Table("ms", "took ms", "span", "what")
    for depth, span in _tree(spans):
        table.add_row(
            f"{(span.start_us - began_us) / 1000:.1f}",
            f"{(span.end_us - span.start_us) / 1000:.1f}",
            escape("  " * depth + span.name),
            escape(_words(span)),
        )
    out.print(table)


def _tree(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Yield depth and span, each span followed by what stands under it, in order of time."""
    ids = {span.span_id for span in spans}
    under: dict[SpanId | None, list[Span]] = {}
    for span in sorted(spans, key=lambda one: (one.start_us, -one.end_us)):
        under.setdefault(span.parent_id if span.parent_id in ids else None, []).append(span)
    waiting = [(0, span) for span in reversed(under.get(None, []))]
    while waiting:
        depth, span = waiting.pop()
        yield depth, span
        waiting += [(depth + 1, one) for one in reversed(under.get(span.span_id, []))]


def _words(span: Span) -> str:
    told = [f"error: {span.error}"] if span.error else []
    for name, value in span.attributes.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        told.append(f"{name.removeprefix('sluice.')}={text}")
    return " ".join(told)
