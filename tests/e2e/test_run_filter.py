"""Who asks a view for one run makes the engine read that run's rows, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.long_tables import RUN, fills
from infra.tables.quantities import QUANTITIES
from infra.tables.views import VIEWS
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ASKED = [
    *(one.name for one in VIEWS if "run_id" in one.columns.split()),
    *(f"{one.name}{kind}" for one in QUANTITIES for kind in ("", "_samples")),
]
CLOSED = "SELECT count() FROM learner_events"
TASKS = "SELECT count() FROM tasks"
READ_WHOLE = {
    # Which runs are closed, which updates count and which environments there are is looked up.
    "trajectory_accounts": (CLOSED, 1),
    "trajectory_funnel": (CLOSED, 1),
    "episode_fates": (CLOSED, 1),
    "episode_accounts": (CLOSED, 1),
    "token_accounts": (CLOSED, 1),
    "token_funnel": (CLOSED, 1),
    "episode_ledger": (CLOSED, 1),
    "settled_lengths": (CLOSED, 1),
    "selection_by_length": (CLOSED, 1),
    "policy_lag_by_bucket": (CLOSED, 1),
    "throughput": (CLOSED, 1),
    "throughput_by_minute": (CLOSED, 1),
    "exposure_wait_ms_samples": (TASKS, 1),
    "gateway_overhead_ms_samples": (TASKS, 1),
    "environment_turn_ms_samples": (TASKS, 1),
    "inter_token_ms_samples": (TASKS, 1),
}
"""Views that also read a small table of all runs, and how often at most."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("filter"))
    for fill in fills(20_000):
        made_of.run(fill.statement())
    made_of.roll()
    yield made_of
    made_of.close()


@pytest.mark.parametrize("view", ASKED)
def test_a_filter_on_the_run_reaches_the_rows(tables: Tables, view: str) -> None:
    counted, times = READ_WHOLE.get(view, ("SELECT 0", 1))
    (of_all,) = tables.one(counted).values()
    assert tables.rows_read(f"SELECT * FROM {view} WHERE run_id = 'nobody'") <= times * of_all


def test_the_rows_of_a_run_that_is_there_are_read(tables: Tables) -> None:
    read = [tables.rows_read(f"SELECT * FROM {view} WHERE run_id = '{RUN}'") for view in ASKED]
    told = [name for name, rows in zip(ASKED, read, strict=True) if not rows]
    # What the long run does not have: pauses, held-out episodes, dead letters and the like.
    assert len(told) < len(ASKED) / 10, told
