"""The coordinator and two whole workers on the memory bus: the fleet follows the learner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from inference import refresh, worker
from inference.refresh_settings import RefreshSettings
from schemas.enums import LearnerEventKind, RefreshEventKind, Role, WorkerStatus
from schemas.ids import Version, WorkerId
from schemas.records.refresh_event import RefreshEvent
from schemas.topics import REFRESHES, WORKERS
from tests.support.inference_stand import context_on, inference_settings
from tests.support.learner_records import learn, publish, started
from tests.support.memory_bus import MemoryBus

LAST = Version(1, 6)


def refreshes(bus: MemoryBus) -> list[RefreshEvent]:
    return bus.records(REFRESHES)


def served(bus: MemoryBus) -> dict[WorkerId, Version]:
    """What each inference worker last said that it serves."""
    return {
        state.worker_id: Version(state.epoch, state.number)
        for state in bus.records(WORKERS)
        if state.role is Role.INFERENCE and state.status is WorkerStatus.READY
    }


@asynccontextmanager
async def running(bus: MemoryBus, *names: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for name in names:
            context = context_on(bus, name)
            role = (
                refresh.run(context, RefreshSettings(tick_ms=10))
                if name == "refresh"
                else worker.run(context, inference_settings())
            )
            task = asyncio.create_task(role)

            async def end(context_of: object = context, of: asyncio.Task[None] = task) -> None:
                context_of.stop.set()  # type: ignore[attr-defined]  # an asyncio.Event in tests
                await asyncio.wait_for(of, 10)

            stack.push_async_callback(end)
        yield


async def test_every_worker_comes_to_serve_the_newest_version_one_at_a_time() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    async with running(bus, "a", "b", "refresh"):
        for number in range(1, LAST.number + 1):
            learn(bus, LearnerEventKind.STEP, number)
            publish(bus, Version(1, number))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(15):
            while set(served(bus).values()) != {LAST} or len(served(bus)) < 2:
                await asyncio.sleep(0.02)
    changing: set[WorkerId] = set()
    for event in refreshes(bus):
        match event.kind:
            case RefreshEventKind.PREPARE:
                changing.add(event.worker_id)
            case RefreshEventKind.SERVING | RefreshEventKind.FAILED:
                changing.discard(event.worker_id)
            case _:
                pass
        assert len(changing) <= 1
    assert not any(event.kind is RefreshEventKind.FAILED for event in refreshes(bus))
    assert {event.digest for event in refreshes(bus) if event.number == LAST.number} == {
        f"digest of {LAST}"
    }


async def test_a_worker_that_comes_late_is_brought_to_the_version_of_the_others() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    learn(bus, LearnerEventKind.STEP, 1)
    publish(bus, Version(1, 1))
    async with running(bus, "refresh", "late"), asyncio.timeout(15):
        while served(bus).get(WorkerId("late")) != Version(1, 1):
            await asyncio.sleep(0.02)
