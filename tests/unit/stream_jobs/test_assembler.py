"""Assemblers that stop, die and lose acknowledgements on the memory bus."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from schemas import topics
from schemas.enums import EpisodeEventKind
from schemas.ids import EpisodeId, GroupId, WorkerId
from schemas.packing import unpack_heavy
from schemas.ports import Delivered
from schemas.records.trajectory import Trajectory
from stream_jobs import assembler, gate
from stream_jobs.core.staleness import defect
from stream_jobs.settings import AssemblerSettings, GateSettings
from tests.support.fake_rollout import (
    RUN,
    WalWriter,
    context_on,
    ended,
    policy,
    task,
    until,
    verdict,
)
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.seeds import seeds
from tests.unit.stream_jobs.scheduling import author
from tests.unit.stream_jobs.test_gate_rebalance import consumed
from tests.unit.stream_jobs.trajectories import issued

SETTINGS = AssemblerSettings(poll_s=0.004, commit_interval_s=0.005, records_max=40)


def a_bus() -> MemoryBus:
    bus = MemoryBus(partitions=3)
    bus.append(topics.POLICIES, policy())
    for partition in range(3):
        bus.append(topics.EPISODES, author(1).fence(at_us=1), partition=partition)
    return bus


def write_episode(bus: MemoryBus, ordinal: int, *, is_ended: bool = True) -> None:
    """Write all records of one episode, its verdict before its Ended."""
    work = task(ordinal, size=1)
    leased = replace(
        issued(ordinal, size=1),
        kind=EpisodeEventKind.LEASED,
        attempt=1,
        worker_id=WorkerId("environment-0"),
        task_frame=bus.codec.encode(topics.TASKS, work),
    )
    bus.append(topics.EPISODES, issued(ordinal, size=1))
    bus.append(topics.EPISODES, leased)
    wal = WalWriter(
        episode_id=EpisodeId(f"{RUN}.{ordinal}.0"), group_id=GroupId(f"{RUN}.{ordinal}.g")
    )
    position = -1
    for commit in (wal.fence(), wal.prompt(3), wal.action(4), wal.action(2)):
        position = bus.append(topics.TOKENS, commit).offset
    if is_ended:
        bus.append(topics.VERDICTS, verdict(leased, 1.0))
        bus.append(topics.EPISODES, ended(leased, wal_position=position))


def sealed(bus: MemoryBus) -> Counter[str]:
    return Counter(one.episode_id for one in bus.records(topics.TRAJECTORIES))


def payload(bus: MemoryBus, trajectory: Trajectory) -> bytes:
    bodies = []
    for ref in trajectory.chunks:
        message = bus.message(topics.PAYLOADS.name, ref.partition, ref.offset)
        assert isinstance(message, Delivered)
        bodies.append(message.record.body)
    return b"".join(bodies)


async def test_every_episode_is_sealed_once_and_its_chunks_stand_where_it_says() -> None:
    bus = a_bus()
    for ordinal in range(12):
        write_episode(bus, ordinal)
    job = assembler.run(context_on(bus, "assembler-0"), SETTINGS, codec=bus.codec)
    await until(lambda: len(sealed(bus)) == 12, job)
    assert set(sealed(bus).values()) == {1}
    for trajectory in bus.records(topics.TRAJECTORIES):
        assert defect(trajectory) is None
        assert unpack_heavy(payload(bus, trajectory)).tokens == trajectory.tokens == 9


async def test_a_restart_goes_on_from_its_floors_and_seals_nothing_twice() -> None:
    bus = a_bus()
    write_episode(bus, 0, is_ended=False)
    for ordinal in range(1, 8):
        write_episode(bus, ordinal)
    stop = asyncio.Event()
    job = asyncio.create_task(
        assembler.run(context_on(bus, "assembler-0", stop=stop), SETTINGS, codec=bus.codec)
    )
    await until(lambda: len(sealed(bus)) == 7)
    await asyncio.sleep(0.02)
    stop.set()
    await job
    floors = bus.groups[f"assembler-{RUN}"].committed
    unfinished = bus.append(topics.EPISODES, issued(0, size=1)).partition
    moved = [p for p, floor in floors.items() if floor.offset == bus.end("episodes.v1", p)]
    assert unfinished not in moved
    assert len(moved) >= 1
    for ordinal in range(8, 10):
        write_episode(bus, ordinal)
    again = assembler.run(context_on(bus, "assembler-0"), SETTINGS, codec=bus.codec)
    await until(lambda: len(sealed(bus)) == 9, again)
    assert set(sealed(bus).values()) == {1}


@pytest.mark.parametrize("seed", seeds(2, quick=1))
async def test_killed_assemblers_and_lost_acknowledgements_lose_no_episode(seed: int) -> None:
    dice = random.Random(seed)
    bus = a_bus()
    running: dict[str, asyncio.Task[None]] = {}
    ordinal = 0
    faults = (Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST)
    try:
        async with asyncio.timeout(15):
            while ordinal < 24 or len(sealed(bus)) < 24:
                if ordinal < 24:
                    write_episode(bus, ordinal)
                    ordinal += 1
                name = dice.choice(("assembler-0", "assembler-1"))
                if name not in running:
                    context = context_on(bus, name)
                    job = assembler.run(context, SETTINGS, codec=bus.codec)
                    running[name] = asyncio.create_task(job)
                elif dice.random() < 0.15:
                    running.pop(name).cancel()
                elif dice.random() < 0.3:
                    topic = dice.choice((topics.PAYLOADS, topics.TRAJECTORIES))
                    bus.faults.next(dice.choice(faults), topic=topic)
                await asyncio.sleep(0.005)
    finally:
        for one in running.values():
            one.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
    for trajectory in bus.records(topics.TRAJECTORIES):
        assert unpack_heavy(payload(bus, trajectory)).tokens == trajectory.tokens


@pytest.mark.parametrize("seed", seeds(2, quick=1))
async def test_two_owners_of_a_partition_are_counted_once_by_gate_and_learner(seed: int) -> None:
    dice = random.Random(seed)
    bus = a_bus()
    gating = GateSettings(poll_s=0.002, commit_interval_s=0.004, max_age_s=1e9)
    jobs = [
        asyncio.create_task(assembler.run(context_on(bus, name), SETTINGS, codec=bus.codec))
        for name in ("assembler-0", "assembler-1")
    ]
    jobs += [
        asyncio.create_task(gate.run(context_on(bus, name), gating, codec=bus.codec))
        for name in ("gate-0", "gate-1")
    ]
    try:
        async with asyncio.timeout(20):
            for ordinal in range(24):
                write_episode(bus, ordinal)
                # Its partitions go to the other one while it still writes what it began.
                for role in ("assembler", "gate"):
                    name = f"{role}-{dice.randrange(2)}"
                    group = bus.groups.get(f"{role}-{RUN}")
                    if group is not None and name in group.members and dice.random() < 0.5:
                        bus.expel(f"{role}-{RUN}", name)
                await asyncio.sleep(0.003)
            while len({one.episode_id for one in bus.records(topics.GATED)}) < 24:
                await asyncio.sleep(0.005)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    assert len(sealed(bus)) == 24
    assert set(consumed(bus).values()) == {1}
    firsts = {one.group_id: one for one in reversed(bus.records(topics.GATE_DECISIONS))}
    assert sum(len(one.members) for one in firsts.values()) == 24


async def test_poison_beside_an_episode_is_buried_and_the_episode_is_sealed() -> None:
    bus = a_bus()
    bus.append_raw(topics.TOKENS, partition=0, raw=b"junk", key=b"run-1.0.0")
    bus.append_raw(topics.EPISODES, partition=1, raw=b"junk", key=b"run-1.0.0")
    write_episode(bus, 0)
    job = assembler.run(context_on(bus, "assembler-0"), SETTINGS, codec=bus.codec)
    await until(lambda: len(sealed(bus)) == 1 and len(bus.records(topics.DEAD_LETTERS)) == 2, job)
    (trajectory,) = bus.records(topics.TRAJECTORIES)
    assert defect(trajectory) is None
