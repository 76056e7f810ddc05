"""The cut of an audit: end offsets sampled effects first, and the records between start and end.

A live run can be audited because each topic's end is sampled before those of the topics that hold
its causes: every cause of what lies inside the cut was written before, so it lies inside too, or is
found by reading on.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from infra.audit.tokens import Tokens
from schemas.deadline import Deadline
from schemas.errors import TransientError
from schemas.ports import Consumers, Delivered, Message, Position, Starts
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    PAYLOADS,
    POLICIES,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    VERIFY_REQUESTS,
    Topic,
)

SAMPLED_IN_ORDER: tuple[Topic[Any], ...] = (
    LEARNER_STEPS,
    GATED,
    GATE_DECISIONS,
    TRAJECTORIES,
    PAYLOADS,
    VERDICTS,
    VERIFY_REQUESTS,
    EPISODES,
    TOOL_EVENTS,
    TOKENS,
    POLICIES,
    TASKS,
    CONTROL,
)
"""Effects before causes (design section 16)."""

_RECORDS_MAX = 5_000
_POLL_S = 0.5
_STALLED_S = 60.0
_LOOKUPS_MAX = 2_000
_LOOKUP_MS = 30_000

Ends = Mapping[int, int]


async def sample(consumers: Consumers) -> dict[str, Ends]:
    """Return the end offsets of every topic of the audit, sampled in order."""
    ends: dict[str, Ends] = {}
    for topic in SAMPLED_IN_ORDER:
        ends[topic.name] = dict(await consumers.ends(topic))
    return ends


def starts_of(topic: Topic[Any], starts: Starts | None, ends: Ends) -> dict[int, int]:
    """Return where to begin in each partition: the run's start, or the beginning of the log."""
    known = (starts or {}).get(topic.name, {})
    return {partition: known.get(partition, 0) for partition in ends}


async def between(
    consumers: Consumers, topic: Topic[Any], begin: Ends, ends: Ends
) -> AsyncIterator[Sequence[Message]]:
    """Yield the messages of a topic from `begin` up to `ends`, in offset order per partition.

    Raises TransientError when nothing arrives for a minute although the ends lie ahead.
    """
    left = {p: end for p, end in ends.items() if begin.get(p, 0) < end}
    if not left:
        return
    reader = consumers.reader({topic: {p: begin.get(p, 0) for p in left}})
    heard_s = time.monotonic()
    try:
        while left:
            messages = await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S)
            if messages:
                yield [m for m in messages if m.offset < ends[m.partition]]
            at = reader.positions()
            reached = [p for p, end in left.items() if at.get((topic.name, p), 0) >= end]
            for partition in reached:
                del left[partition]
            if reached and left:
                # What is read to its end is let go, or a busy topic would be read for ever.
                reader.remove(topic, reached)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _STALLED_S:
                raise TransientError(
                    f"{topic.name}: nothing read for {_STALLED_S:.0f} s, ends ahead: {left}",
                    hint="is the broker up? run the audit again",
                )
    finally:
        await reader.close()


async def shortened_by_cuts(consumers: Consumers, tokens: Tokens) -> None:
    """Look the commits up that a Cut shortened, so that what they keep can be compared.

    Beyond a bound, episodes are left uncompared and counted as such.
    """
    looked_up = 0
    for line in tokens.by_episode.values():
        if not line.ragged:
            continue
        looked_up += len(line.ragged)
        if looked_up > _LOOKUPS_MAX:
            tokens.not_compared += 1
            continue
        for place in line.ragged:
            position = Position(TOKENS.name, line.partition, line.places[place])
            deadline = Deadline.after(
                _LOOKUP_MS, now_ms=time.monotonic_ns() // 1_000_000, waiting_for=str(position)
            )
            message = await consumers.fetch(position, deadline=deadline)
            if isinstance(message, Delivered):
                tokens.patch(line, place, message.record)
        line.ragged = None
