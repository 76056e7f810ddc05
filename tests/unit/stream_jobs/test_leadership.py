"""Of two schedulers only one issues, whoever is slow, killed or late."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from producers.presence import Presence
from schemas import topics
from schemas.enums import EpisodeEventKind, Role, WorkerStatus
from schemas.errors import FencedError, TransientError
from schemas.ids import WorkerId
from schemas.ports import Context
from schemas.records.episode_event import EpisodeEvent
from schemas.records.worker_state import WorkerState
from schemas.rules.episodes import SchedulerFences
from stream_jobs.leadership import Leadership
from stream_jobs.reading import RunLog
from stream_jobs.scheduler import RolloutScheduler
from stream_jobs.settings import SchedulerSettings
from tests.support.clocks import HeldClock
from tests.support.fake_rollout import RUN, FakeEnvironment, context_on, policy, task, until
from tests.support.memory_bus import Fault, MemoryBus
from tests.unit.stream_jobs.scheduling import World

SETTINGS = SchedulerSettings(
    batch=8, eta=1, group_size=2, max_concurrent=64, poll_s=0.005, worker_gone_s=0.3
)


async def a_bus(tasks: int = 20) -> tuple[MemoryBus, Presence]:
    bus = MemoryBus(partitions=3)
    bus.append(topics.POLICIES, policy())
    for ordinal in range(tasks):
        bus.append(topics.TASKS, task(ordinal))
    environment = Presence(
        context_on(bus, "environment-0"), Role.ENVIRONMENT, "", 64, heartbeat_s=0.05
    )
    await environment.announce(WorkerStatus.READY)
    return bus, environment


def scheduler(
    bus: MemoryBus, context: Context, settings: SchedulerSettings = SETTINGS
) -> RolloutScheduler:
    return RolloutScheduler(context, settings, bus.codec)


def counting(bus: MemoryBus) -> list[EpisodeEvent]:
    """Return the events that count as far as their scheduler goes."""
    found: list[EpisodeEvent] = []
    for partition in range(bus.partitions):
        fences = SchedulerFences()
        found += [e for e in bus.records(topics.EPISODES, partition) if fences.take(e)]
    return found


def issued(bus: MemoryBus) -> Counter[str]:
    return Counter(e.episode_id for e in counting(bus) if e.kind is EpisodeEventKind.ISSUED)


def leased(bus: MemoryBus) -> Counter[tuple[str, int]]:
    events = (e for e in counting(bus) if e.kind is EpisodeEventKind.LEASED)
    return Counter((e.episode_id, e.attempt) for e in events)


async def test_of_two_that_start_together_one_leads_and_the_bound_holds() -> None:
    bus, environment = await a_bus()
    # Nobody falls silent here: a process that the machine holds up must not be taken for silent.
    patient = SETTINGS.model_copy(update={"worker_gone_s": 20.0})
    both = [
        scheduler(bus, context_on(bus, f"scheduler-{i}", incarnation=f"{i}"), patient)
        for i in (0, 1)
    ]
    await until(lambda: len(leased(bus)) == 16, *(one.run() for one in both))
    await environment.announce(WorkerStatus.STOPPED)
    assert len(issued(bus)) == 16
    assert set(issued(bus).values()) == set(leased(bus).values()) == {1}


async def test_a_standby_takes_over_after_silence_and_issues_nothing_twice() -> None:
    bus, environment = await a_bus()
    first = asyncio.create_task(scheduler(bus, context_on(bus, "scheduler-0")).run())
    await until(lambda: len(leased(bus)) == 16)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = scheduler(bus, context_on(bus, "scheduler-1"))
    await until(
        lambda: bool(second.ledger.fences) and second.ledger.fence(0).current[0] == 2, second.run()
    )
    await environment.announce(WorkerStatus.STOPPED)
    assert second.ledger.held == 16
    assert len(issued(bus)) == 16


def heard_of(status: WorkerStatus = WorkerStatus.READY) -> WorkerState:
    """What the leader says of itself."""
    return WorkerState(
        run_id=RUN, worker_id=WorkerId("scheduler-0"), role=Role.SCHEDULER, incarnation="1",
        status=status, started_us=1, at_us=1, writer_id=WorkerId("scheduler-0"),
    )  # fmt: skip


def test_a_standby_claims_exactly_when_its_leader_was_silent_for_its_lease() -> None:
    bus, clock = MemoryBus(partitions=1), HeldClock(monotonic_ms=50_000)

    def standing_by(worker: str) -> Leadership:
        context = context_on(bus, worker, clock=clock)
        log = RunLog(context, Role.SCHEDULER, {}, deadline_ms=1_000)
        return Leadership(context, log, World().ledger, lambda _: None, gone_ms=8_000)

    standby = standing_by("scheduler-1")
    # It has not heard of the leader yet: a whole lease passes from when it began to listen.
    assert not standby.is_vacant(now_ms=57_999)
    assert standby.is_vacant(now_ms=58_000)
    standby.schedulers.take(heard_of(), seen_ms=55_000)
    assert not standby.is_vacant(now_ms=62_999)
    assert standby.is_vacant(now_ms=63_000)
    standby.schedulers.take(heard_of(), seen_ms=62_000)
    assert not standby.is_vacant(now_ms=69_999)
    standby.schedulers.take(heard_of(WorkerStatus.STOPPED), seen_ms=62_500)
    assert standby.is_vacant(now_ms=62_500)
    assert standing_by("scheduler-0").is_vacant(now_ms=50_000), (
        "its own next process waits for none"
    )


async def test_a_restart_of_the_same_worker_takes_over_at_once_and_the_old_process_stops() -> None:
    bus, environment = await a_bus()
    old = asyncio.create_task(
        scheduler(bus, context_on(bus, "scheduler-0", incarnation="old")).run()
    )
    await until(lambda: len(leased(bus)) == 16)
    new = scheduler(bus, context_on(bus, "scheduler-0", incarnation="new"))
    await until(old.done, new.run())
    await environment.announce(WorkerStatus.STOPPED)
    with pytest.raises(FencedError, match="superseded"):
        old.result()
    assert len(issued(bus)) == 16


async def test_standing_still_past_the_deadline_is_a_fault_that_names_the_pending_ids() -> None:
    bus, environment = await a_bus()
    await environment.announce(WorkerStatus.STOPPED)
    context = context_on(bus, "environment-1")
    outside = FakeEnvironment(codec=bus.codec, partitions=3, context=context)
    settings = SETTINGS.model_copy(update={"stall_deadline_s": 0.2, "worker_gone_s": 20.0})
    stalled = RolloutScheduler(context_on(bus, "scheduler-0"), settings, bus.codec)
    with pytest.raises(TransientError, match=r"lag_bound for .* 16 episodes .*run-1\.0\.0"):
        await until(lambda: False, stalled.run(), outside.run())


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE])
@pytest.mark.parametrize("after", [1, 4, 6])
async def test_an_unknown_outcome_is_settled_by_a_new_epoch(fault: Fault, after: int) -> None:
    bus, environment = await a_bus()
    one = scheduler(bus, context_on(bus, "scheduler-0"))
    running = asyncio.create_task(one.run())
    await until(lambda: len(bus.records(topics.EPISODES)) >= after)
    bus.faults.next(fault, topic=topics.EPISODES, count=2)
    for ordinal in range(20, 24):
        bus.append(topics.TASKS, task(ordinal))
    await until(lambda: len(leased(bus)) == 16)
    bus.land_late()
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await environment.announce(WorkerStatus.STOPPED)
    assert len(issued(bus)) == 16
    assert set(leased(bus).values()) == {1}
