"""Schedulers as processes of their own: whoever is killed, stopped or late, one issues and the
bound holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from infra.topic_admin import create_topics
from producers.presence import Presence
from schemas import topics
from schemas.enums import EpisodeEventKind, LearnerEventKind, Role, WorkerStatus
from schemas.ids import WorkerId
from schemas.ports import Context, Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.rules.episodes import SchedulerFences
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support import role_process
from tests.support.clocks import RealClock
from tests.support.fake_rollout import RUN, task
from tests.support.records import within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

BATCH, GROUP = 8, 2
GONE_S = 3.0
SETTINGS = {
    "batch": BATCH, "group_size": GROUP, "eta": 1, "max_concurrent": 400, "worker_gone_s": GONE_S,
    "snapshot_s": 0.5,
}  # fmt: skip


class Stage:
    """Two schedulers, and writers that stand in for everybody else."""

    def __init__(self, platform: LocalPlatform, folder: Path) -> None:
        self.prefix = f"scheduler-{uuid.uuid4().hex[:8]}"
        self.platform, self.folder = platform, folder
        create_topics(platform.bootstrap, prefix=self.prefix, partitions=PARTITIONS)
        self.harness = KafkaHarness(platform.bootstrap, self.prefix)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.producer = self.harness.producer()
        self.reader = self.harness.consumers().reader(
            {topics.EPISODES: dict.fromkeys(range(PARTITIONS), 0)}
        )
        self.fences = [SchedulerFences() for _ in range(PARTITIONS)]
        self.issued: Counter[str] = Counter()
        self.leased: Counter[tuple[str, int]] = Counter()
        self.void = 0
        self.steps = 0
        self._beats: Presence

    def start(self, index: int) -> None:
        self.processes[index] = role_process.start(
            "scheduler", bootstrap=self.platform.bootstrap, prefix=self.prefix, run=RUN,
            log=self.folder / f"scheduler-{index}.log", starts={}, settings=SETTINGS, index=index,
        )  # fmt: skip

    def kill(self, index: int) -> None:
        process = self.processes.pop(index)
        process.kill()
        process.wait()

    @property
    def leader(self) -> int:
        """Place of the scheduler whose fence is current in partition 0."""
        return int(self.fences[0].current[1].partition(":")[0].rpartition("-")[2] or -1)

    @property
    def epoch(self) -> int:
        return self.fences[0].current[0]

    async def write(self, topic: topics.Topic[Any], record: Any) -> None:
        await self.producer.send(topic, record, deadline=within(15_000))

    async def open(self) -> None:
        for ordinal in range(80):
            await self.write(topics.TASKS, task(ordinal, size=GROUP))
        context = Context(
            run_id=RUN, worker_id=WorkerId("environment-0"), incarnation="a",
            producer=self.producer, consumers=self.harness.consumers(), clock=RealClock(),
            starts={}, secret=b"s", stop=asyncio.Event(),
        )  # fmt: skip
        self._beats = Presence(context, Role.ENVIRONMENT, "", 400, heartbeat_s=0.5)
        await self._beats.announce(WorkerStatus.READY)
        for kind in (LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED):
            await self.write(topics.LEARNER_STEPS, learner(kind, 0))

    async def step(self) -> None:
        """Let the learner take a step, which admits one batch more."""
        self.steps += 1
        await self.write(topics.LEARNER_STEPS, learner(LearnerEventKind.STEP, self.steps))

    async def read(self) -> None:
        for message in await self.reader.poll(records_max=1_000, timeout_s=0.05):
            assert isinstance(message, Delivered)
            event: EpisodeEvent = message.record
            if not self.fences[message.partition].take(event):
                self.void += 1
            elif event.kind is EpisodeEventKind.ISSUED:
                self.issued[event.episode_id] += 1
            elif event.kind is EpisodeEventKind.LEASED:
                self.leased[event.episode_id, event.attempt] += 1

    async def until(self, what: Callable[[], bool], *, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not what():
                await self.read()

    async def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        await self._beats.announce(WorkerStatus.STOPPED)
        await self.reader.close()
        await self.harness.close()

    def has_leased(self, count: int) -> bool:
        return len(self.leased) == count

    def is_followed(self, epoch: int) -> bool:
        """Whether a newer scheduler than this epoch's has issued all that the bound allows."""
        return self.epoch > epoch and len(self.issued) == self.bound

    @property
    def bound(self) -> int:
        """Episodes that F6 allows to be held: none was ever settled."""
        return (1 + self.steps + 1) * BATCH


def learner(kind: LearnerEventKind, number: int) -> LearnerEvent:
    return LearnerEvent(
        run_id=RUN, kind=kind, learner_id=WorkerId("learner-0"), epoch=1, number=number,
        ordinal=number, at_us=1, writer_id=WorkerId("learner-0"),
    )  # fmt: skip


@pytest.fixture
async def stage(local_platform: LocalPlatform, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(local_platform, tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_killed_leaders_are_followed_by_the_standby_and_the_bound_holds(stage: Stage) -> None:
    stage.start(0)
    stage.start(1)
    for _ in range(3):
        bound = stage.bound
        await stage.until(partial(stage.has_leased, bound))
        leader, epoch = stage.leader, stage.epoch
        stage.kill(leader)
        await stage.step()
        await stage.until(partial(stage.is_followed, epoch), seconds=45)
        assert stage.leader != leader
        stage.start(leader)
    await stage.until(lambda: len(stage.leased) == stage.bound)
    assert set(stage.issued.values()) == set(stage.leased.values()) == {1}
    assert max(attempt for _, attempt in stage.leased) == 1


async def test_a_leader_that_was_stopped_past_its_silence_writes_nothing_that_counts(
    stage: Stage,
) -> None:
    stage.start(0)
    await stage.until(lambda: len(stage.leased) == stage.bound)
    stage.start(1)
    old = stage.processes[0]
    # The standby has to have seen the leader alive before it can miss it.
    await stage.until(lambda: "stands by" in log(stage, 1) or old.poll() is not None, seconds=30)
    os.kill(old.pid, signal.SIGSTOP)
    await stage.step()
    await stage.until(lambda: stage.epoch == 2 and len(stage.leased) == stage.bound, seconds=45)
    await stage.step()
    os.kill(old.pid, signal.SIGCONT)
    await stage.until(lambda: len(stage.leased) == stage.bound, seconds=45)
    await stage.until(lambda: old.poll() is not None, seconds=45)
    assert old.returncode not in (0, None)
    assert "was superseded by (2" in log(stage, 0)
    assert stage.leader == 1
    assert set(stage.issued.values()) == set(stage.leased.values()) == {1}
    assert len(stage.issued) == stage.bound


def log(stage: Stage, index: int) -> str:
    path = stage.folder / f"scheduler-{index}.log"
    return path.read_text() if path.exists() else ""
