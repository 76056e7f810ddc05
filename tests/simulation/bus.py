"""The bus of a simulated run: partitions in memory, and what was drawn for the records to come.

Its doors (`producing`, `reading`) satisfy `schemas.ports`; records are kept as they are, since
framing is proved elsewhere and would cost half the time. A record lands some milliseconds after it
was offered, in the order of its producer and partition unless a fault says otherwise, and lands
whether or not its process still lives. Readers poll whole partitions late, each at its own pace.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from producers.core.routing import key_of, partition_for
from schemas.ports import Delivered, Message
from schemas.topics import Topic
from tests.simulation.faults import Ack
from tests.simulation.loop import Process, SimLoop
from tests.support.memory_groups import Group

WALL_US = 1_800_000_000_000_000
_IDLE_S = 2.0
"""An idle poll lasts so long, whatever was asked for: fewer empty looks."""


class SimClock:
    """Wall and monotonic time of one machine; machines disagree on both."""

    def __init__(self, loop: SimLoop, *, skew_ms: int = 0, up_ms: int = 0) -> None:
        """skew_ms: wall clock ahead of the broker's. up_ms: how long the machine has been up."""
        self._loop = loop
        self._wall_us = WALL_US + 1000 * skew_ms
        self._up_ms = up_ms

    def now_us(self) -> int:
        """Wall clock. Unit: us."""
        return self._wall_us + int(self._loop.time() * 1e6)

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return self._up_ms + int(self._loop.time() * 1000)

    def monotonic_us(self) -> int:
        """Microseconds that never go back."""
        return 1000 * self._up_ms + int(self._loop.time() * 1e6)


class SimBus:
    """All topics of a run, and what was drawn for their records."""

    def __init__(
        self,
        loop: SimLoop,
        chance: random.Random,
        *,
        partitions: int,
        fates: Mapping[tuple[str, str, int], Ack],
    ) -> None:
        """fates: (topic, kind or "", how many such records were offered before) to what becomes of
        it.
        """
        self.loop = loop
        self.chance = chance
        self.partitions = partitions
        self.groups: dict[str, Group] = {}
        self.landed: list[Callable[[Message], None]] = []
        """Called with each record as it lands: what watches the history."""
        self.offered: Callable[[Process, str, Any], None] = _unseen
        """Called with each record as a process hands it over."""
        self.told: Callable[[str], None] = _untold
        self._fates = fates
        self._counts: Counter[tuple[str, str]] = Counter()
        self._logs: dict[tuple[str, int], list[Message]] = defaultdict(list)
        self._waiting: dict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.is_calm = False
        """No more faults, and readers keep up: what is owed must now be settled."""

    def log(self, topic: Topic[Any] | str, partition: int) -> list[Message]:
        """Return the records of a partition."""
        return self._logs[topic if isinstance(topic, str) else topic.name, partition]

    def records(self, topic: Topic[Any]) -> list[Message]:
        """Return all records of a topic, by partition and offset."""
        return [m for p in range(self.partitions) for m in self._logs[topic.name, p]]

    def end(self, topic: str, partition: int) -> int:
        """Return the end offset."""
        return len(self._logs[topic, partition])

    def append(self, topic: Topic[Any], record: Any, partition: int | None = None) -> int:
        """Write a record at once and return its offset."""
        where = partition_for(topic, record, self.partitions) if partition is None else partition
        log = self._logs[topic.name, where]
        message = Delivered(
            topic=topic.name,
            partition=where,
            offset=len(log),
            timestamp_ms=WALL_US // 1000 + int(self.loop.time() * 1000),
            key=key_of(topic, record),
            record=record,
        )
        log.append(message)
        for watch in self.landed:
            watch(message)
        self.wake(topic.name)
        return message.offset

    def fate(self, topic: str, record: Any) -> Ack | None:
        """Return what becomes of the next record of a topic; None is the ordinary way."""
        found: Ack | None = None
        for kind in dict.fromkeys(("", str(getattr(record, "kind", "")))):
            found = found or self._fates.get((topic, kind, self._counts[topic, kind]))
            self._counts[topic, kind] += 1
        return None if self.is_calm else found

    def wake(self, topic: str) -> None:
        """Wake who waits for a topic."""
        waiting = self._waiting.pop(topic, None)
        for future in waiting or ():
            if not future.done():
                future.set_result(None)

    async def news(self, topics: Collection[str]) -> None:
        """Wait until one of the topics grows, or a while has passed."""
        future = self.loop.create_future()
        for topic in topics:
            self._waiting[topic].append(future)
        timer = self.loop.call_later(_IDLE_S, _ring, future)
        try:
            await future
        finally:
            timer.cancel()


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _untold(_: str) -> None:
    return None


def _unseen(_: Process, __: str, ___: Any) -> None:
    return None
