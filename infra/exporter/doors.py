"""Doors that count what passes: around a producer and around consumers, with the same Protocols.

Invariants: a record is counted once it is acknowledged, as what the log then holds; counting never
fails a record, since samples are made of decoded fields only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from infra.exporter import catalogue as of
from infra.exporter.instruments import Instruments
from infra.exporter.records import samples_of
from schemas.deadline import Deadline
from schemas.errors import RejectedError, SluiceError, UnknownOutcomeError
from schemas.ports import (
    Acked,
    Clock,
    Consumers,
    Delivered,
    Floor,
    FrameReader,
    Frames,
    GroupEvent,
    GroupReader,
    LogReader,
    Message,
    Pending,
    Poisoned,
    Position,
    Producer,
    Rejected,
)
from schemas.topics import BY_NAME, Record, Topic

R = TypeVar("R", bound=Record)
_LAG_EVERY_S = 10.0
_LOG = logging.getLogger("sluice.exporter")


class MeteredProducer:
    """A write door that exports what it wrote; see `schemas.ports.Producer`."""

    def __init__(self, inner: Producer, instruments: Instruments, clock: Clock) -> None:
        self._inner, self._instruments, self._clock = inner, instruments, clock

    @property
    def number(self) -> int:
        """How often this process has opened a producer, from 1."""
        return self._inner.number

    @property
    def queued(self) -> int:
        """Records handed over and not yet acknowledged."""
        return self._inner.queued

    def offer(self, topic: Topic[R], record: R, *, partition: int | None = None) -> Pending:
        """Hand a record over without waiting and return its acknowledgement."""
        began_ms = self._clock.monotonic_ms()
        pending = self._inner.offer(topic, record, partition=partition)
        pending.add_done_callback(lambda done: self._done(topic, record, began_ms, done))
        return pending

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait; raises as the door inside does."""
        began_ms = self._clock.monotonic_ms()
        try:
            acked = await self._inner.send(topic, record, partition=partition, deadline=deadline)
        except RejectedError:
            self._instruments.add(of.PRODUCED, 1.0, topic.name, "rejected")
            raise
        except UnknownOutcomeError:
            self._instruments.add(of.PRODUCED, 1.0, topic.name, "unknown")
            raise
        self._acked(topic, record, began_ms)
        return acked

    async def renew(self) -> None:
        """Discard the producer inside and open a new one."""
        await self._inner.renew()

    async def close(self, *, deadline: Deadline) -> int:
        """Flush inside the deadline; return how many records stay Unknown."""
        return await self._inner.close(deadline=deadline)

    def _done(self, topic: Topic[Any], record: Any, began_ms: int, done: Any) -> None:
        if getattr(done, "cancelled", bool)():
            return
        answer = done.result()
        if isinstance(answer, Acked):
            self._acked(topic, record, began_ms)
        else:
            outcome = "rejected" if isinstance(answer, Rejected) else "unknown"
            self._instruments.add(of.PRODUCED, 1.0, topic.name, outcome)

    def _acked(self, topic: Topic[Any], record: Any, began_ms: int) -> None:
        instruments = self._instruments
        instruments.add(of.PRODUCED, 1.0, topic.name, "acked")
        took_ms = self._clock.monotonic_ms() - began_ms
        instruments.add(of.ACK, took_ms / 1000, topic.name)
        instruments.add(of.QUEUED, self._inner.queued)
        instruments.take(samples_of(record))


class _Intake:
    """Counts what the readers of one process are given."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self.next: dict[tuple[str, int], int] = {}

    def given(self, messages: Sequence[GroupEvent | Frames]) -> None:
        for message in messages:
            if isinstance(message, Delivered):
                self._instruments.add(of.CONSUMED, 1.0, message.topic)
                self._look_at_clock(message)
            elif isinstance(message, Frames):
                self._instruments.add(of.CONSUMED, float(len(message)), message.topic)
            elif isinstance(message, Poisoned):
                self._instruments.add(of.POISONED, 1.0, message.topic)
            else:
                continue
            self.next[message.topic, message.partition] = message.offset + 1

    def _look_at_clock(self, message: Delivered[Any]) -> None:
        at_us = getattr(message.record, "at_us", 0)
        if at_us > 0:
            ahead_s = max(0.0, at_us / 1e6 - message.timestamp_ms / 1e3)
            self._instruments.add(of.CLOCK_AHEAD, ahead_s, message.topic)


class _MeteredLogReader:
    def __init__(self, inner: Any, intake: _Intake) -> None:
        self._inner, self._intake = inner, intake

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message | Frames]:
        found: Sequence[Message | Frames]
        found = await self._inner.poll(records_max=records_max, timeout_s=timeout_s)
        self._intake.given(found)
        return found

    async def read_to(
        self, ends: Mapping[tuple[str, int], int], *, deadline: Deadline
    ) -> Sequence[Message]:
        found: Sequence[Message]
        found = await self._inner.read_to(ends, deadline=deadline)
        self._intake.given(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _MeteredGroupReader:
    def __init__(self, inner: GroupReader, intake: _Intake) -> None:
        self._inner, self._intake = inner, intake

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[GroupEvent]:
        found = await self._inner.poll(records_max=records_max, timeout_s=timeout_s)
        self._intake.given(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class MeteredConsumers:
    """A read door that exports what it gave; see `schemas.ports.Consumers`."""

    def __init__(self, inner: Consumers, instruments: Instruments) -> None:
        self._inner, self._instruments = inner, instruments
        self._intake = _Intake(instruments)

    def reader(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, jumps: bool = False
    ) -> LogReader:
        """Return a reader of given partitions from given offsets."""
        made: Any = _MeteredLogReader(self._inner.reader(starts, jumps=jumps), self._intake)
        reader: LogReader = made
        return reader

    def frames(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, framed: Collection[Topic[Any]]
    ) -> FrameReader:
        """Return a reader that may give the records of the topics `framed` undecoded; of these,
        how far their writers' clocks are ahead is not told.
        """
        made: Any = _MeteredLogReader(self._inner.frames(starts, framed=framed), self._intake)
        reader: FrameReader = made
        return reader

    def group(
        self,
        topic: Topic[Any],
        *,
        group: str,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> GroupReader:
        """Join a group as a static member."""
        joined = self._inner.group(topic, group=group, member=member, starts=starts, floors=floors)
        made: Any = _MeteredGroupReader(joined, self._intake)
        reader: GroupReader = made
        return reader

    async def mark(self, topic: Topic[Any], *, group: str, floors: Mapping[int, Floor]) -> None:
        """Commit floors for a group that nobody joins."""
        await self._inner.mark(topic, group=group, floors=floors)

    async def fetch(self, position: Position, *, deadline: Deadline) -> Message:
        """Return the record at exactly this position."""
        return await self._inner.fetch(position, deadline=deadline)

    async def partitions(self, topic: Topic[Any]) -> int:
        """Return the number of partitions of the topic."""
        return await self._inner.partitions(topic)

    async def ends(self, topic: Topic[Any]) -> Mapping[int, int]:
        """Return the end offset now of every partition."""
        return await self._inner.ends(topic)

    async def watch_lag(self) -> None:
        """Export, every ten seconds until cancelled, how much of each topic is still to be given.

        Counts partitions of which something was given before.
        """
        while True:
            await asyncio.sleep(_LAG_EVERY_S)
            try:
                await self.export_lag()
            except SluiceError as error:
                # The role itself meets the same trouble and acts on it; a gauge can wait.
                _LOG.info("consumer lag is unknown for now: %s", error)

    async def export_lag(self) -> None:
        """Look the ends up once and export what is left."""
        for topic in sorted({name for name, _ in self._intake.next}):
            ends = await self._inner.ends(BY_NAME[topic])
            left = sum(
                max(0, ends.get(partition, 0) - at)
                for (name, partition), at in self._intake.next.items()
                if name == topic
            )
            self._instruments.add(of.CONSUMER_LAG, left, topic)
