"""The coordinator on the memory bus: what it asks for, and what it makes of a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inference.refresh import run
from inference.refresh_settings import RefreshSettings
from schemas.enums import LearnerEventKind, RefreshEventKind, Role, WorkerStatus
from schemas.ids import RunId, Version, WorkerId
from schemas.records.refresh_event import RefreshEvent
from schemas.records.worker_state import WorkerState
from schemas.topics import DEAD_LETTERS, REFRESHES, WORKERS
from tests.support.inference_stand import RUN, context_on
from tests.support.learner_records import learn, publish, started
from tests.support.memory_bus import MemoryBus

SETTINGS = RefreshSettings(tick_ms=10)
START = Version(0, 0)


def be_there(bus: MemoryBus, name: str, version: Version = START, *, run: RunId = RUN) -> None:
    bus.append(
        WORKERS,
        WorkerState(
            run_id=run,
            worker_id=WorkerId(name),
            role=Role.INFERENCE,
            incarnation=f"{name}-1",
            status=WorkerStatus.READY,
            epoch=version.epoch,
            number=version.number,
            at_us=1,
            writer_id=WorkerId(name),
        ),
    )


def answer(bus: MemoryBus, name: str, kind: RefreshEventKind, version: Version) -> None:
    bus.append(
        REFRESHES,
        RefreshEvent(
            run_id=RUN,
            worker_id=WorkerId(name),
            incarnation=f"{name}-1",
            kind=kind,
            epoch=version.epoch,
            number=version.number,
            at_us=1,
            writer_id=WorkerId(name),
        ),
    )


def prepared(bus: MemoryBus) -> list[tuple[str, Version, str]]:
    return [
        (str(r.worker_id), Version(r.epoch, r.number), r.digest)
        for r in bus.records(REFRESHES)
        if r.kind is RefreshEventKind.PREPARE
    ]


async def until_prepared(bus: MemoryBus, count: int) -> list[tuple[str, Version, str]]:
    async with asyncio.timeout(5):
        while len(prepared(bus)) < count:
            await asyncio.sleep(0.005)
    return prepared(bus)


@asynccontextmanager
async def coordinating(bus: MemoryBus) -> AsyncIterator[asyncio.Task[None]]:
    context = context_on(bus, "refresh")
    running = asyncio.create_task(run(context, SETTINGS))
    try:
        yield running
    finally:
        assert isinstance(context.stop, asyncio.Event)
        context.stop.set()
        await asyncio.wait_for(running, 5)


async def test_workers_are_asked_one_after_the_other_for_each_new_version() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    be_there(bus, "a")
    be_there(bus, "b")
    first = Version(1, 1)
    async with coordinating(bus):
        learn(bus, LearnerEventKind.STEP, 1)
        publish(bus, first)
        assert await until_prepared(bus, 1) == [("a", first, "digest of 1/1")]
        await asyncio.sleep(0.05)
        assert len(prepared(bus)) == 1
        answer(bus, "a", RefreshEventKind.SERVING, first)
        assert (await until_prepared(bus, 2))[1][:2] == ("b", first)


async def test_a_version_without_its_step_is_not_asked_for() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    be_there(bus, "a")
    async with coordinating(bus):
        publish(bus, Version(1, 1))
        await asyncio.sleep(0.1)
        assert prepared(bus) == []
        learn(bus, LearnerEventKind.STEP, 1)
        assert (await until_prepared(bus, 1))[0][:2] == ("a", Version(1, 1))


async def test_another_run_s_workers_and_a_poison_record_change_nothing() -> None:
    bus = MemoryBus(partitions=1)
    bus.append_raw(WORKERS, partition=0, raw=b"junk")
    be_there(bus, "stranger", run=RunId("another run"))
    started(bus)
    be_there(bus, "a")
    async with coordinating(bus):
        learn(bus, LearnerEventKind.STEP, 1)
        publish(bus, Version(1, 1))
        assert [name for name, *_ in await until_prepared(bus, 1)] == ["a"]
    assert [letter.origin_topic for letter in bus.records(DEAD_LETTERS)] == [WORKERS.name]


async def test_after_a_restart_it_goes_on_with_the_change_that_is_under_way() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    be_there(bus, "a")
    be_there(bus, "b")
    learn(bus, LearnerEventKind.STEP, 1)
    publish(bus, Version(1, 1))
    async with coordinating(bus):
        await until_prepared(bus, 1)
    async with coordinating(bus):
        await asyncio.sleep(0.1)
        assert len(prepared(bus)) == 1
        answer(bus, "a", RefreshEventKind.SERVING, Version(1, 1))
        assert (await until_prepared(bus, 2))[1][0] == "b"


async def test_it_ends_when_the_learner_has_closed_the_run() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    async with coordinating(bus) as running:
        learn(bus, LearnerEventKind.CLOSED)
        await asyncio.wait_for(asyncio.shield(running), 5)
    last = [w for w in bus.records(WORKERS) if w.role is Role.REFRESH][-1]
    assert last.status is WorkerStatus.STOPPED
