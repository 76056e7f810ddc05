"""The four jobs together on the memory bus, between writers that stand in for rollout and
learner.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from schemas import topics
from schemas.enums import ControlKind, GateOutcome, Purpose, StopCause
from schemas.records.trajectory import Trajectory
from stream_jobs import assembler, gate, scheduler, task_source
from stream_jobs.settings import (
    AssemblerSettings,
    GateSettings,
    SchedulerSettings,
    StreamSettings,
    TaskSourceSettings,
)
from tests.support.fake_rollout import FakeEnvironment, FakeLearner, context_on
from tests.support.memory_bus import MemoryBus, only

SCHEDULER = SchedulerSettings(
    batch=8, eta=1, group_size=4, max_concurrent=16, steps=3, drain_s=0.2, retry_delay_s=0.01,
    poll_s=0.01,
)  # fmt: skip
SOURCE = TaskSourceSettings(
    group_size=4, streams=(StreamSettings(environment="digits"),), look_ahead_tasks=8,
    evaluate_every=4, poll_s=0.01,
)  # fmt: skip


async def _run(bus: MemoryBus, environment: FakeEnvironment, learner: FakeLearner) -> None:
    stop = environment.context.stop
    jobs = [
        task_source.run(context_on(bus, "task-source-0"), SOURCE),
        scheduler.run(context_on(bus, "scheduler-0"), SCHEDULER, codec=bus.codec),
        assembler.run(
            context_on(bus, "assembler-0"), AssemblerSettings(poll_s=0.01), codec=bus.codec
        ),
        gate.run(context_on(bus, "gate-0"), GateSettings(poll_s=0.01), codec=bus.codec),
        learner.run(),
    ]
    outside = asyncio.create_task(environment.run())
    try:
        async with asyncio.timeout(20):
            await asyncio.gather(*jobs)
    finally:
        assert isinstance(stop, asyncio.Event)
        stop.set()
        await outside


async def test_a_run_reaches_its_budget_and_every_episode_is_accounted_for() -> None:
    bus = MemoryBus(partitions=4)
    learner = FakeLearner(partitions=4, context=context_on(bus, "learner-0"), batch=8)
    environment = FakeEnvironment(
        codec=bus.codec, partitions=4, context=context_on(bus, "environment-0")
    )
    await _run(bus, environment, learner)

    end = only(
        event for event in bus.records(topics.CONTROL) if event.kind is ControlKind.END_OF_STREAM
    )
    counts = end.counts
    assert counts["issued"] == sum(
        counts[name] for name in ("admitted", "dropped", "abandoned", "evaluated")
    )
    assert counts["evaluated"] > 0
    assert learner.number >= 3
    assert len(learner.taken) == counts["admitted"]
    gated = [record.episode_id for record in bus.records(topics.GATED)]
    assert len(set(gated)) == counts["admitted"]


async def test_failed_attempts_are_leased_again_and_each_episode_has_one_trajectory() -> None:
    bus = MemoryBus(partitions=4)
    learner = FakeLearner(partitions=4, context=context_on(bus, "learner-0"), batch=8)
    environment = FakeEnvironment(
        codec=bus.codec,
        partitions=4,
        context=context_on(bus, "environment-0"),
        cause=lambda leased: (
            StopCause.ENVIRONMENT_ERROR
            if leased.attempt == 1 and leased.ordinal % 3 == 0
            else StopCause.POLICY_STOP
        ),
    )
    await _run(bus, environment, learner)

    trajectories = bus.records(topics.TRAJECTORIES)
    assert max(Counter(one.episode_id for one in trajectories).values()) == 1
    assert any(one.attempt == 2 for one in trajectories)
    decisions = bus.records(topics.GATE_DECISIONS)
    assert max(Counter(one.group_id for one in decisions).values()) == 1
    admitted = [m for one in decisions for m in one.members if m.outcome is GateOutcome.ADMIT]
    assert len(admitted) == len(learner.taken)
    assert all(one.purpose is not Purpose.EVALUATE for one in _admitted(bus))


def _admitted(bus: MemoryBus) -> list[Trajectory]:
    return [
        bus.codec.decode(topics.TRAJECTORIES, one.trajectory_frame)
        for one in bus.records(topics.GATED)
    ]
