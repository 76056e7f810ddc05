"""Environment workers, a gateway with the scripted engine and a verifier on a real broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from environments import registry
from environments import worker as environment_worker
from environments.counter.store import CounterStore
from environments.settings import EnvironmentSettings
from infra.topic_admin import create_topics
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import EpisodeEventKind, Role, StopCause, VerdictCode, WorkerStatus
from schemas.ids import EpisodeId, GroupId, WorkerId, episode_id
from schemas.ports import Context, Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.records.verifier_result import VerifierResult
from schemas.records.worker_state import WorkerState
from schemas.topics import EPISODES, TASKS, VERDICTS, WORKERS, Record, Topic
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support.clocks import RealClock
from tests.support.inference_stand import inference_settings, serve
from tests.support.task_records import RUN, task_of
from verifier import worker as verifier_worker
from verifier.settings import VerifierSettings

pytestmark = pytest.mark.kafka
SCHEDULER = WorkerId("scheduler-1")
Running = Callable[[Context], Coroutine[None, None, None]]
R = TypeVar("R", bound=Record)


class Stage:
    """Topics of one test, the scheduler's hand, and what was read of `episodes` and `verdicts`."""

    def __init__(self, harness: KafkaHarness) -> None:
        self.harness = harness
        self.producer = harness.producer()
        self.ended: dict[EpisodeId, list[EpisodeEvent]] = {}
        self.verdicts: dict[EpisodeId, VerifierResult] = {}
        self.ready: set[str] = set()
        every = dict.fromkeys(range(PARTITIONS), 0)
        self._reader = harness.consumers().reader(
            {EPISODES: every, VERDICTS: every, WORKERS: every}
        )

    def context(self, worker: str) -> Context:
        return Context(
            run_id=RUN, worker_id=WorkerId(worker), incarnation=f"{worker}-a",
            producer=self.harness.producer(), consumers=self.harness.consumers(),
            clock=RealClock(), starts={}, secret=b"secret", stop=asyncio.Event(),
        )  # fmt: skip

    async def send(self, topic: Topic[R], record: R, partition: int | None = None) -> None:
        now_ms = RealClock().monotonic_ms()
        deadline = Deadline.after(10_000, now_ms=now_ms, waiting_for="a record of the test")
        await self.producer.send(topic, record, partition=partition, deadline=deadline)

    def event(
        self, kind: EpisodeEventKind, task: Task | None, attempt: int, worker: str
    ) -> EpisodeEvent:
        return EpisodeEvent(
            run_id=RUN, kind=kind, attempt=attempt, scheduler_epoch=1, scheduler_id=SCHEDULER,
            episode_id=episode_id(RUN, task.ordinal, 0) if task else EpisodeId(""),
            group_id=task.group_id if task else GroupId(""), lease_ms=30_000,
            worker_id=WorkerId(worker), at_us=1, writer_id=SCHEDULER,
            task_frame=Codec.local().encode(TASKS, task) if task else b"",
        )  # fmt: skip

    async def lease(self, task: Task, worker: str, attempt: int = 1) -> EpisodeId:
        event = self.event(EpisodeEventKind.LEASED, task, attempt, worker)
        await self.send(EPISODES, event)
        return EpisodeId(event.episode_id)

    async def fence(self) -> None:
        for partition in range(PARTITIONS):
            fence = self.event(EpisodeEventKind.SCHEDULER_FENCE, None, 0, "")
            await self.send(EPISODES, fence, partition)

    async def read_until(self, holds: Callable[[], bool], seconds: float = 40.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                for message in await self._reader.poll(records_max=500, timeout_s=0.1):
                    assert isinstance(message, Delivered)
                    record = message.record
                    match record:
                        case EpisodeEvent(kind=EpisodeEventKind.ENDED):
                            self.ended.setdefault(record.episode_id, []).append(record)
                        case VerifierResult():
                            self.verdicts.setdefault(record.episode_id, record)
                        case WorkerState(status=WorkerStatus.READY):
                            self.ready.add(record.worker_id)

    @asynccontextmanager
    async def inference(self, name: str) -> AsyncIterator[None]:
        context = self.context(name)
        async with serve(context, inference_settings()) as stand:
            state = WorkerState(
                run_id=RUN, worker_id=WorkerId(name), role=Role.INFERENCE, address=stand.address,
                incarnation=context.incarnation, status=WorkerStatus.READY, at_us=1,
                writer_id=WorkerId(name),
            )  # fmt: skip
            await self.send(WORKERS, state)
            yield

    @asynccontextmanager
    async def role(self, name: str, running: Running) -> AsyncIterator[None]:
        context = self.context(name)
        task = asyncio.create_task(running(context))
        await self.read_until(lambda: name in self.ready or task.done())
        try:
            yield
        finally:
            context.stop.set()  # type: ignore[attr-defined]
            async with asyncio.timeout(20):
                await task


async def environment(context: Context) -> None:
    settings = EnvironmentSettings(worker_gone_s=60.0, drain_s=1.0, back_off_ms=20)
    await environment_worker.run(context, settings, codec=Codec.local())


async def verifier(context: Context) -> None:
    await verifier_worker.run(context, VerifierSettings(), codec=Codec.local())


@pytest.fixture
async def stage(local_platform: LocalPlatform) -> AsyncIterator[Stage]:
    """Topics of this test alone."""
    prefix = f"environment-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    harness = KafkaHarness(local_platform.bootstrap, prefix)
    yield Stage(harness)
    await harness.close()


async def test_leased_episodes_are_run_and_judged_and_their_tools_run_once(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "c.sqlite"
    payload = registry.load("counter").payload({"path": str(path)}, 0, 0)
    counters = [task_of("counter", payload, ordinal=n, turn_tokens_max=16) for n in range(20)]
    digits = [task_of("digits", ordinal=100 + n) for n in range(60)]
    await stage.fence()
    async with (
        stage.inference("inference-1"),
        stage.role("verifier-1", verifier),
        stage.role("environment-1", environment),
    ):
        episodes = [await stage.lease(task, "environment-1") for task in counters + digits]
        await stage.read_until(lambda: len(stage.verdicts) == len(episodes) == len(stage.ended))
    assert {e.stop_cause for events in stage.ended.values() for e in events} <= {
        StopCause.POLICY_STOP, StopCause.BUDGET_TRUNCATION,
    }  # fmt: skip
    counted = [stage.verdicts[e] for e in episodes[: len(counters)]]
    assert {result.code for result in counted} == {VerdictCode.CORRECT}
    assert all(result.reward is not None for result in stage.verdicts.values())
    assert {run.executions for run in CounterStore(path).executions()} == {1}


async def test_a_later_attempt_on_another_worker_goes_on_and_runs_no_tool_twice(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "c.sqlite"
    payload = registry.load("counter").payload({"path": str(path), "delay_s": 0.2}, 0, 0)
    tasks = [task_of("counter", payload, ordinal=n, turn_tokens_max=16) for n in range(8)]
    await stage.fence()
    async with (
        stage.inference("inference-1"),
        stage.role("environment-1", environment),
        stage.role("environment-2", environment),
    ):
        for task in tasks:
            await stage.lease(task, "environment-1")
        await asyncio.sleep(0.35)
        episodes = [await stage.lease(task, "environment-2", attempt=2) for task in tasks]
        await stage.read_until(lambda: len(stage.ended) == len(episodes))
    ends = [stage.ended[episode][-1] for episode in episodes]
    assert {event.stop_cause for event in ends} == {StopCause.POLICY_STOP}
    assert {event.attempt for event in ends} <= {1, 2}
    runs = CounterStore(path).executions()
    assert {run.executions for run in runs} == {1}
    assert len(runs) == 3 * len(tasks)
