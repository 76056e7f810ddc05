"""The task source on the memory bus."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from schemas import topics
from schemas.enums import ControlKind, Purpose
from schemas.errors import SettingsError
from schemas.records.task import Task
from stream_jobs import task_source
from stream_jobs.settings import StreamSettings, TaskSourceSettings
from tests.support.fake_rollout import context_on, until
from tests.support.memory_bus import Fault, MemoryBus
from tests.unit.stream_jobs.scheduling import author
from tests.unit.stream_jobs.trajectories import issued

SETTINGS = TaskSourceSettings(
    seed=3,
    group_size=2,
    streams=(
        StreamSettings(environment="digits", weight=3),
        StreamSettings(environment="counter", name="count", turns_max=4, temperature=0.5),
    ),
    look_ahead_tasks=8,
    evaluate_every=5,
    poll_s=0.01,
)


def a_bus() -> MemoryBus:
    bus = MemoryBus(partitions=3)
    for partition in range(3):
        bus.append(topics.EPISODES, author(1).fence(at_us=1), partition=partition)
    return bus


def offered(bus: MemoryBus) -> list[Task]:
    return sorted(bus.records(topics.TASKS), key=lambda task: task.ordinal)


def content(task: Task) -> Task:
    return replace(task, at_us=0)


async def test_it_offers_a_bounded_way_ahead_and_goes_on_as_tasks_are_issued() -> None:
    bus = a_bus()
    job = asyncio.create_task(task_source.run(context_on(bus, "task-source-0"), SETTINGS))
    await until(lambda: len(offered(bus)) == 8)
    await asyncio.sleep(0.03)
    assert [task.ordinal for task in offered(bus)] == list(range(8))
    for ordinal in (0, 3):
        bus.append(topics.EPISODES, issued(ordinal))
    await until(lambda: len(offered(bus)) == 10)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


async def test_a_task_says_what_its_environment_and_its_stream_ask_for() -> None:
    bus = a_bus()
    await until(
        lambda: len(offered(bus)) == 8,
        task_source.run(context_on(bus, "task-source-0"), SETTINGS),
    )
    tasks = offered(bus)
    assert [task.purpose is Purpose.EVALUATE for task in tasks] == [i == 4 for i in range(8)]
    assert {task.group_size for task in tasks if task.purpose is Purpose.TRAIN} == {2}
    assert tasks[4].group_size == 1
    count = next(task for task in tasks if task.environment == "counter")
    assert (count.stream, count.turns_max, count.temperature) == ("count", 4, 0.5)
    assert len(count.environment_digest) == len(count.verifier_digest) == 64


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST])
async def test_a_restart_and_an_unknown_outcome_change_no_task(fault: Fault) -> None:
    plain = a_bus()
    await until(
        lambda: len(offered(plain)) == 8,
        task_source.run(context_on(plain, "task-source-0"), SETTINGS),
    )
    bus = a_bus()
    bus.faults.next(fault, topic=topics.TASKS, count=3)
    await until(
        lambda: len({task.ordinal for task in offered(bus)}) >= 8,
        task_source.run(context_on(bus, "task-source-0"), SETTINGS),
    )
    await until(
        lambda: {task.ordinal for task in offered(bus)} == set(range(8)),
        task_source.run(context_on(bus, "task-source-0"), SETTINGS),
    )
    expected = {task.ordinal: content(task) for task in offered(plain)}
    assert all(content(task) == expected[task.ordinal] for task in offered(bus))


async def test_it_ends_when_the_run_drains() -> None:
    bus = a_bus()
    by = author(1)
    bus.append(topics.CONTROL, by.control(ControlKind.SCHEDULER_FENCE, at_us=1))
    bus.append(topics.CONTROL, by.control(ControlKind.DRAINING, at_us=1))
    async with asyncio.timeout(5):
        await task_source.run(context_on(bus, "task-source-0"), SETTINGS)
    assert offered(bus) == []


async def test_an_unknown_environment_is_refused_with_the_nearest_name() -> None:
    settings = TaskSourceSettings(streams=(StreamSettings(environment="digit"),))
    with pytest.raises(SettingsError, match="did you mean 'digits'"):
        await task_source.run(context_on(a_bus(), "task-source-0"), settings)


def test_two_components_of_one_name_are_refused() -> None:
    twice = (StreamSettings(environment="digits"), StreamSettings(environment="digits"))
    with pytest.raises(ValidationError, match="share a name"):
        TaskSourceSettings(streams=twice)
