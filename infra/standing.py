"""What stands in topics now: read once, up to the ends of this moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.deadline import Deadline
from schemas.ports import Consumers, Message
from schemas.topics import Topic


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
