"""The read doors of a simulated process: readers of partitions and members of groups, each
behind at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from schemas.deadline import Deadline
from schemas.errors import FencedError, TransientError
from schemas.ports import Assigned, Floor, GroupEvent, Message, Position, Revoked
from schemas.topics import BY_NAME, Topic
from tests.simulation.bus import SimBus
from tests.simulation.loop import Process
from tests.support.memory_groups import Group

_SKIPS = 0.2
"""How often a partition is passed over, or comes only in part."""
_HEARTBEAT_S = 3.0
"""A member hears at its next heartbeat that another process took its name. Unit: s."""


class SimReader:
    """Reads given partitions; see `schemas.ports.LogReader`."""

    def __init__(
        self,
        bus: SimBus,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        process: Process | None = None,
    ) -> None:
        """Start at the given offsets."""
        self._bus, self._process = bus, process
        self._next: dict[tuple[str, int], int] = {}
        for topic, offsets in starts.items():
            self.add(topic, offsets)

    def add(self, topic: Topic[Any], starts: Mapping[int, int]) -> None:
        """Also read these partitions from these offsets."""
        self._next.update({(topic.name, p): offset for p, offset in starts.items()})

    def remove(self, topic: Topic[Any], partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        for partition in partitions:
            self._next.pop((topic.name, partition), None)

    def positions(self) -> Mapping[tuple[str, int], int]:
        """Return the next offset to deliver per place."""
        return dict(self._next)

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message]:
        """Return some of what is there; a partition may be late, or come only in part."""
        if timeout_s <= 0:
            return self.take(records_max)
        await asyncio.sleep(0.05 * self._bus.chance.random())
        taken = self.take(records_max)
        if taken:
            return taken
        await self._bus.news({topic for topic, _ in self._next})
        await asyncio.sleep(0.1 * self._bus.chance.random() ** 2)
        return self.take(records_max)

    @property
    def _is_deaf(self) -> bool:
        return self._process is not None and self._process.is_deaf

    def take(self, records_max: int) -> list[Message]:
        """Return what is there, partitions in any order."""
        if self._is_deaf:
            return []
        bus, chance = self._bus, self._bus.chance
        taken: list[Message] = []
        behind = [place for place, at in self._next.items() if at < bus.end(*place)]
        if len(behind) > 1:
            chance.shuffle(behind)
        for place in behind:
            if not bus.is_calm and chance.random() < _SKIPS:
                continue
            at, end = self._next[place], bus.end(*place)
            upto = min(end, at + records_max - len(taken))
            if not bus.is_calm and chance.random() < _SKIPS:
                upto = min(upto, at + 1)
            taken += bus.log(*place)[at:upto]
            self._reads(place, upto)
        return taken

    async def ends(
        self, topic: Topic[Any], partitions: Collection[int] | None = None
    ) -> Mapping[int, int]:
        """Return the end offsets now."""
        await asyncio.sleep(0.002)
        self._must_hear()
        chosen = range(self._bus.partitions) if partitions is None else sorted(partitions)
        ends = {p: self._bus.end(topic.name, p) for p in chosen}
        await asyncio.sleep(0.002)
        return ends

    async def read_to(
        self,
        ends: Mapping[tuple[str, int], int],
        *,
        deadline: Deadline,  # noqa: ARG002  no broker fails
    ) -> Sequence[Message]:
        """Return everything up to the given ends."""
        await asyncio.sleep(0.002 + 0.01 * self._bus.chance.random())
        self._must_hear()
        found: list[Message] = []
        for place, end in ends.items():
            at = self._next[place]
            if at < end:
                found += self._bus.log(*place)[at:end]
                self._reads(place, end)
        return found

    def _reads(self, place: tuple[str, int], upto: int) -> None:
        self._next[place] = upto
        if self._process is not None:
            read = self._process.has_read
            read[place] = max(upto, read.get(place, 0))

    def _must_hear(self) -> None:
        if self._is_deaf:
            raise TransientError("the broker does not answer")

    async def close(self) -> None:
        """Read nothing more."""
        self._next.clear()


class SimGroupReader:
    """A member of a consumer group; see `schemas.ports.GroupReader`.

    The group knows a member by name, and two processes of one name live after one was replaced. The
    older is fenced: nothing is assigned to it or taken from it any more, it reads on what it had,
    and it hears so at its next heartbeat, or at its next commit.
    """

    def __init__(
        self,
        bus: SimBus,
        group: Group,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
        process: Process | None = None,
    ) -> None:
        """Join at the first poll."""
        self._bus, self._group, self._member = bus, group, member
        self._starts, self._floors = dict(starts), floors
        self._topic = BY_NAME[group.topic]
        self._reader = SimReader(bus, {})
        self._held: frozenset[int] = frozenset()
        self._hears_at_s: float | None = None
        self.process = process
        self.is_fenced = False

    @property
    def owned(self) -> frozenset[int]:
        """Partitions owned now, as far as the member has heard."""
        return self._held

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[GroupEvent]:
        """Return assignment changes, then records."""
        await asyncio.sleep(0.03 * self._bus.chance.random())
        events: list[GroupEvent] = [*self._changes(), *self._reader.take(records_max)]
        if events or timeout_s <= 0:
            return events
        await self._bus.news((self._topic.name,))
        await asyncio.sleep(0.1 * self._bus.chance.random() ** 2)
        return [*self._changes(), *self._reader.take(records_max)]

    def _heartbeat(self) -> None:
        now_s = self._bus.loop.time()
        if self._hears_at_s is None:
            self._hears_at_s = now_s + _HEARTBEAT_S * self._bus.chance.random() ** 2
        if now_s >= self._hears_at_s:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(f"another process took the member id {self._member}")

    def _changes(self) -> list[GroupEvent]:
        group, member, topic = self._group, self._member, self._topic
        events: list[GroupEvent] = []
        if self.is_fenced:
            self._heartbeat()
            return events
        if lost := group.take_lost(member):
            self._reader.remove(topic, lost)
            events.append(Revoked(partitions=lost, lost=True))
        group.join(member)
        if revoked := group.to_give_up(member):
            group.commit(member, self._floors(revoked))
            group.give_up(member, revoked)
            self._reader.remove(topic, revoked)
            events.append(Revoked(partitions=revoked, lost=False))
        if taken := group.take(member):
            committed = {p: f for p in taken if (f := group.committed.get(p)) is not None}
            starts = {
                p: committed[p].offset if p in committed else self._starts.get(p, 0) for p in taken
            }
            self._reader.add(topic, starts)
            generation = group.generation
            events.append(Assigned(generation=generation, partitions=taken, committed=committed))
        self._held = group.held(member)
        return events

    async def commit(self, floors: Mapping[int, Floor]) -> None:
        """Commit floors of partitions owned now."""
        await asyncio.sleep(0.005)
        if self.is_fenced:
            raise self._fenced()
        if not self._held <= self._group.held(self._member):
            raise TransientError("the member's session is over, and it has not heard so")
        self._group.commit(self._member, floors)
        await asyncio.sleep(0.005)

    def pause(self) -> None:
        """Not used by the roles."""

    def resume(self) -> None:
        """Not used by the roles."""

    async def close(self) -> None:
        """Commit and leave."""
        await asyncio.sleep(0.005)
        if not self.is_fenced:
            if owned := self.owned:
                self._group.commit(self._member, self._floors(owned))
            self._group.leave(self._member)


class SimConsumers:
    """The read door of one process start."""

    def __init__(self, bus: SimBus, process: Process | None = None) -> None:
        """Make readers of this bus."""
        self._bus, self._process = bus, process

    def reader(
        self,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        *,
        jumps: bool = False,  # noqa: ARG002  every change takes effect at once
    ) -> SimReader:
        """Return a reader of given partitions."""
        return SimReader(self._bus, starts, self._process)

    def frames(
        self,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        *,
        framed: Collection[Topic[Any]],  # noqa: ARG002  a reader may decode nevertheless
    ) -> SimReader:
        """Return a reader of given partitions."""
        return SimReader(self._bus, starts, self._process)

    def group(
        self,
        topic: Topic[Any],
        *,
        group: str,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> SimGroupReader:
        """Join a group; a second process under one member id fences the first."""
        state = self._bus.groups.setdefault(
            group, Group(topic=topic.name, partitions=self._bus.partitions)
        )
        state.fence(member)
        reader = SimGroupReader(self._bus, state, member, starts, floors, self._process)
        state.readers[member] = reader
        return reader

    async def mark(self, topic: Topic[Any], *, group: str, floors: Mapping[int, Floor]) -> None:
        """Nothing reads it back."""

    async def fetch(self, position: Position, *, deadline: Deadline) -> Message:  # noqa: ARG002
        """Return the record at a position."""
        await asyncio.sleep(0.002)
        return self._bus.log(position.topic, position.partition)[position.offset]

    async def partitions(self, topic: Topic[Any]) -> int:  # noqa: ARG002  one number for all
        """Return the number of partitions."""
        return self._bus.partitions

    async def ends(self, topic: Topic[Any]) -> Mapping[int, int]:
        """Return the end offset now of every partition."""
        await asyncio.sleep(0.002)
        return {p: self._bus.end(topic.name, p) for p in range(self._bus.partitions)}
