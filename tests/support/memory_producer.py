"""The write door of the memory bus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from producers.core.routing import key_of, oversize, partition_for
from producers.sending import QUEUE_FULL, send_and_wait
from schemas.deadline import Deadline
from schemas.ports import Acked, Acknowledgement, Position, Rejected, Unknown
from schemas.topics import Record, Topic

if TYPE_CHECKING:
    from tests.support.memory_bus import MemoryBus

R = TypeVar("R", bound=Record)


class MemoryProducer:
    """Writes at once and acknowledges on a later turn of the loop, as a broker does at the
    earliest.
    """

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._number = 1
        self._in_flight: set[asyncio.Future[Acknowledgement]] = set()
        self._is_closed = False
        self.is_dead = False
        """Set by a test: what is offered becomes Rejected until `renew`, as after a fatal error."""

    @property
    def number(self) -> int:
        """How often this door has opened a producer, from 1."""
        return self._number

    @property
    def queued(self) -> int:
        """Records handed over and not yet acknowledged."""
        return len(self._in_flight)

    def offer(
        self, topic: Topic[R], record: R, *, partition: int | None = None
    ) -> asyncio.Future[Acknowledgement]:
        """Hand a record over; see `schemas.ports.Producer.offer`."""
        raw = self._bus.codec.encode(topic, record)
        future: asyncio.Future[Acknowledgement] = asyncio.get_running_loop().create_future()
        refusal = oversize(topic, len(raw))
        if refusal is None and self._is_closed:
            refusal = "the producer is closed"
        if refusal is None and self.is_dead:
            refusal = "the producer is dead; renew it"
        if refusal is None and self._bus.faults.is_full:
            refusal = f"{QUEUE_FULL}: {len(self._in_flight)} records wait"
        if refusal is not None:
            future.set_result(Rejected(refusal))
            return future
        where = (
            partition_for(topic, record, self._bus.partitions) if partition is None else partition
        )
        self._in_flight.add(future)
        outcome = self._write(topic, where, key_of(topic, record), raw)
        self._bus.faults.deliver(lambda: self._resolve(future, outcome))
        return future

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait; see `schemas.ports.Producer.send`."""
        return await send_and_wait(
            lambda: self.offer(topic, record, partition=partition),
            what=topic.name,
            deadline=deadline,
            clock=self._bus.clock,
        )

    async def renew(self) -> None:
        """Discard what is in flight as Unknown and open the next producer."""
        self._abandon("the producer was renewed")
        self._number += 1
        self.is_dead = False

    async def close(self, *, deadline: Deadline) -> int:
        """Wait for what is in flight inside the deadline; return how many records stay Unknown."""
        self._is_closed = True
        left_ms = deadline.left_ms(now_ms=self._bus.clock.monotonic_ms())
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=left_ms / 1000)
        return self._abandon("the producer was closed")

    def _write(self, topic: Topic[Any], partition: int, key: bytes, raw: bytes) -> Acknowledgement:
        from tests.support.memory_bus import (
            Fault,
        )  # the bus makes producers, so it is imported late

        def append() -> Position:
            return self._bus.append_raw(topic, partition=partition, key=key, raw=raw)

        fault = self._bus.faults.take(topic.name)
        match fault:
            case None:
                return Acked(partition, append().offset)
            case Fault.UNKNOWN_WRITTEN:
                append()
            case Fault.UNKNOWN_LATE:
                self._bus.keep_late(append)
            case Fault.REJECTED:
                return Rejected("refused by the broker")
            case Fault.UNKNOWN_LOST:
                pass
        return Unknown("timed out")

    def _resolve(self, future: asyncio.Future[Acknowledgement], outcome: Acknowledgement) -> None:
        self._in_flight.discard(future)
        if not future.done():
            future.set_result(outcome)

    def _abandon(self, why: str) -> int:
        abandoned = [future for future in self._in_flight if not future.done()]
        for future in abandoned:
            future.set_result(Unknown(why))
        self._in_flight.clear()
        return len(abandoned)
