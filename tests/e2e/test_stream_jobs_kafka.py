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
from tests.support.fault_proxy import Api, FaultProxy, Harm

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

SOURCE = TaskSourceSettings(
    group_size=4, streams=(StreamSettings(environment="digits"),), evaluate_every=5
)
SCHEDULER = SchedulerSettings(
    batch=32, eta=1, group_size=4, max_concurrent=64, steps=6, drain_s=1.0
)

WRITTEN = (
    topics.TASKS, topics.EPISODES, topics.PAYLOADS, topics.TRAJECTORIES, topics.GATE_DECISIONS,
    topics.GATED,
)  # fmt: skip
"""What the stream jobs write and settle by reading back."""


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


async def run_jobs(harness: KafkaHarness, behind: KafkaHarness) -> FakeLearner:
    """Run from tasks to Closed: the stream jobs on one way to the broker, the writers that stand in
    for the rest on another; return the learner.
    """
    codec = Codec.local()
    learner = FakeLearner(partitions=PARTITIONS, context=context(harness, "learner-0"), batch=32)
    environment = FakeEnvironment(
        codec=codec, partitions=PARTITIONS, context=context(harness, "environment-0")
    )
    jobs = [
        task_source.run(context(behind, "task-source-0"), SOURCE),
        scheduler.run(context(behind, "scheduler-0"), SCHEDULER, codec=codec),
        *(
            assembler.run(context(behind, f"assembler-{i}"), AssemblerSettings(), codec=codec)
            for i in (0, 1)
        ),
        *(gate.run(context(behind, f"gate-{i}"), GateSettings(), codec=codec) for i in (0, 1)),
        learner.run(),
    ]
    outside = asyncio.create_task(environment.run())
    try:
        async with asyncio.timeout(100):
            await asyncio.gather(*jobs)
    finally:
        stop = environment.context.stop
        assert isinstance(stop, asyncio.Event)
        stop.set()
        await outside
    return learner


async def require_closed_accounts(harness: KafkaHarness, learner: FakeLearner) -> None:
    """Hold the end of the stream, the first decisions and what was learnt against one another."""
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
    assert len(admitted) == len(set(admitted)) == counts["admitted"]
    assert set(admitted) == set(learner.taken)
    trajectories = Counter(one.episode_id for one in await read(harness, topics.TRAJECTORIES))
    assert set(admitted) <= set(trajectories)
    assert learner.number >= 6


async def test_a_run_goes_from_tasks_to_closed_on_a_real_broker(harness: KafkaHarness) -> None:
    began = time.monotonic()
    learner = await run_jobs(harness, harness)
    wall_s = time.monotonic() - began
    await require_closed_accounts(harness, learner)
    assert wall_s < 60


@pytest.mark.timeout(180)
async def test_a_run_whose_acknowledgements_are_lost_counts_every_episode_once(
    harness: KafkaHarness,
) -> None:
    with FaultProxy(harness.bootstrap) as proxy:
        behind = KafkaHarness(proxy.bootstrap, harness.prefix, delivery_timeout_ms=2_000)
        faults = [
            proxy.inject(Api.PRODUCE, harm, containing=topic.name.encode())
            for topic in WRITTEN
            for harm in (Harm.CUT_AFTER, Harm.SWALLOW_ANSWER)
        ]
        learner = await run_jobs(harness, behind)
        struck = Counter(fault.harm for fault in faults if fault.hits)
        proxy.heal()
        await behind.close()
    await require_closed_accounts(harness, learner)
    assert struck[Harm.CUT_AFTER] == struck[Harm.SWALLOW_ANSWER] == len(WRITTEN), faults
