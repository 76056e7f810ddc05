"""A whole run on the memory bus: every role but the learner is the real one, with the scripted
engine; nothing but HTTP on loopback leaves the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from environments import worker as environment_worker
from environments.settings import EnvironmentSettings
from inference import refresh
from inference import worker as inference_worker
from inference.refresh_settings import RefreshSettings
from schemas import topics
from schemas.enums import (
    AbandonReason,
    ControlKind,
    EpisodeEventKind,
    GateOutcome,
    Role,
    VerdictCode,
)
from schemas.ports import Context, Producer
from stream_jobs import assembler, gate, scheduler, task_source
from stream_jobs.settings import (
    AssemblerSettings,
    GateSettings,
    SchedulerSettings,
    StreamSettings,
    TaskSourceSettings,
)
from tests.support.fake_rollout import FakeLearner, context_on
from tests.support.inference_stand import inference_settings
from tests.support.memory_bus import MemoryBus, only
from tests.support.traced_run import require_whole_traces
from verifier import worker as verifier_worker
from verifier.settings import VerifierSettings

pytestmark = pytest.mark.timeout(90)
STEPS = 6
SOURCE = TaskSourceSettings(
    group_size=4,
    streams=(
        StreamSettings(environment="digits", weight=3),
        StreamSettings(environment="calculator", weight=1),
    ),
    look_ahead_tasks=16,
    evaluate_every=5,
)
SCHEDULER = SchedulerSettings(
    batch=16, eta=1, group_size=4, max_concurrent=32, steps=STEPS, drain_s=2.0
)

READS = {
    Role.TASK_SOURCE: (topics.TASKS, topics.EPISODES, topics.CONTROL),
    Role.SCHEDULER: (
        topics.TASKS, topics.EPISODES, topics.TRAJECTORIES, topics.GATE_DECISIONS,
        topics.LEARNER_STEPS, topics.WORKERS, topics.CONTROL,
    ),
    Role.ENVIRONMENT: (topics.EPISODES, topics.WORKERS),
    Role.INFERENCE: (topics.POLICIES, topics.REFRESHES, topics.LEARNER_STEPS),
    Role.REFRESH: (topics.POLICIES, topics.REFRESHES, topics.LEARNER_STEPS, topics.WORKERS),
    Role.VERIFIER: (topics.VERIFY_REQUESTS,),
    Role.ASSEMBLER: (
        topics.EPISODES, topics.TOKENS, topics.TOOL_EVENTS, topics.VERDICTS, topics.TRAJECTORIES,
        topics.POLICIES,
    ),
    Role.GATE: (
        topics.EPISODES, topics.TRAJECTORIES, topics.GATE_DECISIONS, topics.POLICIES,
        topics.LEARNER_STEPS,
    ),
}  # fmt: skip
"""What each role of this file reads from the run's start on; recovery reads are tested apart."""


class SlowTokens:
    """A producer that hears of its commits only while `flows` is set: a broker in trouble."""

    def __init__(self, inner: Producer, flows: asyncio.Event) -> None:
        self._inner, self._flows = inner, flows

    def offer(self, topic: topics.Topic[Any], record: Any, **place: Any) -> Any:
        pending = self._inner.offer(topic, record, **place)
        return asyncio.ensure_future(self._late(pending)) if topic is topics.TOKENS else pending

    async def _late(self, pending: Awaitable[Any]) -> Any:
        outcome = await pending
        await self._flows.wait()
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def run_to_the_end(bus: MemoryBus, *, flows: asyncio.Event | None = None) -> FakeLearner:
    """Run every role together until the budget is reached; fail when one of them dies. Commits are
    acknowledged only while `flows` is set.
    """
    codec = bus.codec
    contexts: list[Context] = []

    def on(worker: str) -> Context:
        contexts.append(context_on(bus, worker))
        return contexts[-1]

    def slow(worker: str) -> Context:
        context = on(worker)
        if flows is None:
            return context
        return replace(context, producer=SlowTokens(context.producer, flows))

    learner = FakeLearner(partitions=4, context=on("learner-0"), batch=16)
    serving = [
        inference_worker.run(slow("inference-0"), inference_settings()),
        inference_worker.run(slow("inference-1"), inference_settings()),
        refresh.run(on("refresh-0"), RefreshSettings()),
        environment_worker.run(on("environment-0"), EnvironmentSettings(drain_s=1.0), codec=codec),
        verifier_worker.run(on("verifier-0"), VerifierSettings(), codec=codec),
    ]
    ending = [
        task_source.run(on("task-source-0"), SOURCE),
        scheduler.run(on("scheduler-0"), SCHEDULER, codec=codec),
        assembler.run(on("assembler-0"), AssemblerSettings(), codec=codec),
        gate.run(on("gate-0"), GateSettings(), codec=codec),
        learner.run(),
    ]
    servers = [asyncio.create_task(one) for one in serving]
    try:
        async with asyncio.timeout(75):
            await asyncio.gather(*ending)
    finally:
        for context in contexts:
            assert isinstance(context.stop, asyncio.Event)
            context.stop.set()
        await asyncio.gather(*servers)
    return learner


def require_closed_accounts(bus: MemoryBus) -> None:
    """Hold the counts of the end against one another."""
    end = only(e for e in bus.records(topics.CONTROL) if e.kind is ControlKind.END_OF_STREAM)
    counts = end.counts
    assert counts["issued"] == sum(
        counts[name] for name in ("admitted", "dropped", "abandoned", "evaluated")
    )


async def test_damaged_records_on_every_topic_stop_no_role_and_become_dead_letters() -> None:
    bus = MemoryBus(partitions=4)

    def spoil() -> None:
        for topic in topics.ALL:
            for partition in range(bus.partitions):
                for raw in (b"", b"no frame", b"\x00\x00\x0f\x00\x00unknown", bytes(5), bytes(900)):
                    bus.append_raw(topic, partition=partition, raw=raw)

    async def spoil_again() -> None:
        # In the middle of everything: roles hold state that damage must not touch.
        while not bus.records(topics.GATE_DECISIONS):
            await asyncio.sleep(0.02)
        spoil()

    spoil()
    spoiling = asyncio.create_task(spoil_again())
    learner = await run_to_the_end(bus)
    await spoiling
    require_closed_accounts(bus)
    assert learner.number >= STEPS
    trajectories = bus.records(topics.TRAJECTORIES)
    assert max(Counter(one.episode_id for one in trajectories).values()) == 1
    mourned = {(one.consumer, one.origin_topic) for one in bus.records(topics.DEAD_LETTERS)}
    assert mourned >= {(role.value, one.name) for role, ones in READS.items() for one in ones}


async def test_a_broker_that_acknowledges_no_token_is_felt_up_to_the_scheduler() -> None:
    bus, flows = MemoryBus(partitions=4), asyncio.Event()
    flows.set()
    seen: dict[str, int] = {}

    def count(*kinds: EpisodeEventKind) -> int:
        return sum(event.kind in kinds for event in bus.records(topics.EPISODES))

    async def hold() -> None:
        while len(bus.records(topics.GATE_DECISIONS)) < 4:
            await asyncio.sleep(0.01)
        flows.clear()
        # Turns wait for their commits, episodes for their turns, places for their episodes.
        before = -1
        while before != (now := count(EpisodeEventKind.ISSUED, EpisodeEventKind.LEASED)):
            before = now
            await asyncio.sleep(0.5)
        seen["issued"] = count(EpisodeEventKind.ISSUED)
        seen["over"] = count(EpisodeEventKind.ENDED, EpisodeEventKind.ABANDONED)
        seen["abandoned"] = count(EpisodeEventKind.ABANDONED)
        seen["offered"] = sum(task.group_size for task in bus.records(topics.TASKS))
        flows.set()

    holding = asyncio.create_task(hold())
    learner = await run_to_the_end(bus, flows=flows)
    await holding
    assert 0 < seen["issued"] - seen["over"] <= SCHEDULER.max_concurrent
    assert seen["offered"] > seen["issued"], "tasks were there, and none of them was begun"
    assert seen["abandoned"] == 0
    require_closed_accounts(bus)
    assert learner.number >= STEPS
    assert bus.records(topics.DEAD_LETTERS) == []
    assert {
        event.abandon_reason
        for event in bus.records(topics.EPISODES)
        if event.kind is EpisodeEventKind.ABANDONED
    } <= {AbandonReason.RUN_ENDED}


async def test_every_role_together_reaches_the_budget_and_refreshes_the_policy() -> None:
    bus = MemoryBus(partitions=4)
    learner = await run_to_the_end(bus)
    require_closed_accounts(bus)
    assert learner.number >= STEPS
    trajectories = bus.records(topics.TRAJECTORIES)
    assert max(Counter(one.episode_id for one in trajectories).values()) == 1
    assert {one.environment for one in trajectories} == {"digits", "calculator"}
    trained = {span.number for one in trajectories for span in one.spans}
    assert len(trained) >= 2, "the served version followed"
    drops = Counter(
        member.reason
        for decision in bus.records(topics.GATE_DECISIONS)
        if not decision.draining
        for member in decision.members
        if member.outcome is GateOutcome.DROP
    )
    assert not drops, drops
    codes = {one.code for one in bus.records(topics.VERDICTS)}
    assert codes <= {VerdictCode.CORRECT, VerdictCode.WRONG_ANSWER, VerdictCode.INVALID_FORMAT}
    assert bus.records(topics.DEAD_LETTERS) == []
    require_whole_traces(bus, trajectories[0].run_id)
