"""What an episode waits for is told where it belongs: 200 ms anywhere show there and nowhere else
(R83).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from environments.calculator.environment import CalculatorEnvironment
from environments.calculator.memory import cell
from environments.ports import canonical
from environments.turns import Turns
from schemas.enums import EpisodeEventKind, ToolEventKind
from schemas.ids import EpisodeId
from schemas.topics import METRICS
from tests.support.clocks import BackwardClock, HeldClock
from tests.support.environment_world import SETTINGS, World, until
from tests.support.fake_gateway import FakeGateway
from tests.support.task_records import task_of

LATE_MS = 200
TASK = task_of("calculator", canonical({"left": 2, "right": 3, "then": 4, "number": 7}))
TIMES = ("queue_us", "reset_us", "step_us", "tool_us", "turns_us")


def sums(_episode: str, turn: int, _messages: list[dict[str, Any]]) -> str:
    """The right answers of the task above."""
    return "2 + 3 = 5" if turn == 0 else f"{cell(7, 5)} + 4 = {cell(7, 5) + 4}"


def delayed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, clock: HeldClock, *, times: int = 99
) -> None:
    """Let the first calls of a method take 200 ms longer."""
    inner: Callable[..., Awaitable[Any]] = getattr(owner, name)
    left = [times]

    async def late(self: Any, *args: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            clock.advance(LATE_MS)
        return await inner(self, *args, **more)

    monkeypatch.setattr(owner, name, late)


def told(world: World, episode: EpisodeId) -> dict[str, int]:
    """Return the times that the records of an episode and the samples tell. Unit: us."""
    [ended] = world.events(EpisodeEventKind.ENDED, episode)
    results = [tool for tool in world.tools(episode) if tool.kind is ToolEventKind.RESULT]
    turns = [m for m in world.bus.records(METRICS) if m.name == "environment_turn_s"]
    assert (len(results), len(turns)) == (1, 2)
    return {
        "queue_us": ended.queue_us,
        "reset_us": ended.reset_us,
        "step_us": ended.step_us,
        "tool_us": results[0].duration_us,
        "turns_us": round(sum(turn.value for turn in turns) * 1e6),
    }


@pytest.mark.parametrize(
    ("method", "field", "times"),
    [
        ("reset", "reset_us", 1),
        ("act", "step_us", 2),
        ("observe", "step_us", 1),
        ("call", "tool_us", 1),
        ("close", None, 0),
        (None, None, 0),
    ],
)
async def test_a_late_environment_shows_in_its_own_time_only(
    monkeypatch: pytest.MonkeyPatch, method: str | None, field: str | None, times: int
) -> None:
    clock = HeldClock()
    if method is not None:
        delayed(monkeypatch, CalculatorEnvironment, method, clock)
    world = World(sums, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(TASK)
        await world.ended(episode)
    assert told(world, episode) == {
        name: times * LATE_MS * 1000 if name == field else 0 for name in TIMES
    }


async def test_a_wall_clock_that_is_set_back_takes_no_time_from_an_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = BackwardClock()
    for method in ("reset", "act", "observe", "call"):
        delayed(monkeypatch, CalculatorEnvironment, method, clock)
    world = World(sums, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(TASK)
        await world.ended(episode)
    assert told(world, episode) == {
        "queue_us": 0,
        "reset_us": LATE_MS * 1000,
        "step_us": 3 * LATE_MS * 1000,
        "tool_us": LATE_MS * 1000,
        "turns_us": 0,
    }


async def test_a_late_engine_shows_in_the_turns_only() -> None:
    clock = HeldClock()

    def late(episode: str, turn: int, messages: list[dict[str, Any]]) -> str:
        clock.advance(LATE_MS)
        return sums(episode, turn, messages)

    world = World(late, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(TASK)
        await world.ended(episode)
    assert told(world, episode) == {
        name: 2 * LATE_MS * 1000 if name == "turns_us" else 0 for name in TIMES
    }


async def test_a_late_session_shows_in_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HeldClock()
    delayed(monkeypatch, Turns, "_chosen", clock, times=1)
    world = World(sums, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(TASK)
        await world.ended(episode)
    assert set(told(world, episode).values()) == {0}


async def test_an_episode_that_waits_for_a_place_tells_so_and_nothing_else() -> None:
    clock = HeldClock()
    world = World(sums, clock=clock)
    settings = SETTINGS.model_copy(update={"capacity": 1})
    async with FakeGateway(world.wal).serving() as gateway, world.worker(settings=settings):
        world.announce(gateway)
        gateway.hold.clear()
        first = world.lease(TASK)
        await until(lambda: len(gateway.requests) == 2)
        second = world.lease(TASK, member=1)
        await asyncio.sleep(0.05)  # a few polls: it is read, and waits for the place
        clock.advance(LATE_MS)
        gateway.hold.set()
        ended = [await world.ended(first), await world.ended(second)]
    assert [(one.queue_us, one.reset_us, one.step_us) for one in ended] == [
        (0, 0, 0),
        (LATE_MS * 1000, 0, 0),
    ]


async def test_a_lease_that_was_read_late_has_waited_since_it_was_written() -> None:
    clock = HeldClock()
    world = World(sums, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        episode = world.lease(TASK)
        # Nothing else runs in between, so the worker has not read of it yet.
        clock.advance(LATE_MS)
        await world.ended(episode)
    assert told(world, episode) == {
        name: LATE_MS * 1000 if name == "queue_us" else 0 for name in TIMES
    }
