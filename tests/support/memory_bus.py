"""The bus in memory: partitions, offsets, broker time, consumer groups and faults, without a
broker.

It passes the suite in `tests/contract/` that real Kafka passes. Records are kept as framed bytes,
so a field of a wrong type, a poison record and an oversized one behave as they do on a broker.

    bus = MemoryBus(partitions=4)
    producer, consumers = bus.producer(), bus.consumers()
    bus.append(EPISODES, event)                        # seed a topic
    bus.faults.next(Fault.UNKNOWN_WRITTEN, count=2)    # the next two acknowledgements
    bus.faults.hold_acks() ... bus.faults.release_acks()
    bus.records(TOKENS)                                # all that is readable, by partition and
    offset bus.append_raw(TOKENS, partition=0, raw=b"junk")   # poison bus.expel("assemblers",
    "assembler-1")             # its partitions are lost without a revoke
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from producers.core.routing import key_of, partition_for
from schemas.codec import Codec, frame_id
from schemas.errors import PoisonRecordError
from schemas.ports import Clock, Delivered, Message, Poisoned, Position
from schemas.topics import BY_NAME, Record, Topic
from tests.support.clocks import RealClock
from tests.support.memory_groups import Group
from tests.support.memory_producer import MemoryProducer
from tests.support.memory_readers import MemoryConsumers

R = TypeVar("R", bound=Record)


class Fault(StrEnum):
    """What happens to a record instead of an acknowledgement."""

    REJECTED = "rejected"
    """Not written, and said so."""
    UNKNOWN_WRITTEN = "unknown_written"
    """Written, and not said so."""
    UNKNOWN_LOST = "unknown_lost"
    """Neither written nor said."""
    UNKNOWN_LATE = "unknown_late"
    """Reported Unknown; written when `MemoryBus.land_late` is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A record as the broker keeps it."""

    timestamp_ms: int
    key: bytes | None
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    fault: Fault
    topic: str | None
    left: int


class Faults:
    """Switches that decide the fate of coming records; shared by all producers of the bus."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []
        self._held: deque[Callable[[], None]] = deque()
        self.holds_acks = False
        self.is_full = False
        """While set, `offer` answers Rejected("queue full ...")."""

    def next(self, fault: Fault, *, topic: Topic[Any] | None = None, count: int = 1) -> None:
        """Give the next `count` records (of a topic, when one is named) this fate."""
        name = None if topic is None else topic.name
        self._planned.append(_Planned(fault=fault, topic=name, left=count))

    def take(self, topic: str) -> Fault | None:
        """Return and use up the fate of the next record of a topic; None is a plain
        acknowledgement.
        """
        for index, planned in enumerate(self._planned):
            if planned.topic in (None, topic):
                left = planned.left - 1
                self._planned[index : index + 1] = (
                    [_Planned(fault=planned.fault, topic=planned.topic, left=left)] if left else []
                )
                return planned.fault
        return None

    def hold_acks(self) -> None:
        """Keep acknowledgements back; records are written and readable all the same."""
        self.holds_acks = True

    def release_acks(self, count: int | None = None) -> None:
        """Deliver held acknowledgements in order: all of them and no more holding, or only the
        first `count`.
        """
        if count is None:
            self.holds_acks = False
        for _ in range(len(self._held) if count is None else min(count, len(self._held))):
            self._held.popleft()()

    def deliver(self, resolve: Callable[[], None]) -> None:
        """Resolve an acknowledgement on the next turn of the loop, or keep it while acks
        are held.
        """
        if self.holds_acks:
            self._held.append(resolve)
        else:
            asyncio.get_running_loop().call_soon(resolve)


class MemoryBus:
    """All topics of the project on one broker without a disk."""

    def __init__(
        self, *, partitions: int = 12, clock: Clock | None = None, codec: Codec | None = None
    ) -> None:
        self.partitions = partitions
        self.clock: Clock = clock or RealClock()
        self.codec = codec or Codec.local()
        self.faults = Faults()
        self.groups: dict[str, Group] = {}
        self._logs: dict[str, list[list[Stored]]] = {}
        self._log_starts: dict[tuple[str, int], int] = {}
        self._topic_ids: dict[str, int] = {}
        self._late: list[Callable[[], object]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._looks: dict[tuple[str, int, int], tuple[Stored, Message]] = {}

    def producer(self) -> MemoryProducer:
        """Open the write door of one process."""
        return MemoryProducer(self)

    def consumers(self) -> MemoryConsumers:
        """Open the read door of one process."""
        return MemoryConsumers(self)

    def append(self, topic: Topic[R], record: R, *, partition: int | None = None) -> Position:
        """Write a record straight into the log, as another process would have."""
        raw = self.codec.encode(topic, record)
        where = partition_for(topic, record, self.partitions) if partition is None else partition
        return self.append_raw(topic, partition=where, key=key_of(topic, record), raw=raw)

    def append_raw(
        self, topic: Topic[Any], *, partition: int, raw: bytes, key: bytes | None = None
    ) -> Position:
        """Write bytes as they are; anything that does not decode is read as Poisoned."""
        log = self.log(topic.name, partition)
        log.append(Stored(timestamp_ms=self.clock.now_us() // 1000, key=key, raw=raw))
        self.wake()
        return Position(topic.name, partition, len(log) - 1)

    def messages(self, topic: Topic[Any], partition: int | None = None) -> list[Message]:
        """Return all readable messages, by partition and offset."""
        chosen = range(self.partitions) if partition is None else (partition,)
        return [
            self._look(topic.name, number, offset)
            for number in chosen
            for offset in range(self.log_start(topic.name, number), self.end(topic.name, number))
        ]

    def records(self, topic: Topic[R], partition: int | None = None) -> list[R]:
        """Return all records that decode, by partition and offset."""
        return [
            message.record
            for message in self.messages(topic, partition)
            if isinstance(message, Delivered)
        ]

    def trim(self, topic: Topic[Any], partition: int, *, below: int) -> None:
        """Delete the records below an offset."""
        assert below <= self.end(topic.name, partition)
        self._log_starts[topic.name, partition] = below

    def recreate(self, topic: Topic[Any]) -> None:
        """Delete the topic and create it anew under another id; readers of the old one must
        stop.
        """
        self._logs.pop(topic.name, None)
        self._topic_ids[topic.name] = self.topic_id(topic.name) + 1
        self.wake()

    def expel(self, group: str, member: str) -> None:
        """Take a member's partitions away as lost, as when its session ran out; it joins again at
        its next poll.
        """
        self.groups[group].expel(member)
        self.wake()

    def land_late(self) -> int:
        """Write what was reported Unknown with `Fault.UNKNOWN_LATE`; return how many records that
        were.
        """
        late, self._late = self._late, []
        for write in late:
            write()
        return len(late)

    def keep_late(self, write: Callable[[], object]) -> None:
        """Keep the write of a late record until `land_late`."""
        self._late.append(write)

    def log(self, topic: str, partition: int) -> list[Stored]:
        """Return the stored records of one partition; trimmed ones keep their offsets."""
        if topic not in self._logs:
            self._logs[topic] = [[] for _ in range(self.partitions)]
        return self._logs[topic][partition]

    def log_start(self, topic: str, partition: int) -> int:
        """Return the lowest readable offset."""
        return self._log_starts.get((topic, partition), 0)

    def end(self, topic: str, partition: int) -> int:
        """Return the end offset (high watermark)."""
        return len(self.log(topic, partition))

    def topic_id(self, topic: str) -> int:
        """Return the id of the topic, which changes when it is created anew."""
        return self._topic_ids.get(topic, 0)

    def message(self, topic: str, partition: int, offset: int) -> Message:
        """Decode one stored record."""
        stored = self.log(topic, partition)[offset]
        try:
            return Delivered(
                topic=topic, partition=partition, offset=offset, timestamp_ms=stored.timestamp_ms,
                key=stored.key, record=self.codec.decode(BY_NAME[topic], stored.raw),
            )  # fmt: skip
        except PoisonRecordError as error:
            return Poisoned(
                topic=topic, partition=partition, offset=offset, timestamp_ms=stored.timestamp_ms,
                key=stored.key, raw=stored.raw, schema_id=_schema_id(stored.raw),
                error_class=type(error).__name__, error=str(error),
            )  # fmt: skip

    def _look(self, topic: str, partition: int, offset: int) -> Message:
        """Return a stored record, decoded once for all looks of a test.

        The read door decodes anew for each reader, as processes that share nothing do.
        """
        stored = self.log(topic, partition)[offset]
        seen = self._looks.get((topic, partition, offset))
        if seen is None or seen[0] is not stored:
            seen = stored, self.message(topic, partition, offset)
            self._looks[topic, partition, offset] = seen
        return seen[1]

    def wake(self) -> None:
        """Wake every reader that waits for something new."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def something_new(self, timeout_s: float) -> bool:
        """Wait until anything changes on the bus; False when `timeout_s` passes first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True


def _schema_id(raw: bytes) -> int | None:
    try:
        return frame_id(raw)
    except PoisonRecordError:
        return None


def only(records: Iterable[R]) -> R:
    """Return the one record of a sequence, and fail when there are none or several."""
    found: Sequence[R] = tuple(records)
    assert len(found) == 1, f"expected one record, found {len(found)}"
    return found[0]
