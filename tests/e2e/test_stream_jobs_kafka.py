"""Task source, scheduler, two assemblers and two gates on a real broker, between writers that stand
in for rollout and learner.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from infra.topic_admin import create_topics
from schemas import topics
from schemas.codec import Codec
from schemas.enums import ControlKind, GateOutcome
from schemas.ids import WorkerId
from schemas.ports import Context, Delivered
from stream_jobs import assembler, gate, scheduler, task_source
from stream_jobs.settings import (
    AssemblerSettings,
    GateSettings,
    SchedulerSettings,
    StreamSettings,
    TaskSourceSettings,
)
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support.clocks import RealClock
from tests.support.fake_rollout import RUN, FakeEnvironment, FakeLearner

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

SOURCE = TaskSourceSettings(
    group_size=4, streams=(StreamSettings(environment="digits"),), evaluate_every=5
)
SCHEDULER = SchedulerSettings(
    batch=32, eta=1, group_size=4, max_concurrent=64, steps=6, drain_s=1.0
)


@pytest.fixture
async def harness(local_platform: LocalPlatform) -> AsyncIterator[KafkaHarness]:
    """Topics of this test alone."""
    prefix = f"stream-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    made = KafkaHarness(local_platform.bootstrap, prefix)
    yield made
    await made.close()


def context(harness: KafkaHarness, worker: str) -> Context:
    return Context(
        run_id=RUN, worker_id=WorkerId(worker), incarnation=f"{worker}-a",
        producer=harness.producer(), consumers=harness.consumers(), clock=RealClock(), starts={},
        secret=b"secret", stop=asyncio.Event(),
    )  # fmt: skip


async def read(harness: KafkaHarness, topic: topics.Topic[Any]) -> list[Any]:
    """Return every record of a topic."""
    reader = harness.consumers().reader({topic: dict.fromkeys(range(PARTITIONS), 0)})
    ends = {(topic.name, p): end for p, end in (await reader.ends(topic)).items()}
    found: list[Any] = []
    positions = dict(reader.positions())
    while any(positions[place] < end for place, end in ends.items()):
        for message in await reader.poll(records_max=500, timeout_s=1.0):
            assert isinstance(message, Delivered)
            found.append(message.record)
        positions = dict(reader.positions())
    await reader.close()
    return found


async def test_a_run_goes_from_tasks_to_closed_on_a_real_broker(harness: KafkaHarness) -> None:
    codec = Codec.local()
    learner = FakeLearner(partitions=PARTITIONS, context=context(harness, "learner-0"), batch=32)
    environment = FakeEnvironment(
        codec=codec, partitions=PARTITIONS, context=context(harness, "environment-0")
    )
    jobs = [
        task_source.run(context(harness, "task-source-0"), SOURCE),
        scheduler.run(context(harness, "scheduler-0"), SCHEDULER, codec=codec),
        *(
            assembler.run(context(harness, f"assembler-{i}"), AssemblerSettings(), codec=codec)
            for i in (0, 1)
        ),
        *(gate.run(context(harness, f"gate-{i}"), GateSettings(), codec=codec) for i in (0, 1)),
        learner.run(),
    ]
    outside = asyncio.create_task(environment.run())
    began = time.monotonic()
    try:
        async with asyncio.timeout(90):
            await asyncio.gather(*jobs)
    finally:
        stop = environment.context.stop
        assert isinstance(stop, asyncio.Event)
        stop.set()
        await outside
    wall_s = time.monotonic() - began

    control = await read(harness, topics.CONTROL)
    (end,) = [event for event in control if event.kind is ControlKind.END_OF_STREAM]
    counts = end.counts
    assert counts["issued"] == sum(
        counts[name] for name in ("admitted", "dropped", "abandoned", "evaluated")
    )
    decisions = await read(harness, topics.GATE_DECISIONS)
    firsts = {one.group_id: one for one in reversed(decisions)}
    admitted = [
        m.episode_id
        for one in firsts.values()
        for m in one.members
        if m.outcome is GateOutcome.ADMIT
    ]
    assert len(admitted) == counts["admitted"] == len(learner.taken)
    trajectories = Counter(one.episode_id for one in await read(harness, topics.TRAJECTORIES))
    assert set(admitted) <= set(trajectories)
    assert learner.number >= 6
    assert wall_s < 60
