"""200 ms that one environment takes longer show at that environment and in that quantity, and
nowhere else that the tables answer from (R83).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from environments.calculator.environment import CalculatorEnvironment
from environments.ports import canonical
from schemas import topics
from schemas.ports import Delivered
from schemas.topics import EPISODES, METRICS, TASKS, TOOL_EVENTS
from tests.support.clocks import HeldClock
from tests.support.environment_world import World
from tests.support.fake_gateway import FakeGateway
from tests.support.table_process import Tables
from tests.support.task_records import task_of
from tests.unit.environments.test_worker_times import LATE_MS, delayed, sums

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LATE = task_of("calculator", canonical({"left": 2, "right": 3, "then": 4, "number": 7}))
OTHER = task_of("digits", ordinal=1)


@pytest.fixture
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("late"))
    yield made_of
    made_of.close()


@pytest.mark.parametrize(
    ("method", "quantity", "times"),
    [
        ("reset", "environment_reset_ms", 1),
        ("act", "environment_step_ms", 2),
        ("call", "tool_call_ms", 1),
        ("turn", "environment_turn_ms", 1),
    ],
)
async def test_a_late_environment_is_late_alone_and_at_one_thing(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, method: str, quantity: str, times: int
) -> None:
    clock, late = HeldClock(), set[str]()

    def answer(episode: str, turn: int, messages: list[dict[str, Any]]) -> str:
        if method == "turn" and episode in late:
            clock.advance(LATE_MS)
        return sums(episode, turn, messages)

    if method != "turn":
        delayed(monkeypatch, CalculatorEnvironment, method, clock)
    world = World(answer, clock=clock)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        for task in (LATE, OTHER):
            world.bus.append(TASKS, task)
            episode = world.lease(task)
            if task is LATE:
                late.add(episode)
            # One after the other: the clock is one for both.
            await world.ended(episode)
    _fill(tables, world)
    told = {
        (row["quantity"], row["environment"]): row
        for row in tables.ask("SELECT * FROM quantities_by_environment")
    }
    both = ("environment_reset_ms", "environment_step_ms", "environment_turn_ms", "queue_wait_ms")
    assert told.keys() >= {(one, name) for one in both for name in ("calculator", "digits")}
    assert {key: row["max"] for key, row in told.items() if row["max"]} == {
        (quantity, "calculator"): times * LATE_MS
    }


def _fill(tables: Tables, world: World) -> None:
    for topic in (TASKS, EPISODES, TOOL_EVENTS, METRICS):
        by_partition: dict[int, list[Delivered[Any]]] = defaultdict(list)
        for message in world.bus.messages(topic):
            assert isinstance(message, Delivered)
            by_partition[message.partition].append(message)
        for partition, messages in by_partition.items():
            tables.add(
                topics.BY_NAME[topic.name],
                [message.record for message in messages],
                at_ms=[message.timestamp_ms for message in messages],
                partition=partition,
            )
    tables.roll()
