"""What stands in topics now: read once, up to the ends of this moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from schemas.deadline import Deadline
from schemas.errors import Boundary, TransientError
from schemas.ports import Clock, Consumers, Delivered, LogReader, Message
from schemas.topics import Topic

_RECORDS_MAX = 2_000
_POLL_S = 0.25
_PATIENCE_MS = 60_000
"""How long the bus may give nothing while the end is not reached. Unit: ms."""


async def ends_of(reader: LogReader, topics: Iterable[Topic[Any]]) -> Mapping[tuple[str, int], int]:
    """Return the end offsets of the topics now, by topic name and partition."""
    return {
        (topic.name, partition): end
        for topic in topics
        for partition, end in (await reader.ends(topic)).items()
    }


async def through(
    reader: LogReader, ends: Mapping[tuple[str, int], int], *, clock: Clock,
    patience: Callable[[], Deadline],
) -> AsyncIterator[Sequence[Message]]:  # fmt: skip
    """Yield all that stands before the ends, and what follows them by then, as it comes.

    For reads as long as a run: memory holds one parcel, and the bound is on standing still, not on
    the whole. `patience` gives the deadline of the next record; raises TransientError when it
    passes without one.
    """
    waiting = patience()
    while open_ends := sum(reader.positions()[place] < end for place, end in ends.items()):
        messages = await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S)
        if messages:
            yield messages
            waiting = patience()
        elif waiting.is_over(now_ms=clock.monotonic_ms()):
            raise TransientError(
                f"gave up on {waiting.waiting_for}: {open_ends} partitions are not read to their "
                "ends, and nothing more comes",
                boundary=Boundary.BUS,
                hint="is the bus reachable, and what this run wrote still on it?",
            )


async def delivered(
    reader: LogReader, topics: Collection[Topic[Any]], *, clock: Clock, waiting_for: str
) -> AsyncIterator[Delivered[Any]]:
    """Yield the records of these topics up to their ends as they are now, and what follows by
    then; what cannot be read is passed over. Bounded as `through` is, by `_PATIENCE_MS`.
    """

    def patience() -> Deadline:
        now_ms = clock.monotonic_ms()
        return Deadline.after(_PATIENCE_MS, now_ms=now_ms, waiting_for=waiting_for)

    ends = await ends_of(reader, topics)
    async for messages in through(reader, ends, clock=clock, patience=patience):
        for message in messages:
            if isinstance(message, Delivered):
                yield message


async def standing(
    consumers: Consumers,
    starts: Mapping[Topic[Any], Mapping[int, int] | None],
    *,
    deadline: Deadline,
) -> list[Message]:
    """Return the messages of each topic from the given offsets, or from its beginning for None.

    Holds all of them in memory. Raises TransientError when the deadline passes first.
    """
    begin: dict[Topic[Any], dict[int, int]] = {}
    ends: dict[tuple[str, int], int] = {}
    for topic, given in starts.items():
        now = await consumers.ends(topic)
        known = dict.fromkeys(now, 0) if given is None else given
        begin[topic] = {p: start for p, start in known.items() if start < now[p]}
        ends |= {(topic.name, p): now[p] for p in begin[topic]}
    if not ends:
        return []
    reader = consumers.reader({topic: at for topic, at in begin.items() if at})
    try:
        return list(await reader.read_to(ends, deadline=deadline))
    finally:
        await reader.close()
