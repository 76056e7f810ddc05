"""The read door of the memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schemas.deadline import Deadline
from schemas.errors import Boundary, FencedError, InvariantError, TransientError
from schemas.ports import Assigned, Floor, Frames, GroupEvent, Message, Position, Revoked
from schemas.topics import Topic
from tests.support.memory_groups import Group

if TYPE_CHECKING:
    from tests.support.memory_bus import MemoryBus


class _Cursor:
    """Positions in several partitions, read in turns."""

    def __init__(self, bus: MemoryBus, framed: frozenset[str] = frozenset()) -> None:
        self._bus = bus
        self._framed = framed
        self.next: dict[tuple[str, int], int] = {}
        self._topic_ids: dict[str, int] = {}

    def add(self, topic: str, starts: Mapping[int, int]) -> None:
        self._topic_ids.setdefault(topic, self._bus.topic_id(topic))
        self.next.update({(topic, partition): offset for partition, offset in starts.items()})

    def remove(self, topic: str, partitions: Collection[int]) -> None:
        for partition in partitions:
            self.next.pop((topic, partition), None)

    def take(self, records_max: int) -> list[Any]:
        """Return what is there, at most `records_max`, framed topics' as Frames; a partition that
        was read goes to the end of the queue.
        """
        taken: list[Any] = []
        for place in list(self.next):
            if records_max <= 0:
                break
            offset = self.next[place]
            self.check(place[0], place[1], offset)
            upto = min(self._bus.end(*place), offset + records_max)
            if upto > offset:
                records_max -= upto - offset
                if place[0] in self._framed:
                    taken.append(self._frames(*place, offset, upto))
                else:
                    taken += [self._bus.message(*place, o) for o in range(offset, upto)]
                del self.next[place]
                self.next[place] = upto
        return taken

    def _frames(self, topic: str, partition: int, first: int, upto: int) -> Frames:
        stored = self._bus.log(topic, partition)[first:upto]
        return Frames(
            topic=topic,
            partition=partition,
            offsets=range(first, upto),
            timestamps_ms=[one.timestamp_ms for one in stored],
            keys=[one.key for one in stored],
            raws=[one.raw for one in stored],
        )

    def check(self, topic: str, partition: int, offset: int) -> None:
        if self._bus.topic_id(topic) != self._topic_ids[topic]:
            raise InvariantError(
                f"{topic} was created anew under another id", boundary=Boundary.BUS,
                hint="stored positions belong to the old log; start from a new run",
            )  # fmt: skip
        start, end = self._bus.log_start(topic, partition), self._bus.end(topic, partition)
        if not start <= offset <= end:
            raise InvariantError(
                f"offset {offset} of {topic}/{partition} is not in the log [{start}, {end}]",
                boundary=Boundary.BUS, hint="the records were trimmed, or another log is meant",
            )  # fmt: skip


class MemoryLogReader:
    """Reads given partitions; see `schemas.ports.LogReader`."""

    def __init__(
        self,
        bus: MemoryBus,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        framed: frozenset[str] = frozenset(),
    ) -> None:
        self._bus = bus
        self._cursor = _Cursor(bus, framed)
        self._kept: list[Message] = []
        for topic, offsets in starts.items():
            self._cursor.add(topic.name, offsets)

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message]:
        """Return what is there, waiting at most `timeout_s` for the first record."""
        await asyncio.sleep(0)
        until = asyncio.get_running_loop().time() + timeout_s
        while True:
            taken = self._kept[:records_max]
            self._kept = self._kept[records_max:]
            taken += self._cursor.take(records_max - len(taken))
            left_s = until - asyncio.get_running_loop().time()
            if taken or left_s <= 0:
                return taken
            await self._bus.something_new(left_s)

    def positions(self) -> Mapping[tuple[str, int], int]:
        """Return the next offset to deliver per (topic, partition)."""
        positions = dict(self._cursor.next)
        for message in reversed(self._kept):
            positions[message.topic, message.partition] = message.offset
        return positions

    async def ends(
        self, topic: Topic[Any], partitions: Collection[int] | None = None
    ) -> Mapping[int, int]:
        """Return the end offsets now."""
        await asyncio.sleep(0)
        chosen = range(self._bus.partitions) if partitions is None else sorted(partitions)
        return {partition: self._bus.end(topic.name, partition) for partition in chosen}

    async def read_to(
        self, ends: Mapping[tuple[str, int], int], *, deadline: Deadline
    ) -> Sequence[Message]:
        """Return everything up to the given ends; what arrives for other partitions is kept."""
        found: list[Message] = []
        while True:
            others: list[Message] = []
            for message in [*self._kept, *self._cursor.take(10_000)]:
                end = ends.get((message.topic, message.partition), -1)
                (found if message.offset < end else others).append(message)
            self._kept = others
            positions = self.positions()
            if all(positions[place] >= end for place, end in ends.items()):
                await asyncio.sleep(0)
                return found
            left_ms = deadline.left_ms(now_ms=self._bus.clock.monotonic_ms())
            if left_ms == 0 or not await self._bus.something_new(left_ms / 1000):
                self._kept = sorted([*found, *self._kept], key=lambda m: m.offset)
                raise TransientError(
                    f"gave up on {deadline.waiting_for}", boundary=Boundary.BUS,
                    hint="is the end offset right?",
                )  # fmt: skip

    def add(self, topic: Topic[Any], starts: Mapping[int, int]) -> None:
        """Also read these partitions from these offsets."""
        self._drop_kept(topic.name, starts)
        self._cursor.add(topic.name, starts)

    def remove(self, topic: Topic[Any], partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        self._drop_kept(topic.name, partitions)
        self._cursor.remove(topic.name, partitions)

    async def close(self) -> None:
        """Read nothing more."""
        self._cursor.next.clear()
        self._kept.clear()

    def _drop_kept(self, topic: str, partitions: Collection[int]) -> None:
        self._kept = [m for m in self._kept if m.topic != topic or m.partition not in partitions]


class MemoryGroupReader:
    """A member of a group; see `schemas.ports.GroupReader`."""

    def __init__(
        self,
        bus: MemoryBus,
        group: Group,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> None:
        self._bus = bus
        self._group = group
        self._member = member
        self._starts = dict(starts)
        self._floors = floors
        self._cursor = _Cursor(bus)
        self._paused = False
        self._closed = False
        self.is_fenced = False

    @property
    def member(self) -> str:
        """The static member id."""
        return self._member

    @property
    def owned(self) -> frozenset[int]:
        """Partitions owned now."""
        return frozenset() if self.is_fenced else self._group.held(self._member)

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[GroupEvent]:
        """Return records and assignment changes in the order in which they take effect."""
        await asyncio.sleep(0)
        until = asyncio.get_running_loop().time() + timeout_s
        while True:
            assert not self._closed, "the reader is closed"
            self._check_name()
            events: list[GroupEvent] = list(self._changes())
            if not self._paused:
                events += self._cursor.take(records_max)
            left_s = until - asyncio.get_running_loop().time()
            if events or left_s <= 0:
                return events
            await self._bus.something_new(left_s)

    async def commit(self, floors: Mapping[int, Floor]) -> None:
        """Commit floors of partitions owned now."""
        await asyncio.sleep(0)
        self._check_name()
        self._group.commit(self._member, floors)

    def _check_name(self) -> None:
        if self.is_fenced:
            raise FencedError(
                f"another process took the member id {self._member}", boundary=Boundary.BUS
            )

    def pause(self) -> None:
        """Stop fetching records until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Fetch again."""
        self._paused = False
        self._bus.wake()

    async def close(self) -> None:
        """Commit what the floors callback returns and leave."""
        await asyncio.sleep(0)
        if self._closed:
            return
        if not self.is_fenced:
            if owned := self.owned:
                self._group.commit(self._member, self._floors(owned))
            self._group.leave(self._member)
        self._closed = True
        self._bus.wake()

    def _changes(self) -> Sequence[GroupEvent]:
        events: list[GroupEvent] = []
        if lost := self._group.take_lost(self._member):
            self._cursor.remove(self._group.topic, lost)
            events.append(Revoked(partitions=lost, lost=True))
        self._group.join(self._member)
        if revoked := self._group.to_give_up(self._member):
            self._group.commit(self._member, self._floors(revoked))
            self._group.give_up(self._member, revoked)
            self._cursor.remove(self._group.topic, revoked)
            events.append(Revoked(partitions=revoked, lost=False))
            self._bus.wake()
        if taken := self._group.take(self._member):
            committed = {p: f for p in taken if (f := self._group.committed.get(p)) is not None}
            starts = {
                p: committed[p].offset if p in committed else self._starts.get(p, 0) for p in taken
            }
            self._cursor.add(self._group.topic, starts)
            generation = self._group.generation
            events.append(Assigned(generation=generation, partitions=taken, committed=committed))
        return events


class MemoryConsumers:
    """Makes readers; see `schemas.ports.Consumers`."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    def reader(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, jumps: bool = False
    ) -> MemoryLogReader:
        """Return a reader of given partitions; here every change takes effect at once."""
        del jumps
        return MemoryLogReader(self._bus, starts)

    def frames(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, framed: Collection[Topic[Any]]
    ) -> MemoryLogReader:
        """Return a reader that gives the records of the topics `framed` undecoded."""
        return MemoryLogReader(self._bus, starts, frozenset(topic.name for topic in framed))

    def group(
        self,
        topic: Topic[Any],
        *,
        group: str,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> MemoryGroupReader:
        """Join a group; a second process under the same member id fences the first."""
        state = self._bus.groups.setdefault(
            group, Group(topic=topic.name, partitions=self._bus.partitions)
        )
        assert state.topic == topic.name, "a group reads one topic"
        state.fence(member)
        reader = MemoryGroupReader(self._bus, state, member, starts, floors)
        state.readers[member] = reader
        return reader

    async def mark(self, topic: Topic[Any], *, group: str, floors: Mapping[int, Floor]) -> None:
        """Commit floors for a group that nobody joins."""
        await asyncio.sleep(0)
        state = self._bus.groups.setdefault(
            group, Group(topic=topic.name, partitions=self._bus.partitions)
        )
        if state.members:
            raise TransientError(f"group {group} has members", boundary=Boundary.BUS)
        state.committed.update(floors)

    async def fetch(self, position: Position, *, deadline: Deadline) -> Message:
        """Return the record at exactly this position."""
        topic, partition, offset = position.topic, position.partition, position.offset
        while self._bus.end(topic, partition) <= offset:
            left_ms = deadline.left_ms(now_ms=self._bus.clock.monotonic_ms())
            if left_ms == 0 or not await self._bus.something_new(left_ms / 1000):
                raise TransientError(f"gave up on {deadline.waiting_for}", boundary=Boundary.BUS)
        if offset < self._bus.log_start(topic, partition):
            raise InvariantError(f"the record at {position} is gone", boundary=Boundary.BUS)
        await asyncio.sleep(0)
        return self._bus.message(topic, partition, offset)

    async def partitions(self, topic: Topic[Any]) -> int:  # noqa: ARG002  one number for all topics
        """Return the number of partitions."""
        await asyncio.sleep(0)
        return self._bus.partitions

    async def ends(self, topic: Topic[Any]) -> Mapping[int, int]:
        """Return the end offset now of every partition."""
        await asyncio.sleep(0)
        return {p: self._bus.end(topic.name, p) for p in range(self._bus.partitions)}
