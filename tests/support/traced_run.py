"""The recorded run as messages for the tracer's fold: held times, and positions filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from infra.tracing.core.fold import READ, TraceFold
from infra.tracing.core.spans import Span
from schemas.enums import EpisodeEventKind
from schemas.ids import RunId
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.trajectory import Trajectory
from schemas.topics import EPISODES, TOKENS, TOOL_EVENTS
from schemas.tracing import trace_of_episode
from tests.support.memory_bus import MemoryBus
from tests.support.recorded_run import Change, RecordedRun
from tests.support.run_records import RUN

BEGAN_MS = 1_800_000_000_000


@cache
def traced_messages(
    change: Change | None = None, *, partitions: int = 1
) -> list[list[Delivered[Any]]]:
    """Return the recorded run, a list per (topic, partition), with a millisecond between any two
    records, and with the positions that real records rest on. Made once: treat it as read-only.
    """
    bus = RecordedRun(change, partitions=partitions).write()
    logs: list[list[Delivered[Any]]] = []
    for topic in READ:
        for partition in range(partitions):
            logs.append([m for m in bus.messages(topic, partition) if isinstance(m, Delivered)])
    ends: dict[tuple[str, str], int] = {}
    for message in (m for log in logs for m in log):
        if message.topic in (TOKENS.name, TOOL_EVENTS.name):
            ends[message.topic, message.record.episode_id] = message.offset
    at_ms = BEGAN_MS
    for log in logs:
        for place, message in enumerate(log):
            at_ms += 1
            log[place] = replace(
                message, timestamp_ms=at_ms, record=_resting_on(message.record, ends)
            )
    return [log for log in logs if log]


def _resting_on(record: Any, ends: dict[tuple[str, str], int]) -> Any:
    match record:
        case Trajectory():
            return replace(record, tokens_end=ends[TOKENS.name, record.episode_id])
        case EpisodeEvent(kind=EpisodeEventKind.ENDED):
            position = ends.get((TOOL_EVENTS.name, record.episode_id), -1)
            return replace(record, tool_position=position)
        case _:
            return record


def told(messages: Sequence[Delivered[Any]], *, open_max: int = 100) -> list[Span]:
    """Return every span of these messages, taken in this order by a new fold."""
    fold = TraceFold(RUN, open_max=open_max)
    spans = [span for message in messages for span in fold.take(message)]
    return spans + fold.all_read()


def require_whole_traces(bus: MemoryBus, run_id: RunId) -> None:
    """Hold the traces of a run that has ended against its records: one root an episode that was
    issued, every parent there, no id twice, and nothing left open.
    """
    fold = TraceFold(run_id, open_max=100_000)
    messages = [m for topic in READ for m in bus.messages(topic) if isinstance(m, Delivered)]
    spans = [span for message in messages for span in fold.take(message)] + fold.all_read()
    issued = {
        event.episode_id for event in bus.records(EPISODES) if event.kind is EpisodeEventKind.ISSUED
    }
    roots = {span.trace_id for span in spans if span.name == "episode"}
    assert roots == {trace_of_episode(episode) for episode in issued}
    ids = Counter((span.trace_id, span.span_id) for span in spans)
    assert max(ids.values()) == 1
    assert all((s.trace_id, s.parent_id) in ids for s in spans if s.parent_id is not None)
    assert fold.open_count == 0
    names = {span.name for span in spans}
    assert names >= {"turn", "generation", "verification", "assembly", "gate", "learner wait"}
    assert names >= {"learner step", "publication", "refresh"}
