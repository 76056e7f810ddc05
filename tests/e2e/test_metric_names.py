"""A producer with ever new names of metrics, against real tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.tables.generated import NAMES_MAX, OTHER_NAMES
from schemas import topics
from tests.support import small_run
from tests.support.small_run import made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_ever_new_names_of_metrics_cost_their_rows_and_one_name_more(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    try:
        _require_bounded_names(tables)
    finally:
        tables.close()


def _require_bounded_names(tables: Tables) -> None:
    def add(run: str, names: list[str], minute: int) -> None:
        points = [made(topics.METRICS, run_id=run, name=name, value=1.0) for name in names]
        at_ms = [(small_run.T0 + 60 * minute) * 1000] * len(points)
        tables.add(topics.METRICS, points, at_ms=at_ms)
        tables.roll()

    def told(run: str) -> dict[str, int]:
        asked = f"SELECT name, sum(n) AS n FROM metric_1m WHERE run_id = '{run}' GROUP BY name"
        return {row["name"]: row["n"] for row in tables.ask(asked)}

    add("wild", ["ttft_ms", "a_ms"], 0)
    for minute in range(1, 4):
        add("wild", [f"x{minute}-{n}" for n in range(600)], minute)
    # A minute that is made anew, and names that come again when there is no more room.
    add("wild", ["ttft_ms", "zz_ms", "x3-1", "x3-1", "x1-5"], 1)
    add("tame", ["ttft_ms", "other_ms"], 1)
    found = told("wild")
    assert len(found) == NAMES_MAX + 1
    assert (found["ttft_ms"], found["a_ms"], found["x1-5"]) == (2, 1, 2)
    assert found[OTHER_NAMES] == 2 + 3 * 600 + 5 - sum(
        n for name, n in found.items() if name != OTHER_NAMES
    )
    assert sum(found.values()) == 2 + 3 * 600 + 5, "no sample is lost or counted twice"
    assert "zz_ms" not in found
    assert "x3-1" not in found
    assert told("tame") == {"ttft_ms": 1, "other_ms": 1}, "a run has its own bound"
