"""A scheduler that reads on from a snapshot knows what one knows that read everything."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from producers.presence import Presence
from schemas import topics
from schemas.enums import (
    AbandonReason,
    ControlKind,
    DropReason,
    EpisodeEventKind,
    GateOutcome,
    Purpose,
    Role,
    WorkerStatus,
)
from schemas.ids import RunId, WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import MemberDecision
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.records.worker_state import WorkerState
from stream_jobs.core.frontier import Frontier
from stream_jobs.core.ledger import Ledger
from stream_jobs.core.offering import Offering
from stream_jobs.core.snapshot import FLOORED, Snapshot, read_snapshot, restore, snapshot_of
from stream_jobs.scheduler import RolloutScheduler
from stream_jobs.settings import SchedulerSettings
from tests.support.fake_rollout import (
    context_on,
    policy,
    task,
    until,
)
from tests.support.memory_bus import MemoryBus
from tests.support.seeds import seeds
from tests.unit.stream_jobs.scheduling import World
from tests.unit.stream_jobs.test_schedule import random_event, ready

FLOORED_RECORDS = {topic.record for topic in FLOORED}


def taken(world: World) -> Snapshot:
    positions = {
        (topic.name, 0): sum(type(record) is topic.record for _, _, record in world.log)
        for topic in FLOORED
    }
    return snapshot_of(world.ledger, positions)


def through_the_log(world: World, snapshot: Snapshot) -> Snapshot:
    """Write a snapshot as a record and read it back."""
    event = world.author.control(
        ControlKind.SNAPSHOT,
        at_us=1,
        counts=snapshot.numbers,
        ends=snapshot.ends,
        snapshot=snapshot.text,
    )
    world.write(event)
    newest = world.ledger.control.snapshot
    assert newest is not None
    back = read_snapshot(newest, partitions=1)
    assert back == snapshot
    return back


def restored(world: World, snapshot: Snapshot, dice: random.Random) -> tuple[Ledger, int]:
    """Return a ledger that read on from a snapshot, topics in any order, and how much it read."""
    ledger = world.new_ledger()
    restore(ledger, snapshot)
    kinds: list[type[Any]] = [LearnerEvent, ControlEvent, WorkerState]
    kinds += [GateDecision, Trajectory, EpisodeEvent, Task]
    dice.shuffle(kinds)
    names = {topic.record: topic.name for topic in FLOORED}
    read = 0
    for kind in kinds:
        for offset, at_ms, record in world.log:
            if type(record) is not kind:
                continue
            if kind in names and offset < snapshot.floors[names[kind]][0]:
                continue
            read += kind in names
            world.feed(ledger, offset, at_ms, record)
    return ledger, read


def facts(ledger: Ledger) -> dict[str, Any]:
    """Return what decides, clocks apart."""
    return {
        "held": ledger.held,
        "counts": ledger.counts,
        "offered": list(ledger.offered()),
        "cursor": ledger.closed.lowest_open,
        "settled": len(ledger.closed),
        "groups": {
            ordinal: {
                member: (r.life.attempt, r.is_waiting, r.life.is_paused, r.failures, r.is_evaluated)
                for member, r in group.members.items()
            }
            for ordinal, group in ledger.groups.items()
        },
        "fence": ledger.fence(0).current,
    }


@pytest.mark.parametrize("seed", seeds(12, quick=2))
def test_reading_on_from_a_snapshot_equals_reading_everything(seed: int) -> None:
    dice = random.Random(seed)
    world = ready()
    world.size = dice.choice((1, 2))
    world.offer(40)
    world.offer(2, purpose=Purpose.EVALUATE)
    snapshots = [taken(world)]
    spared = 0
    for _ in range(150):
        random_event(world, dice)
        world.look()
        if dice.random() < 0.2:
            snapshots.append(through_the_log(world, taken(world)))
        if dice.random() < 0.1:
            ledger, read = restored(world, dice.choice(snapshots), dice)
            assert facts(ledger) == facts(world.rebuilt())
            spared += sum(type(record) in FLOORED_RECORDS for _, _, record in world.log) - read
    assert spared > 0


@pytest.mark.parametrize("seed", range(4))
def test_the_task_source_that_reads_on_from_a_snapshot_offers_the_same(seed: int) -> None:
    dice = random.Random(seed)
    world = ready()
    world.offer(12)
    for _ in range(120):
        random_event(world, dice)
        world.look()
        if dice.random() < 0.1:
            world.offer(1)
    snapshot = taken(world)
    assert snapshot.end > 0
    for _ in range(20):
        random_event(world, dice)
        world.look()
    world.offer(2)
    whole, reading_on = Offering(), Offering()
    reading_on.restore(snapshot)
    for offset, _, record in world.log:
        if isinstance(record, Task):
            whole.take_task(record)
            if offset >= snapshot.floors[topics.TASKS.name][0]:
                reading_on.take_task(record)
        elif isinstance(record, EpisodeEvent):
            whole.take_episode(0, record)
            if offset >= snapshot.floors[topics.EPISODES.name][0]:
                reading_on.take_episode(0, record)
    assert reading_on.next_ordinal == whole.next_ordinal
    for look_ahead in (1, 8, 64):
        assert reading_on.wanted(look_ahead=look_ahead) == whole.wanted(look_ahead=look_ahead)


def test_evaluated_members_and_early_records_lie_above_the_floors() -> None:
    world = ready()
    world.size = 2
    world.offer(2, purpose=Purpose.EVALUATE)
    world.settle()
    world.trajectory(0, 0)
    world.trajectory(1, 0)
    world.trajectory(1, 1)
    snapshot = taken(world)
    assert snapshot.floors[topics.TRAJECTORIES.name] == {0: 0}
    assert (snapshot.counts.evaluated, snapshot.end, snapshot.unsettled) == (2, 2, (0,))
    ledger, _ = restored(world, snapshot, random.Random(1))
    assert facts(ledger) == facts(world.ledger)


def test_a_paused_episode_does_not_expire_because_its_scheduler_restarted() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    for _ in range(20):
        world.now_ms += 1
        world.step([])
    world.now_ms += 1
    for episode in world.leased():
        world.environment(episode, EpisodeEventKind.PAUSED)
    for _ in range(3):
        world.now_ms += 1
        world.step([])
    world.ledger = world.rebuilt()
    world.now_ms += 1
    commands = world.look().commands
    assert not [r for _, _, r in world.log if getattr(r, "abandon_reason", "") == "pause_expired"]
    assert len(commands) == 2


def test_a_paused_episode_still_expires_by_updates_after_a_restart() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    for episode in world.leased():
        world.environment(episode, EpisodeEventKind.PAUSED)
    for _ in range(6):
        world.now_ms += 10_000
        world.step([])
    world.ledger = world.rebuilt()
    world.look()
    reasons = {getattr(r, "abandon_reason", None) for _, _, r in world.log}
    assert AbandonReason.PAUSE_EXPIRED in reasons


def _without(text: str, name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(text).items() if key != name})


def test_a_snapshot_that_is_not_whole_is_not_used() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    snapshot = taken(world)
    through_the_log(world, snapshot)
    event = world.ledger.control.snapshot
    assert event is not None
    assert read_snapshot(event, partitions=2) is None
    for name in ("version", "end", "unsettled", "fences"):
        broken = replace(event, snapshot=_without(event.snapshot, name))
        assert read_snapshot(broken, partitions=1) is None
    assert read_snapshot(replace(event, snapshot="{"), partitions=1) is None
    assert read_snapshot(replace(event, counts={}), partitions=1) is None
    assert read_snapshot(replace(event, ends=event.ends[1:]), partitions=1) is None


def test_a_snapshot_of_a_superseded_scheduler_is_void() -> None:
    world = ready()
    old = world.author
    world.take_over(replace(old, epoch=2, scheduler_id=WorkerId("scheduler-1:a")))
    world.write(old.control(ControlKind.SNAPSHOT, at_us=1))
    assert world.ledger.control.snapshot is None


def test_a_frontier_is_made_of_an_end_and_what_lacks() -> None:
    made = Frontier.below(6, but=(2, 4))
    assert [ordinal in made for ordinal in range(7)] == [
        True, True, False, True, False, True, False,
    ]  # fmt: skip
    assert (made.lowest_open, made.end, len(made)) == (2, 6, 4)
    assert Frontier.below(3).lowest_open == 3
    assert Frontier().end == 0


async def test_a_restarted_scheduler_reads_on_from_the_floors_and_issues_nothing_twice() -> None:
    bus = MemoryBus(partitions=3)
    bus.append(topics.POLICIES, policy())
    for ordinal in range(60):
        bus.append(topics.TASKS, task(ordinal))
    environment = Presence(
        context_on(bus, "environment-9"), Role.ENVIRONMENT, "", 64, heartbeat_s=0.05
    )
    await environment.announce(WorkerStatus.READY)
    settings = SchedulerSettings(
        batch=8, group_size=2, max_concurrent=64, poll_s=0.005, worker_gone_s=0.3, snapshot_s=0.01
    )

    def decide(ordinal: int) -> None:
        members = [e for e in issued if e.ordinal == ordinal]
        bus.append(topics.GATE_DECISIONS, dropped(members))

    first = RolloutScheduler(context_on(bus, "scheduler-0"), settings, bus.codec)
    running = asyncio.create_task(first.run())
    issued: list[EpisodeEvent] = []
    for settled in range(0, 16, 2):
        await until(partial(has_issued, bus, 16 + 2 * settled))
        issued = issued_events(bus)
        decide(settled)
        decide(settled + 1)
    await until(
        lambda: (
            first.ledger.closed.lowest_open == 16
            and first.ledger.control.snapshot is not None
            and first.ledger.control.snapshot.counts["dropped"] == 32
        )
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    second = RolloutScheduler(context_on(bus, "scheduler-0", incarnation="b"), settings, bus.codec)
    read: list[int] = []
    take = second.ledger.take_episode

    def counted(partition: int, offset: int, *more: Any, **named: Any) -> None:
        read.append(offset)
        take(partition, offset, *more, **named)

    second.ledger.take_episode = counted  # type: ignore[method-assign]
    await until(lambda: second.ledger.fence(0).current[0] == 2, second.run())
    await environment.announce(WorkerStatus.STOPPED)
    assert len(read) < len(bus.records(topics.EPISODES)) / 2
    assert set(Counter(e.episode_id for e in issued_events(bus)).values()) == {1}
    assert second.ledger.held <= 16


def has_issued(bus: MemoryBus, count: int) -> bool:
    return len(issued_events(bus)) >= count


def issued_events(bus: MemoryBus) -> list[EpisodeEvent]:
    return [e for e in bus.records(topics.EPISODES) if e.kind is EpisodeEventKind.ISSUED]


def dropped(members: list[EpisodeEvent]) -> GateDecision:
    return GateDecision(
        run_id=RunId(members[0].run_id),
        group_id=members[0].group_id,
        ordinal=members[0].ordinal,
        members=tuple(
            MemberDecision(
                episode_id=e.episode_id,
                trajectory_offset=0,
                outcome=GateOutcome.DROP,
                reason=DropReason.NO_REWARD,
            )
            for e in members
        ),
        at_us=1,
        writer_id=WorkerId("gate-0"),
    )
