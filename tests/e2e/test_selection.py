"""Selection by length, on the embedded ClickHouse: runs whose dropped trajectories are known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from scipy.stats import ks_2samp

from tests.support.selected_runs import (
    AT_RANDOM,
    LATE_ONLY,
    LENGTHS,
    NO_LONG,
    TRAINED,
    N,
    fill,
    is_pending,
)
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("selection"))
    for run in TRAINED:
        fill(made_of, run)
    made_of.roll()
    yield made_of
    made_of.close()


def parts(tables: Tables, run: str) -> dict[int, dict[str, Any]]:
    rows = tables.ask(f"SELECT * FROM selection_by_length WHERE run_id = '{run}'")
    return {row["part"]: row for row in rows}


def test_the_distance_of_a_run_is_that_of_scipy_and_what_is_pending_is_left_out(
    tables: Tables,
) -> None:
    for run, is_trained in TRAINED.items():
        chance = random.Random(11)
        offered = [n for n in range(N) if not is_pending(n)]
        trained = [LENGTHS[n] for n in offered if is_trained(n, chance)]
        known = ks_2samp(trained, [LENGTHS[n] for n in offered], method="asymp")
        row = parts(tables, run)[-1]
        assert (row["offered"], row["trained"]) == (len(offered), len(trained))
        assert row["distance"] == pytest.approx(known.statistic)
        assert row["p"] == pytest.approx(known.pvalue, rel=0.2, abs=0.01)


def test_dropping_at_random_is_no_selection_and_dropping_what_is_long_is_an_alarm(
    tables: Tables,
) -> None:
    assert not any(row["is_alarm"] for row in parts(tables, AT_RANDOM).values())
    assert parts(tables, AT_RANDOM)[-1]["p"] > 0.01
    assert parts(tables, NO_LONG)[-1]["is_alarm"]
    assert parts(tables, NO_LONG)[-1]["p"] < 1e-6


def test_each_window_of_a_thousand_is_looked_at_and_a_short_last_one_gives_no_alarm(
    tables: Tables,
) -> None:
    found = parts(tables, LATE_ONLY)
    assert sorted(found) == [-1, 0, 1, 2]
    assert [found[part]["offered"] for part in (0, 1)] == [1_000, 1_000]
    assert [bool(found[part]["is_alarm"]) for part in (0, 1, 2)] == [False, True, False]
    assert found[2]["distance"] > 0.1


def test_the_span_of_versions_of_a_window_is_told_in_updates(tables: Tables) -> None:
    spans = parts(tables, AT_RANDOM)[0]
    assert (spans["span_p50"], spans["span_p99"]) == (3, 3)
