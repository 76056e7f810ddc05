"""A worker is seen while it lives, and what it observes never holds it up."""

from __future__ import annotations

import asyncio

from producers.metrics import Metrics
from producers.presence import Presence
from schemas.enums import Role, WorkerStatus
from schemas.ids import Version
from schemas.topics import METRICS, WORKERS
from tests.support.contexts import context_on
from tests.support.memory_bus import Fault, MemoryBus


async def test_a_change_is_published_and_kept_fresh_until_the_worker_stops() -> None:
    bus = MemoryBus(partitions=1)
    presence = Presence(context_on(bus), Role.INFERENCE, "http://x:1", 8, heartbeat_s=0.01)
    await presence.announce(WorkerStatus.READY, Version(1, 4), "serving")
    async with asyncio.timeout(10):
        while len(bus.records(WORKERS)) < 3:
            await asyncio.sleep(0.001)
    await presence.announce(WorkerStatus.STOPPED)
    states = bus.records(WORKERS)
    assert len(states) >= 4
    assert {(one.role, one.address, one.capacity, one.epoch, one.number) for one in states} == {
        (Role.INFERENCE, "http://x:1", 8, 1, 4)
    }
    assert [one.status for one in states][-2:] == [WorkerStatus.READY, WorkerStatus.STOPPED]
    await asyncio.sleep(0.03)
    assert len(bus.records(WORKERS)) == len(states)


async def test_a_presence_that_nobody_acknowledges_stops_no_worker() -> None:
    bus = MemoryBus(partitions=1)
    bus.faults.next(Fault.UNKNOWN_LOST)
    presence = Presence(context_on(bus), Role.GATE)
    await presence.announce(WorkerStatus.READY)
    await presence.announce(WorkerStatus.STOPPED)
    assert [one.status for one in bus.records(WORKERS)] == [WorkerStatus.STOPPED]


async def test_samples_are_dropped_and_counted_while_too_much_waits() -> None:
    bus = MemoryBus(partitions=1)
    metrics = Metrics(context_on(bus), queued_max=2)
    bus.faults.hold_acks()
    for _ in range(5):
        metrics.observe("queue_wait_s", 1, "s", stage="gate")
    assert metrics.dropped == 3
    bus.faults.release_acks()
    metrics.observe("queue_wait_s", 2.5, "s")
    found = bus.records(METRICS)
    assert [one.value for one in found] == [1.0, 1.0, 2.5]
    assert found[0].labels == {"stage": "gate"}
