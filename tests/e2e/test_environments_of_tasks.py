"""The rollups tell a sample's environment by the task of its group, whichever comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from schemas import topics
from schemas.topics import Topic
from tests.support import small_run
from tests.support.small_run import made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GROUP = {"group_id": "run-1.0.g"}
IN_GROUP = {"episode_id": "run-1.0.0", **GROUP}
OF_ROWS: Mapping[Topic[Any], tuple[str, Mapping[str, Any]]] = {
    topics.VERDICTS: ("verifier_ms", {"duration_us": 1_000}),
    topics.TOOL_EVENTS: ("tool_call_ms", {"kind": "result", "duration_us": 1_000}),
    topics.EPISODES: ("environment_step_ms", {"kind": "ended", "step_us": 1_000}),
}
"""Topics whose records do not name their environment: a quantity, and a sample of 1 of it."""


@pytest.fixture
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("environments"))
    yield made_of
    made_of.close()


def add(tables: Tables, topic: Topic[Any], at_s: float, **fields: Any) -> None:
    tables.add(topic, [made(topic, **fields)], at_ms=[round(1000 * (small_run.T0 + at_s))])


def by_environment(tables: Tables, quantity: str, of: str = "quantities_by_environment") -> Any:
    rows = tables.ask(
        f"SELECT environment, sum(o.n) AS n FROM {of} AS o WHERE quantity = '{quantity}' "
        "GROUP BY environment"
    )
    return {row["environment"]: row["n"] for row in rows}


def test_a_task_that_comes_later_moves_the_samples_of_its_group_and_counts_none_twice(
    tables: Tables,
) -> None:
    for topic, (_, fields) in OF_ROWS.items():
        add(tables, topic, 0, **IN_GROUP, **fields)
        add(tables, topic, 0, episode_id="run-1.9.0", group_id="run-1.9.g", **fields)
    tables.roll()
    for quantity, _ in OF_ROWS.values():
        assert by_environment(tables, quantity) == {"": 2}
    add(tables, topics.TASKS, 300, **GROUP, environment="shell", purpose="train")
    tables.roll()
    for quantity, _ in OF_ROWS.values():
        for of in ("quantities_by_environment", "quantity_1m", "quantity_1h"):
            assert by_environment(tables, quantity, of) == {"": 1, "shell": 1}, of
        asked = f"SELECT n, p50, max, mean FROM quantities WHERE quantity = '{quantity}'"
        assert tables.one(asked) == {"n": 2, "p50": 1.0, "max": 1.0, "mean": 1.0}
    assert tables.roll() == 0, "what waits for a task is made anew when one comes"


def test_a_point_whose_environment_became_known_is_not_counted_under_both(tables: Tables) -> None:
    point = {"name": "environment_turn_s", "value": 0.5, "labels": {"environment": "shell"}}
    add(tables, topics.METRICS, 0, **point)
    tables.roll()
    assert by_environment(tables, "environment_turn_ms", "quantity_1m") == {"": 1}
    add(tables, topics.TASKS, 0, **GROUP, environment="shell", purpose="train")
    add(tables, topics.METRICS, 1, **point)
    tables.roll()
    for of in ("quantities_by_environment", "quantity_1m", "quantity_1h"):
        assert by_environment(tables, "environment_turn_ms", of) == {"shell": 2}, of
    assert tables.one("SELECT n FROM quantities") == {"n": 2}


def test_commits_are_told_by_their_rows(tables: Tables) -> None:
    add(tables, topics.TASKS, 0, **GROUP, environment="shell", purpose="train")
    add(tables, topics.TOKENS, 0, **IN_GROUP, kind="action", count=7)
    assert by_environment(tables, "commit_size_tokens") == {"shell": 1}
