"""Reads as long as a run are bounded by standing still, not by how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from infra.standing import delivered, ends_of, through
from schemas.deadline import Deadline
from schemas.enums import ControlKind
from schemas.errors import TransientError
from schemas.ids import RunId, WorkerId
from schemas.ports import Delivered, LogReader, Message
from schemas.records.control_event import ControlEvent
from schemas.topics import CONTROL
from tests.support.clocks import HeldClock
from tests.support.memory_bus import MemoryBus
from tests.support.memory_readers import MemoryLogReader

PARTITIONS = 4
PATIENCE_MS = 1_000
COUNT = 30


class SlowReader(MemoryLogReader):
    """Gives one record a poll, each after a while."""

    def __init__(self, bus: MemoryBus, clock: HeldClock, *, takes_ms: int) -> None:
        super().__init__(bus, {CONTROL: dict.fromkeys(range(PARTITIONS), 0)})
        self._clock, self._takes_ms = clock, takes_ms

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Any]:  # noqa: ARG002  the port names them
        self._clock.advance(self._takes_ms)
        return await super().poll(records_max=1, timeout_s=0.0)


def bus_of(count: int) -> MemoryBus:
    bus = MemoryBus(partitions=PARTITIONS)
    for at in range(count):
        event = ControlEvent(
            run_id=RunId("a"), kind=ControlKind.START, at_us=at, writer_id=WorkerId("cli")
        )
        bus.append(CONTROL, event, partition=at % PARTITIONS)
    return bus


def times(messages: Sequence[Message]) -> list[int]:
    return [one.record.at_us for one in messages if isinstance(one, Delivered)]


async def read(reader: LogReader, clock: HeldClock, *, beyond: int = 0) -> list[int]:
    def patience() -> Deadline:
        return Deadline.after(PATIENCE_MS, now_ms=clock.monotonic_ms(), waiting_for="its records")

    ends = {place: end + beyond for place, end in (await ends_of(reader, [CONTROL])).items()}
    found: list[int] = []
    async for messages in through(reader, ends, clock=clock, patience=patience):
        found += times(messages)
    return found


async def test_a_read_that_takes_long_goes_on_while_records_come() -> None:
    clock = HeldClock()
    reader = SlowReader(bus_of(COUNT), clock, takes_ms=PATIENCE_MS - 1)
    assert sorted(await read(reader, clock)) == list(range(COUNT))


async def test_a_read_gives_up_once_nothing_more_comes() -> None:
    clock = HeldClock()
    reader = SlowReader(bus_of(COUNT), clock, takes_ms=PATIENCE_MS // 2)
    began_ms = clock.monotonic_ms()
    with pytest.raises(TransientError, match="gave up on its records: 4 partitions") as caught:
        await read(reader, clock, beyond=1)
    assert caught.value.hint
    waited_ms = clock.monotonic_ms() - began_ms - COUNT * PATIENCE_MS // 2
    assert PATIENCE_MS <= waited_ms <= 2 * PATIENCE_MS


async def test_an_empty_topic_is_read_at_once() -> None:
    clock = HeldClock()
    assert await read(SlowReader(bus_of(0), clock, takes_ms=PATIENCE_MS), clock) == []


async def test_what_cannot_be_read_is_passed_over() -> None:
    clock = HeldClock()
    bus = bus_of(COUNT)
    bus.append_raw(CONTROL, partition=0, raw=b"no record")
    reader = SlowReader(bus, clock, takes_ms=1)
    found = [m async for m in delivered(reader, [CONTROL], clock=clock, waiting_for="records")]
    assert sorted(times(found)) == list(range(COUNT))
