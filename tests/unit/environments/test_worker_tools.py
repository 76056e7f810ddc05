"""Tool calls of the environment worker: logged before they run, replayed, never run twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.calculator.memory import cell
from environments.counter.store import CounterStore
from environments.ports import canonical
from schemas.enums import EpisodeEventKind, StopCause, ToolEventKind
from schemas.ids import EpisodeId, WorkerId
from schemas.records.task import Task
from schemas.records.tool_event import ToolEvent
from schemas.topics import TOOL_EVENTS, VERIFY_REQUESTS
from tests.support.environment_world import World, until
from tests.support.fake_gateway import FakeGateway, FakeTurn
from tests.support.memory_bus import Fault
from tests.support.task_records import task_of

CALCULATOR = canonical({"left": 2, "right": 3, "then": 4, "number": 7})


def sums(_episode: str, turn: int, _messages: list[dict[str, Any]]) -> str:
    """The right answers of the calculator task above."""
    return "2 + 3 = 5" if turn == 0 else f"{cell(7, 5)} + 4 = {cell(7, 5) + 4}"


def calculator(**changes: Any) -> Task:
    return task_of("calculator", CALCULATOR, **changes)


def counter(path: Path, **config: Any) -> Task:
    payload = registry.load("counter").payload({"path": str(path), **config}, 0, 0)
    return task_of("counter", payload)


async def test_a_tool_call_is_logged_before_and_after_it_runs_and_its_result_is_named() -> None:
    world = World(sums)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(calculator())
        ended = await world.ended(episode)
    intent, result = world.tools(episode)
    assert (intent.kind, result.kind) == (ToolEventKind.INTENT, ToolEventKind.RESULT)
    assert intent.call_key == result.call_key == f"{episode}:0:0:0"
    assert intent.wal_position == world.wal.episode(episode).turns[0].offset
    assert result.output == str(cell(7, 5))
    assert world.wal.episode(episode).turns[1].result_offsets == [1]
    assert result.intent_offset == 0
    assert (ended.stop_cause, ended.tool_calls) == (StopCause.POLICY_STOP, 1)
    [request] = world.bus.records(VERIFY_REQUESTS)
    assert json.loads(request.artifact) == {"held": cell(7, 5), "key": 5}


async def test_a_later_attempt_goes_on_from_the_prefix_and_runs_no_recorded_call() -> None:
    world = World(sums)
    task = calculator()
    async with FakeGateway(world.wal).serving() as gateway:
        world.announce(gateway)
        gateway.hold.clear()
        gateway.hold_from = 1
        async with world.worker("environment-1"):
            episode = world.lease(task)
            # The first worker loses its lease while its second turn waits at the gateway.
            await until(lambda: len(gateway.requests) == 3)
            world.lease(task, attempt=2, worker="environment-2")
            async with world.worker("environment-2"):
                gateway.hold.set()
                # Attempt 2 was leased before this worker began, so it is not its own to run.
                world.lease(task, attempt=3, worker="environment-2")
                ended = await world.ended(episode)
    assert (ended.attempt, ended.stop_cause) == (3, StopCause.POLICY_STOP)
    assert [turn.text for turn in world.wal.episode(episode).turns] == [
        sums(episode, 0, []),
        sums(episode, 1, []),
    ]
    assert world.wal.episode(episode).sampled == 2
    kinds = [(event.kind.value, event.attempt) for event in world.tools(episode)]
    assert kinds[:2] == [("intent", 1), ("result", 1)]
    assert ("fence", 3) in kinds
    assert sum(kind == "result" for kind, _ in kinds) == 1
    attempts = {event.attempt for event in world.events(EpisodeEventKind.ENDED, episode)}
    assert attempts == {3}, "an attempt that lost its lease writes no end"


def intent_of(task: Task, episode: EpisodeId) -> ToolEvent:
    return ToolEvent(
        run_id=task.run_id, episode_id=episode, group_id=task.group_id,
        kind=ToolEventKind.INTENT, attempt=1, writer_id=WorkerId("environment-0"),
        incarnation="gone", turn=0, call=0, call_key=f"{episode}:0:0:0", tool="add",
        arguments="{}", external=True, at_us=1,
    )  # fmt: skip


@pytest.mark.parametrize("ran", [True, False])
async def test_a_call_with_only_an_intent_is_asked_for_by_key_and_never_run_twice(
    tmp_path: Path, ran: bool
) -> None:
    world = World(lambda *_: "go on")
    store = CounterStore(tmp_path / "c.sqlite")
    task = counter(tmp_path / "c.sqlite", calls=2)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = EpisodeId(f"{task.run_id}.0.0")
        _first_turn(world, episode)
        world.bus.append(TOOL_EVENTS, intent_of(task, episode))
        if ran:
            store.add(episode, f"{episode}:0:0:0", 1, 1)
        world.lease(task, attempt=2)
        ended = await world.ended(episode)
    assert ended.stop_cause is StopCause.POLICY_STOP
    assert [(run.executions, run.value) for run in store.executions()] == [(1, 1), (1, 2)]
    [request] = world.bus.records(VERIFY_REQUESTS)
    assert json.loads(request.artifact) == {"values": [1, 2]}


def _first_turn(world: World, episode: EpisodeId) -> None:
    kept = world.wal.episode(episode)
    kept.fence = (1, 1)
    kept.turns.append(FakeTurn(text="go on", finish="stop", offset=7, result_offsets=[]))


async def test_a_call_whose_outcome_nobody_can_tell_is_recorded_as_unknown(tmp_path: Path) -> None:
    world = World(lambda *_: "go on")
    task = counter(tmp_path / "c.sqlite", asks_by_key=False)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = EpisodeId(f"{task.run_id}.0.0")
        _first_turn(world, episode)
        world.bus.append(TOOL_EVENTS, intent_of(task, episode))
        world.lease(task, attempt=2)
        ended = await world.ended(episode)
    assert (ended.stop_cause, "unknown_tool" in ended.detail) == (StopCause.ENVIRONMENT_ERROR, True)
    assert world.tools(episode)[-1].kind is ToolEventKind.UNKNOWN_OUTCOME
    assert CounterStore(tmp_path / "c.sqlite").executions() == []


async def test_an_external_tool_does_not_run_when_a_higher_fence_stands_before_its_intent(
    tmp_path: Path,
) -> None:
    world = World(lambda *_: "go on")
    task = counter(tmp_path / "c.sqlite")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        gateway.hold.clear()
        episode = world.lease(task)
        await until(lambda: len(gateway.requests) == 2)
        fence = ToolEvent(
            run_id=task.run_id, episode_id=episode, group_id=task.group_id,
            kind=ToolEventKind.FENCE, attempt=2, writer_id=WorkerId("environment-2"),
            incarnation="other", at_us=1,
        )  # fmt: skip
        world.bus.append(TOOL_EVENTS, fence)
        gateway.hold.set()
        await until(lambda: len(world.tools(episode)) == 2)
    assert [event.kind.value for event in world.tools(episode)] == ["fence", "intent"]
    assert CounterStore(tmp_path / "c.sqlite").executions() == []
    assert world.events(EpisodeEventKind.ENDED, episode) == []


async def test_an_unknown_intent_ends_the_attempt_and_is_never_written_again() -> None:
    world = World(sums)
    async with FakeGateway(world.wal).serving() as gateway, world.worker() as context:
        world.announce(gateway)
        world.bus.faults.next(Fault.UNKNOWN_LATE, topic=TOOL_EVENTS)
        episode = world.lease(calculator())
        ended = await world.ended(episode)
        assert ended.stop_cause is StopCause.INFRASTRUCTURE_ERROR
        assert context.producer.number == 2
        # The next attempt fences first, so what lands late is void.
        world.lease(calculator(), attempt=2)
        final = await world.ended(episode, 2)
        world.bus.land_late()
    assert final.stop_cause is StopCause.POLICY_STOP
    kinds = [(event.kind.value, event.attempt) for event in world.tools(episode)]
    assert kinds == [("fence", 2), ("intent", 2), ("result", 2), ("intent", 1)]
