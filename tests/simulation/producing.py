"""The write door of a simulated process: records land late or not at all, and
acknowledgements get lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from producers.core.routing import partition_for
from producers.sending import send_and_wait
from schemas.deadline import Deadline
from schemas.ports import Acked, Acknowledgement, Rejected, Unknown
from schemas.topics import METRICS, Topic
from tests.simulation.bus import SimBus, SimClock
from tests.simulation.faults import Ack
from tests.simulation.loop import Process

_UNKNOWN_S = 2.0


def told_without_offset(_partition: int, _place: int) -> Acknowledgement:
    """Return what the door makes of an acknowledgement without an offset. place: where its record
    stands, or would have stood.
    """
    return Unknown("acknowledged without an offset")


class SimProducer:
    """The write door of one process start."""

    def __init__(self, bus: SimBus, process: Process) -> None:
        """Open the first producer."""
        self._bus = bus
        self._process = process
        self._number = 1
        self._in_flight: dict[asyncio.Future[Acknowledgement], None] = {}
        self._next_s: dict[tuple[str, int], float] = {}
        self._landings: dict[tuple[str, int], list[Any]] = defaultdict(list)
        process.died.append(self._lose_tails)

    @property
    def number(self) -> int:
        """How often this process has opened a producer, from 1."""
        return self._number

    @property
    def queued(self) -> int:
        """Records handed over and not yet acknowledged."""
        return len(self._in_flight)

    def offer(
        self, topic: Topic[Any], record: Any, *, partition: int | None = None
    ) -> asyncio.Future[Acknowledgement]:
        """Hand a record over; see `schemas.ports.Producer.offer`."""
        bus, future = self._bus, self._bus.loop.create_future()
        if not self._process.is_alive:
            return future
        where = partition_for(topic, record, bus.partitions) if partition is None else partition
        if topic is METRICS:
            future.set_result(Acked(where, 0))
            return future
        bus.offered(self._process, topic.name, record)
        fate = bus.fate(topic.name, record)
        if fate is not None:
            bus.told(f"{self._process.incarnation}: {fate} on {topic.name}/{where}")
        if fate is Ack.REJECTED:
            future.set_result(Rejected("refused by the broker"))
            return future
        self._in_flight[future] = None
        if fate is Ack.UNKNOWN_LOST:
            self._resolve_later(_UNKNOWN_S, future, Unknown("timed out"))
        elif fate is Ack.UNKNOWN_LATE:
            late_s = _UNKNOWN_S + bus.chance.choice((0.0, 0.05, 1.0, 5.0))
            bus.loop.call_later(late_s, bus.append, topic, record, where).process = None
            self._resolve_later(_UNKNOWN_S, future, Unknown("timed out"))
        else:
            self._land(topic, record, where, future, fate)
        return future

    def _land(
        self,
        topic: Topic[Any],
        record: Any,
        where: int,
        future: asyncio.Future[Acknowledgement],
        fate: Ack | None,
    ) -> None:
        bus, place = self._bus, (topic.name, where)
        at_s = bus.loop.time() + 0.001 + 0.02 * bus.chance.random() ** 3
        at_s = self._next_s[place] = max(at_s, self._next_s.get(place, 0.0))
        landing = bus.loop.call_at(at_s, self._landed, topic, record, where, future, fate)
        # It is on its way: it lands although the process may be dead by then.
        landing.process = None
        self._landings[place].append(landing)

    def _landed(
        self,
        topic: Topic[Any],
        record: Any,
        where: int,
        future: asyncio.Future[Acknowledgement],
        fate: Ack | None,
    ) -> None:
        self._landings[topic.name, where].pop(0)
        bus = self._bus
        if fate is Ack.PASSED_OVER:
            told = told_without_offset(where, bus.end(topic.name, where))
            self._resolve_later(0.001, future, told)
            return
        offset = bus.append(topic, record, where)
        if fate is Ack.AGAIN:
            again_s = bus.chance.choice((0.1, 1.0, 3.0, 8.0))
            bus.loop.call_later(again_s, bus.append, topic, record, where).process = None
        match fate:
            case Ack.UNKNOWN_WRITTEN:
                self._resolve_later(_UNKNOWN_S, future, Unknown("timed out"))
            case Ack.NO_OFFSET:
                self._resolve_later(0.001, future, told_without_offset(where, offset))
            case Ack.SLOW:
                self._resolve_later(
                    self._bus.chance.choice((1.0, 4.0)), future, Acked(where, offset)
                )
            case _:
                delay_s = 0.001 + 0.02 * self._bus.chance.random() ** 3
                self._resolve_later(delay_s, future, Acked(where, offset))

    def _resolve_later(
        self, delay_s: float, future: asyncio.Future[Acknowledgement], outcome: Acknowledgement
    ) -> None:
        self._bus.loop.call_later(delay_s, self._resolve, future, outcome).process = None

    def _resolve(self, future: asyncio.Future[Acknowledgement], outcome: Acknowledgement) -> None:
        self._in_flight.pop(future, None)
        if not future.done():
            future.set_result(outcome)

    def _lose_tails(self) -> None:
        # What lay in its buffers is gone: of each partition some first records still go out.
        for landings in self._landings.values():
            kept = self._bus.chance.randint(0, len(landings))
            for landing in landings[kept:]:
                landing.cancel()
            del landings[kept:]

    async def send(
        self, topic: Topic[Any], record: Any, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait; see `schemas.ports.Producer.send`."""
        return await send_and_wait(
            lambda: self.offer(topic, record, partition=partition),
            what=topic.name,
            deadline=deadline,
            clock=SimClock(self._bus.loop),
        )

    async def renew(self) -> None:
        """Discard what is in flight as Unknown and open the next producer."""
        await asyncio.sleep(0.01)
        for future in list(self._in_flight):
            self._resolve(future, Unknown("the producer was renewed"))
        self._number += 1

    async def close(self, *, deadline: Deadline) -> int:  # noqa: ARG002  one bound for all
        """Give what is in flight a moment; return how many records stay unknown."""
        await asyncio.sleep(0.1)
        return len(self._in_flight)
