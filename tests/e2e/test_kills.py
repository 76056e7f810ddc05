"""Real worker processes that are killed, stopped and preempted: nothing is lost or done twice.

Two inference workers (scripted engine) and two environment workers over a real broker; the test is
their scheduler, so that it decides when a lease is over.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from environments import registry
from environments.counter.store import CounterStore
from infra.chaos.crash import VARIABLE, CrashAct, CrashOrder, fired, give_order
from infra.chaos.findings import Findings
from infra.run.folder import RunFolder, RunStart, make, write_atomically
from infra.run.processes import Part, Processes
from infra.run.worker import worker_id
from infra.settings import assemble
from infra.topic_admin import create_topics
from schemas.codec import Codec
from schemas.crash_points import CrashPoint
from schemas.enums import EpisodeEventKind, StopCause, TokenKind, ToolEventKind, WorkerStatus
from schemas.ids import EpisodeId, GroupId, WorkerId, episode_id
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.worker_state import WorkerState
from schemas.topics import (
    ALL,
    EPISODES,
    POLICIES,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    WORKERS,
    Record,
    Topic,
)
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support.records import within
from tests.support.task_records import RUN, task_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
SCHEDULER = WorkerId("scheduler-1")
NAMES = ("inference-0", "inference-1", "environment-0", "environment-1")
CALLS = 3
LIMIT_S = 90.0
R = TypeVar("R", bound=Record)
SHORT_LEASE_MS = 8_000
"""Long enough for a slow machine to reach the tool under it, short enough to wait for its end."""


STARTING = PolicyVersion(
    run_id=RUN, epoch=0, number=0, ordinal=0, digest="0" * 64, location="/nowhere", at_us=1,
    writer_id=WorkerId("learner-0"),
)  # fmt: skip


class Crew:
    """The processes of this module, in a run folder as `sluice run` makes it."""

    def __init__(self, platform: LocalPlatform, root: Path) -> None:
        self.prefix = f"kills-{uuid.uuid4().hex[:8]}"
        self.bootstrap = platform.bootstrap
        create_topics(self.bootstrap, prefix=self.prefix, partitions=PARTITIONS)
        folder = RunFolder(root=root)
        every = dict.fromkeys(range(PARTITIONS), 0)
        start = RunStart(
            run_id=RUN, bootstrap=self.bootstrap, registry="", prefix=self.prefix,
            starts={topic.name: every for topic in ALL}, topic_ids={},
        )  # fmt: skip
        make(folder, start, json.loads(settings_of(root).model_dump_json()))
        kept = {"ids": {topic.name: n for n, topic in enumerate(ALL, start=1)}, "writers": {}}
        write_atomically(folder.schemas, json.dumps(kept).encode())
        self.orders = root / "crash-points"
        self.orders.mkdir()
        self.counter = root / "counter.sqlite"
        self.ordinals = itertools.count()
        self.lines: list[str] = []
        self.processes = Processes(
            [Part(role=name[:-2], index=int(name[-1])) for name in NAMES],
            run_folder=root, logs=folder.logs, restarts_max=100,
            environment={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(self.orders)},
        )  # fmt: skip

    def watch(self) -> None:
        """Start again what died."""
        self.lines += self.processes.watch()

    def task(self) -> Task:
        """Return the next task: a call with an effect outside after each of its turns."""
        config = {"path": str(self.counter), "calls": CALLS, "delay_s": 0.2}
        payload = registry.load("counter").payload(config, 0, 0)
        return task_of("counter", payload, ordinal=next(self.ordinals), turn_tokens_max=64)


def settings_of(root: Path):  # type: ignore[no-untyped-def]  # the tree of a whole run
    tree = {
        "task_source": {"streams": [{"environment": "counter"}]},
        "inference": {
            "engine": "scripted",
            "drain_s": 2.0,
            "scripted": {
                "byte_tokenizer": True, "tokens_per_s": 40.0, "length_median_tokens": 40.0,
                "length_sigma": 0.0,
            },
        },
        "environment": {"worker_gone_s": 6.0, "turn_away_s": 1.0, "drain_s": 0.2},
    }  # fmt: skip
    places = {
        name: str(root) for name in ("learner.versions_dir", "learner.checkpoints_dir",
                                     "sink.tables_dir", "sink.address_file")
    }  # fmt: skip
    return assemble(tree, places=places)


class Stage:
    """The test's own doors: it leases as a scheduler does, and reads what the workers write."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.harness = KafkaHarness(crew.bootstrap, crew.prefix)
        self.producer = self.harness.producer()
        self.findings = Findings(RUN)
        self.tokens: dict[EpisodeId, list[TokenCommit]] = {}
        self.tools: dict[EpisodeId, list[ToolEvent]] = {}
        self.events: dict[EpisodeId, list[EpisodeEvent]] = {}
        self.states: dict[str, WorkerState] = {}
        every = dict.fromkeys(range(PARTITIONS), 0)
        self._reader = self.harness.consumers().reader(
            dict.fromkeys((EPISODES, TOKENS, TOOL_EVENTS, WORKERS), every)
        )

    async def send(self, topic: Topic[R], record: R, partition: int | None = None) -> None:
        await self.producer.send(topic, record, partition=partition, deadline=within(15_000))

    def event(self, kind: EpisodeEventKind, task: Task | None, **values: object) -> EpisodeEvent:
        return EpisodeEvent(
            run_id=RUN, kind=kind, scheduler_epoch=1, scheduler_id=SCHEDULER,
            episode_id=episode_id(RUN, task.ordinal, 0) if task else EpisodeId(""),
            group_id=task.group_id if task else GroupId(""), at_us=1, writer_id=SCHEDULER,
            task_frame=Codec.local().encode(TASKS, task) if task else b"", **values,  # type: ignore[arg-type]  # named fields
        )  # fmt: skip

    async def lease(
        self, task: Task, name: str, *, attempt: int = 1, lease_ms: int = 60_000
    ) -> EpisodeId:
        role, _, index = name.partition("-")
        event = self.event(
            EpisodeEventKind.LEASED, task, attempt=attempt, lease_ms=lease_ms,
            worker_id=worker_id(role, int(index), RUN),
        )  # fmt: skip
        await self.send(EPISODES, event)
        return event.episode_id

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self.crew.watch()
                for message in await self._reader.poll(records_max=1_000, timeout_s=0.05):
                    assert isinstance(message, Delivered)
                    self._take(message)

    def _take(self, message: Delivered[Record]) -> None:
        record = message.record
        match record:
            case TokenCommit():
                self.findings.take_token(message)  # type: ignore[arg-type]  # narrowed by the record
                self.tokens.setdefault(record.episode_id, []).append(record)
            case ToolEvent():
                self.tools.setdefault(record.episode_id, []).append(record)
            case EpisodeEvent():
                self.events.setdefault(record.episode_id, []).append(record)
            case WorkerState():
                self.states[record.worker_id] = record

    async def ready(self) -> None:
        """Wait until each worker's present process takes work."""
        await self.until(lambda: all(self._is_ready(name) for name in NAMES))

    def _is_ready(self, name: str) -> bool:
        role, _, index = name.partition("-")
        state = self.states.get(worker_id(role, int(index), RUN))
        pid = self.crew.processes.pid(name)
        return state is not None and state.status is WorkerStatus.READY and state.pid == pid

    def kinds(self, episode: EpisodeId, kind: EpisodeEventKind) -> list[EpisodeEvent]:
        return [event for event in self.events.get(episode, ()) if event.kind is kind]

    def ends(self, episode: EpisodeId) -> list[EpisodeEvent]:
        return self.kinds(episode, EpisodeEventKind.ENDED)

    def writers(self, episode: EpisodeId) -> set[str]:
        actions = [r for r in self.tokens.get(episode, ()) if r.kind is TokenKind.ACTION]
        return {record.incarnation for record in actions}

    def decoding_at(self, name: str, episodes: list[EpisodeId]) -> list[EpisodeId]:
        """Return those whose last record is sampled tokens of a turn that goes on there."""
        role, _, index = name.partition("-")
        wanted = worker_id(role, int(index), RUN)
        lasts = [(e, self.tokens[e][-1]) for e in episodes if self.tokens.get(e)]
        return [
            episode
            for episode, last in lasts
            if last.kind is TokenKind.ACTION and last.writer_id == wanted
            and last.finish_reason.value == "none"
        ]  # fmt: skip

    def executions(self) -> set[int]:
        return {run.executions for run in CounterStore(self.crew.counter).executions()}


@pytest.fixture(scope="module")
def crew(local_platform: LocalPlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    made = Crew(local_platform, tmp_path_factory.mktemp("kills"))
    made.processes.start()
    yield made
    for name in NAMES:
        made.processes.signal(name, signal.SIGCONT)
    made.processes.stop(budget_s=5.0)


@pytest.fixture
async def stage(crew: Crew) -> AsyncIterator[Stage]:
    made = Stage(crew)
    for partition in range(PARTITIONS):
        fence = made.event(EpisodeEventKind.SCHEDULER_FENCE, None)
        await made.send(EPISODES, fence, partition)
    await made.send(POLICIES, STARTING)
    await made.ready()
    yield made
    await made.harness.close()


async def test_an_inference_worker_killed_in_the_midst_of_turns_only_makes_them_take_longer(
    stage: Stage,
) -> None:
    episodes = [await stage.lease(stage.crew.task(), "environment-0") for _ in range(8)]
    await stage.until(lambda: stage.decoding_at("inference-0", episodes))
    hit = stage.decoding_at("inference-0", episodes)
    stage.crew.processes.signal("inference-0", signal.SIGKILL)
    await stage.until(lambda: all(stage.ends(episode) for episode in episodes))
    assert all(len(stage.writers(episode)) > 1 for episode in hit)
    for episode in episodes:
        [end] = stage.ends(episode)
        assert (end.attempt, end.stop_cause) == (1, StopCause.POLICY_STOP)
    assert stage.findings.decoded_twice == 0
    assert stage.executions() == {1}


async def test_a_call_whose_worker_died_before_its_result_is_not_made_a_second_time(
    stage: Stage,
) -> None:
    give_order(stage.crew.orders, "environment-0", CrashOrder(point=CrashPoint.AFTER_TOOL, nth=2))
    tasks = [stage.crew.task() for _ in range(3)]
    episodes = [await stage.lease(task, "environment-0") for task in tasks]
    await stage.until(lambda: fired(stage.crew.orders, "environment-0"))
    for task in tasks:
        await stage.lease(task, "environment-1", attempt=2)
    await stage.until(lambda: all(stage.ends(episode) for episode in episodes))
    for episode in episodes:
        assert [end.attempt for end in stage.ends(episode)] == [2]
        assert stage.ends(episode)[0].stop_cause is StopCause.POLICY_STOP
        results = [e for e in stage.tools[episode] if e.kind is ToolEventKind.RESULT]
        assert len({event.call_key for event in results}) == len(results) == CALLS
    assert stage.executions() == {1}
    assert stage.findings.decoded_twice == 0


async def test_a_preempted_worker_commits_records_the_pause_and_ends_well(stage: Stage) -> None:
    tasks = [stage.crew.task() for _ in range(4)]
    episodes = [await stage.lease(task, "environment-0") for task in tasks]
    await stage.until(
        lambda: any(stage.decoding_at(name, episodes) for name in ("inference-0", "inference-1"))
    )
    before = len(stage.crew.lines)
    stage.crew.processes.signal("environment-0", signal.SIGTERM)
    await stage.until(lambda: len(stage.crew.lines) > before)
    assert stage.crew.lines[before].startswith("environment-0 ended with code 0")
    await stage.until(
        lambda: all(stage.kinds(e, EpisodeEventKind.PAUSED) or stage.ends(e) for e in episodes)
    )
    paused = [e for e in episodes if stage.kinds(e, EpisodeEventKind.PAUSED)]
    assert paused
    for task, episode in zip(tasks, episodes, strict=True):
        if episode in paused:
            await stage.lease(task, "environment-1", attempt=2)
    stage.crew.processes.signal("inference-1", signal.SIGTERM)
    await stage.until(lambda: all(stage.ends(episode) for episode in episodes))
    assert any(line.startswith("inference-1 ended with code 0") for line in stage.crew.lines)
    assert {stage.ends(e)[0].attempt for e in paused} == {2}
    assert stage.findings.decoded_twice == 0
    assert stage.executions() == {1}


@pytest.mark.parametrize("point", [CrashPoint.IN_TOOL, None])
async def test_a_worker_stopped_for_longer_than_its_lease_does_nothing_that_counts(
    stage: Stage, point: CrashPoint | None
) -> None:
    name = "environment-0"
    if point is not None:
        order = CrashOrder(point=point, act=CrashAct.STOP)
        give_order(stage.crew.orders, name, order)
    task = stage.crew.task()
    episode = await stage.lease(task, name, lease_ms=SHORT_LEASE_MS)
    if point is None:
        await stage.until(lambda: stage.tokens.get(episode))
        stage.crew.processes.signal(name, signal.SIGSTOP)
    else:
        await stage.until(lambda: fired(stage.crew.orders, name))
    ran_out_at = time.monotonic() + SHORT_LEASE_MS / 1000
    await stage.lease(task, "environment-1", attempt=2)
    await stage.until(lambda: stage.ends(episode) and time.monotonic() > ran_out_at)
    known = len(stage.tools[episode])
    stage.crew.processes.signal(name, signal.SIGCONT)
    # The worker is back once it runs an episode of its own again.
    other = await stage.lease(stage.crew.task(), name)
    await stage.until(lambda: stage.ends(other))
    [end] = stage.ends(episode)
    assert (end.attempt, end.stop_cause) == (2, StopCause.POLICY_STOP)
    late = [event for event in stage.tools[episode][known:] if event.attempt == 1]
    assert [event.kind for event in late if event.kind is not ToolEventKind.RESULT] == []
    assert stage.executions() == {1}
    assert stage.findings.decoded_twice == 0
