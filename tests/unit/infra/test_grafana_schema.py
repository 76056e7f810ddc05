"""The dashboards against Grafana's own models, and against what the generator writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from infra.grafana.asking import know_statements
from infra.grafana.write import FOLDER, dashboards
from tests.support.grafana_boards import BOARDS


@pytest.fixture(autouse=True)
def _known() -> None:
    register_default_plugins()
    know_statements()


def read_back(board: dict[str, Any]) -> Any:
    """What Grafana's models keep of a dashboard: a field that they do not know is lost."""
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """Where `after` has no longer, or otherwise, what `before` has."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key, value in before.items()
            for found in lost(value, after.get(key), f"{where}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [found for at, (a, b) in pairs for found in lost(a, b, f"{where}[{at}]")]
    return [] if before == after else [where]


def test_the_files_are_what_the_generator_writes() -> None:
    written = dashboards()
    assert {path.name for path in written} == {path.name for path in FOLDER.glob("*.json")}
    for path, text in written.items():
        assert path.read_text() == text, f"run `python -m infra.grafana.write`: {path.name}"


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_grafanas_models_know_every_field(name: str) -> None:
    assert lost(BOARDS[name], read_back(BOARDS[name])) == []


@pytest.mark.parametrize(
    "place",
    [("panels", 4, "fieldConfig", "defaults"), ("panels", 4, "options", "legend"), ("links", 0)],
)
def test_a_field_that_grafana_does_not_know_is_found(place: tuple[Any, ...]) -> None:
    board = json.loads(json.dumps(BOARDS["runs"]))
    inner = board
    for step in place:
        inner = inner[step]
    inner["surprise"] = 1
    assert [where.rpartition(".")[2] for where in lost(board, read_back(board))] == ["surprise"]
