"""The lag and age job on a real broker: faust reads the run, points come out, a stop is quick."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.topic_admin import create_topics
from schemas.enums import LearnerEventKind
from schemas.ids import EpisodeId, GroupId, RunId, TaskId, WorkerId
from schemas.ports import Delivered, LogReader
from schemas.records.learner_event import LearnerEvent
from schemas.records.metric_point import MetricPoint
from schemas.records.parts import TrainedMember
from schemas.records.trajectory import Trajectory
from schemas.topics import (
    DEAD_LETTERS,
    GATE_DECISIONS,
    LEARNER_STEPS,
    METRICS,
    POLICIES,
    TRAJECTORIES,
    WORKERS,
    Topic,
)
from tests.conftest import LocalPlatform
from tests.contract.conftest import KafkaHarness
from tests.support import role_process
from tests.support.records import within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PARTITIONS = 4
RUN = RunId("run-1")


@pytest.fixture
async def harness(local_platform: LocalPlatform) -> AsyncIterator[KafkaHarness]:
    """Topics of this test alone."""
    prefix = f"lag-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    harness = KafkaHarness(local_platform.bootstrap, prefix)
    yield harness
    await harness.close()


def trajectory(number: int) -> Trajectory:
    return Trajectory(
        run_id=RUN,
        episode_id=EpisodeId(f"{RUN}.{number}.0"),
        group_id=GroupId(f"{RUN}.{number}.g"),
        task_id=TaskId(f"{RUN}.{number}"),
        environment="arithmetic",
        at_us=1,
        writer_id=WorkerId("assembler-0"),
    )


def learner_event(kind: LearnerEventKind, **fields: Any) -> LearnerEvent:
    return LearnerEvent(
        run_id=RUN,
        kind=kind,
        epoch=1,
        learner_id=WorkerId("learner-0"),
        at_us=1,
        writer_id=WorkerId("learner-0"),
        **fields,
    )


class Job:
    """The process under test and what it writes."""

    def __init__(self, harness: KafkaHarness, folder: Path) -> None:
        self.log = folder / "lag_age.log"
        self.harness = harness
        self.points: list[MetricPoint] = []
        self.reader: LogReader | None = None

    def start(self, starts: dict[str, dict[int, int]]) -> None:
        self.process = role_process.start(
            "lag_age",
            bootstrap=self.harness.bootstrap,
            prefix=self.harness.prefix,
            run=RUN,
            log=self.log,
            starts=starts,
            settings={"emit_interval_s": 0.5, "session_timeout_s": 6.0},
        )

    async def await_point(self, name: str, value: float | None = None, count: int = 1) -> None:
        """Wait until `count` points of a name, and of a value if given, were written."""
        if self.reader is None:
            self.reader = self.harness.consumers().reader({METRICS: dict.fromkeys(range(4), 0)})
        until = time.monotonic() + 60
        while sum(p.name == name and value in (None, p.value) for p in self.points) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, (name, value, self.log.read_text(), self.points[-8:])
            for message in await self.reader.poll(records_max=500, timeout_s=0.2):
                if isinstance(message, Delivered):
                    self.points.append(message.record)

    def values(self, name: str) -> list[float]:
        return [point.value for point in self.points if point.name == name]


@pytest.fixture
def job(harness: KafkaHarness, tmp_path: Path) -> Iterator[Job]:
    """A job that the test starts."""
    one = Job(harness, tmp_path)
    yield one
    process = getattr(one, "process", None)
    if process is not None and process.poll() is None:
        process.kill()
        process.wait(10)


async def read_from(harness: KafkaHarness, *topics: Topic[Any]) -> dict[str, dict[int, int]]:
    return {topic.name: dict(await harness.consumers().ends(topic)) for topic in topics}


async def test_age_and_lag_are_told_while_trajectories_wait_and_when_they_are_trained(
    harness: KafkaHarness, job: Job
) -> None:
    producer = harness.producer()
    # What other runs wrote before this one began is never read: a dead letter would say so.
    for partition in range(PARTITIONS):
        harness.append_raw(TRAJECTORIES, partition, b"of an older run")
    starts = await read_from(harness, TRAJECTORIES, GATE_DECISIONS, LEARNER_STEPS, POLICIES)
    before = await harness.consumers().ends(DEAD_LETTERS)
    deadline = within(20_000)
    for number in range(3):
        await producer.send(TRAJECTORIES, trajectory(number), deadline=deadline)
    for kind in (LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED):
        await producer.send(LEARNER_STEPS, learner_event(kind), deadline=deadline)
    job.start(starts)
    await job.await_point("waiting_trajectories", 3.0)
    await job.await_point("waiting_buffer_age_p99_s")
    await job.await_point("waiting_policy_lag_max_steps", 0.0)
    # In the middle of its work it meets what nobody can read.
    junk = {TRAJECTORIES.name: b"no trajectory", LEARNER_STEPS.name: b"no step"}
    for topic in (TRAJECTORIES, LEARNER_STEPS):
        harness.append_raw(topic, 0, junk[topic.name])

    trained = tuple(
        TrainedMember(episode_id=EpisodeId(f"{RUN}.{number}.0"), partition=0, offset=number)
        for number in range(2)
    )
    step = learner_event(LearnerEventKind.STEP, number=1, ordinal=1, trained=trained)
    await producer.send(LEARNER_STEPS, step, deadline=within(9_000))
    await job.await_point("consumed_buffer_age_s", count=2)
    await job.await_point("consumed_policy_lag_steps", 0.0, count=2)
    await job.await_point("waiting_trajectories", 1.0)
    await job.await_point("waiting_policy_lag_max_steps", 1.0)
    assert all(0 <= age < 120 for age in job.values("consumed_buffer_age_s"))
    assert len(job.values("consumed_buffer_age_s")) == 2

    letters = harness.consumers().reader({DEAD_LETTERS: before})
    found: dict[str, bytes] = {}
    until = time.monotonic() + 20
    while len(found) < len(junk) and time.monotonic() < until:
        for message in await letters.poll(records_max=10, timeout_s=1.0):
            assert isinstance(message, Delivered)
            assert message.record.consumer == "lag_age"
            found[message.record.origin_topic] = message.record.raw
    assert found == junk
    await letters.close()

    states = {WORKERS: dict.fromkeys(range(PARTITIONS), 0)}
    reader = harness.consumers().reader(states)
    await reader.poll(records_max=10, timeout_s=5.0)
    rss_mb = int(Path(f"/proc/{job.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6
    assert rss_mb < 150, rss_mb
    began = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(20) == 0, job.log.read_text()
    assert time.monotonic() - began < 10
    assert "Traceback" not in job.log.read_text()
