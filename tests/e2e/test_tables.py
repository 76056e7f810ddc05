"""The real tables and views, on the embedded ClickHouse: a run worked out by hand, percentiles,
rollups, definitions applied again, and rows that nobody wants.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.run.worker import table_definitions
from infra.tables.quantities import QUANTITIES
from infra.tables.views import VIEWS
from schemas import topics
from schemas.errors import InvariantError, RejectedError
from schemas.ports import Delivered
from stream_jobs.core.sink_statements import on_cluster, parse_migrations
from tests.support import small_run
from tests.support.small_run import fill, made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OF_PROJECTIONS = (
    "episode_runs", "stage_busy", "throughput", "token_accounts", "token_funnel", "wait_totals",
)  # fmt: skip
BASE = {"p50", "p95", "p99", "max", "mean", "n", "bad", "run_id"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Tables that hold the small run, and are only read."""
    tables = Tables(tmp_path_factory.mktemp("small"))
    fill(tables)
    tables.roll()
    yield tables
    tables.close()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """The embedded engine, for several tests."""
    one = Tables(tmp_path_factory.mktemp("embedded"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """The same behind the protocol of a server."""
    one = Tables(tmp_path_factory.mktemp("server"), behind_http=True)
    yield one
    one.close()


def emptied(tables: Tables) -> Tables:
    for name in (
        "verdicts", "tasks", "metric_points", "metric_minutes", "quantity_minutes",
        "quantity_hours", "rolled_minutes", "sink_borders",
    ):  # fmt: skip
        tables.run(f"TRUNCATE TABLE {name}")
    return tables


@pytest.fixture
def tables(embedded: Tables) -> Tables:
    """Empty tables."""
    return emptied(embedded)


@pytest.fixture(params=["embedded", "server"])
def either(request: pytest.FixtureRequest) -> Tables:
    """Empty tables, in the embedded engine and behind the protocol of a server."""
    return emptied(request.getfixturevalue(request.param))


def columns(tables: Tables, name: str) -> list[str]:
    return [str(row["name"]) for row in tables.ask(f"DESCRIBE TABLE {name}")]


def test_every_view_has_the_columns_that_the_page_names(small: Tables) -> None:
    for view in VIEWS:
        assert columns(small, view.name) == view.columns.split(), view.name
    for one in QUANTITIES:
        assert set(columns(small, one.name)) == BASE, one.name
        assert columns(small, f"{one.name}_samples") == [
            "run_id", "ts", "value", "worker", "environment", "epoch", "number", "episode_id",
            *one.labels,
        ]  # fmt: skip


def test_no_view_is_left_out_of_the_page(small: Tables) -> None:
    made_of = {"name": "SELECT name FROM system.tables WHERE database = currentDatabase() "}
    names = {row["name"] for row in small.ask(made_of["name"] + "AND engine = 'View'")}
    quantities = {one.name for one in QUANTITIES} | {f"{one.name}_samples" for one in QUANTITIES}
    assert names == {view.name for view in VIEWS} | quantities


def test_every_quantity_is_filled_and_its_rollup_agrees_with_its_rows(small: Tables) -> None:
    merged = {row["quantity"]: row for row in small.ask("SELECT * FROM quantities")}
    assert merged.keys() == {one.name for one in QUANTITIES}
    for one in QUANTITIES:
        exact = small.one(f"SELECT * FROM {one.name}")
        rolled = merged[one.name]
        assert exact["n"] > 0, one.name
        assert {k: rolled[k] for k in ("n", "bad", "max")} == {
            k: exact[k] for k in ("n", "bad", "max")
        }, one.name
        assert rolled["mean"] == pytest.approx(exact["mean"]), one.name


def test_every_episode_and_every_token_has_exactly_one_place(small: Tables) -> None:
    episodes = small.ask("SELECT outcome, reason, n FROM trajectory_accounts ORDER BY outcome")
    assert [tuple(row.values()) for row in episodes] == [
        ("dropped", "lag", 1),
        ("evaluated", "", 1),
        ("pending", "", 1),
        ("trained", "", 2),
    ]
    tokens = small.ask(
        "SELECT outcome, reason, tokens FROM token_accounts ORDER BY outcome, reason"
    )
    assert [tuple(row.values()) for row in tokens] == [
        ("dropped", "lag", 30),
        ("evaluated", "", 50),
        ("masked", "dis_high", 4),
        ("masked", "dis_low", 2),
        ("pending", "", 20),
        ("superseded", "", 5),
        ("trained", "", 89),
    ]
    sampled = small.one("SELECT tokens FROM token_funnel WHERE stage = 'sampled'")["tokens"]
    assert sum(row["tokens"] for row in tokens) == sampled == 200


def test_effective_throughput_stands_beside_the_raw_one_and_its_bound(small: Tables) -> None:
    row = small.one("SELECT * FROM throughput")
    assert (row["raw_tokens"], row["trained_tokens"], row["wall_s"]) == (200, 89, 20.0)
    assert row["effective_tokens_per_s"] == pytest.approx(89 / 20)
    assert row["effective_tokens_per_s"] <= row["raw_tokens_per_s"]
    busy = {one["stage"]: one["busy_s"] for one in small.ask("SELECT * FROM stage_busy")}
    # Episodes ran from 2 to 8; each verdict took 0.4 s; one worker of two stood still for 2 s.
    assert busy == pytest.approx({"rollout": 6.0, "verify": 1.6, "learn": 8.0, "sync": 1.05})
    assert (row["bottleneck"], row["bound_tokens_per_s"]) == ("learn", pytest.approx(89 / 8))


def test_waits_and_phases_sum_to_the_wall_clock_of_the_learner(small: Tables) -> None:
    check = small.one("SELECT * FROM wait_check")
    assert check["attributed_ratio"] == pytest.approx(1.0, abs=0.02)
    spent = {row["cause"]: row["spent_s"] for row in small.ask("SELECT * FROM wait_totals")}
    # The wait lasted from 2 to 12: half of the two seconds' pause is refresh, the batch was nearly
    # whole at 8, and no episode that was leased before had ended then.
    assert spent["refresh"] == pytest.approx(1.0)
    assert spent["straggler"] == pytest.approx(4.0)
    assert (spent["train"], spent["record"]) == (6.0, 2.0)
    waits = ("refresh", "straggler", "backpressure", "commit", "batch_not_full")
    assert sum(spent.get(cause, 0.0) for cause in waits) == pytest.approx(10.0)
    # Of what is left, the share of the attempts' time that tokens waited for the broker.
    ran = small.one("SELECT sum(ended - began) AS us FROM episode_runs")["us"]
    waited = small.one(
        "SELECT sum(value) AS us FROM metric_points "
        "WHERE name = 'exposure_wait_us' AND isFinite(value)"
    )["us"]
    rest = 10.0 - spent["refresh"] - spent["straggler"] - spent.get("backpressure", 0.0)
    assert min(ran, waited, rest) > 0
    assert spent["commit"] == pytest.approx(rest * waited / ran, abs=2e-6)


def test_projections_made_as_parts_merge_change_no_answer(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    try:
        fill(tables)
        tables.roll()
        questions = [f"SELECT * FROM {name} ORDER BY ALL" for name in OF_PROJECTIONS]
        before = [tables.ask(one) for one in questions]
        assert all(before)
        tables.run("OPTIMIZE TABLE token_commits FINAL")
        made = tables.ask("SELECT DISTINCT name FROM system.projection_parts WHERE active")
        assert [row["name"] for row in made] == ["by_writer"]
        assert [tables.ask(one) for one in questions] == before
    finally:
        tables.close()


def test_lag_is_told_by_step_and_by_bucket_with_the_ratio_and_the_sample_size(
    small: Tables,
) -> None:
    step = small.one("SELECT ordinal, n, steps_max, s_max, kl_max FROM policy_lag_by_step")
    assert step == {"ordinal": 1, "n": 2, "steps_max": 1, "s_max": 2.0, "kl_max": 0.01}
    buckets = small.ask("SELECT bucket, n FROM policy_lag_by_bucket ORDER BY place")
    assert buckets == [{"bucket": "le_0", "n": 1}, {"bucket": "le_1", "n": 1}]
    ratio = small.one("SELECT bucket, ratio_p95, effective_sample_ratio FROM ratio_by_lag_bucket")
    assert ratio == {"bucket": "le_0", "ratio_p95": 1.2, "effective_sample_ratio": 0.9}


def test_percentiles_keep_their_rank_after_merging_partitions_and_minutes(tables: Tables) -> None:
    seed = 20_261_129
    draw = random.Random(seed)
    names = ("shell", "web")
    groups = [
        made(topics.TASKS, group_id=f"run-1.{i}.g", environment=names[i], purpose="train")
        for i in range(2)
    ]
    tables.add(topics.TASKS, groups, at_ms=[small_run.T0 * 1000] * 2)
    values: dict[str, list[float]] = {name: [] for name in names}
    for minute in range(40):
        for partition in range(4):
            records, times = [], []
            for index in range(150):
                us = round(draw.lognormvariate(10.0 + index % 2, 1.0 + 0.02 * minute))
                us *= 100 if draw.random() < 0.02 else 1
                values[names[index % 2]].append(us / 1000)
                group = f"run-1.{index % 2}.g"
                records.append(
                    made(topics.VERDICTS, code="correct", duration_us=us, group_id=group)
                )
                times.append((small_run.T0 + 60 * minute) * 1000 + index)
            tables.add(topics.VERDICTS, records, at_ms=times, partition=partition)
        # As a sink does that goes on: minutes are made while their rows still come.
        if minute % 7 == 0:
            tables.roll()
    tables.roll()
    everything = [value for some in values.values() for value in some]
    row = tables.one("SELECT * FROM quantities WHERE quantity = 'verifier_ms'")
    assert row["n"] == len(everything) == 24_000
    assert row["max"] == max(everything)
    minutes = tables.one("SELECT uniqExact(t) AS n FROM quantity_1m WHERE quantity = 'verifier_ms'")
    assert minutes["n"] == 40
    told = {"quantities": (row, everything)}
    told["verifier_ms"] = (tables.one("SELECT * FROM verifier_ms"), everything)
    for one in tables.ask("SELECT * FROM quantities_by_environment WHERE quantity = 'verifier_ms'"):
        told[one["environment"]] = (one, values[one["environment"]])
    assert told.keys() >= set(names)
    for name, (found, some) in told.items():
        ranked = sorted(some)
        for share, key in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
            low = bisect.bisect_left(ranked, found[key]) / len(ranked)
            high = bisect.bisect_right(ranked, found[key]) / len(ranked)
            off = max(low - share, share - high, 0.0)
            assert off <= 0.01, f"{key} of {name} is {off:.4f} off its rank (seed {seed})"


def test_a_batch_that_is_inserted_again_leaves_no_row_and_no_sample_twice(either: Tables) -> None:
    messages = [
        Delivered(
            topic=topics.VERDICTS.name, partition=0, offset=offset,
            timestamp_ms=small_run.T0 * 1000, key=None,
            record=made(topics.VERDICTS, code="correct", duration_us=1_000 * offset),
        )
        for offset in range(10)
    ]  # fmt: skip
    for _ in range(3):
        either.insert(topics.VERDICTS, messages, "verdicts:0:0-9")
        either.roll()
    assert either.one("SELECT count() AS n FROM verdicts") == {"n": 10}
    assert either.one("SELECT n FROM quantities WHERE quantity = 'verifier_ms'") == {"n": 10}


def verdict(duration_us: int) -> Any:
    return made(topics.VERDICTS, code="correct", duration_us=duration_us)


def test_a_minute_that_is_made_anew_counts_though_the_clock_was_set_back(tmp_path: Path) -> None:
    for times in (1, 2):
        # Each start of the child counts its times from 1 again.
        tables = Tables(tmp_path)
        try:
            point = made(topics.METRICS, name="one_s", value=float(times))
            tables.insert(
                topics.METRICS,
                [
                    Delivered(
                        topic=topics.METRICS.name, partition=0, offset=times, key=None,
                        timestamp_ms=small_run.T0 * 1000, record=point,
                    )
                ],
                f"point {times}",
            )  # fmt: skip
            tables.roll()
            assert tables.one("SELECT n, max FROM metric_quantiles") == {"n": times, "max": times}
        finally:
            tables.close()


def test_definitions_are_applied_once_and_a_changed_rollup_is_made_anew(tmp_path: Path) -> None:
    texts = table_definitions()
    tables = Tables(tmp_path)
    assert tables.migrate(texts) == []
    asked = "SELECT n, max FROM quantities WHERE quantity = 'verifier_ms'"
    tables.add(topics.VERDICTS, [verdict(7_000)] * 3, at_ms=[small_run.T0 * 1000] * 3)
    assert tables.ask(asked) == []
    assert tables.roll() == 2, "its minute and its hour"
    assert tables.roll() == 0
    assert tables.one(asked) == {"n": 3, "max": 7.0}
    changed = [
        text.replace("duration_us / 1000", "duration_us / 500") if "-- rollups" in text else text
        for text in texts
    ]
    assert tables.migrate(changed) == []
    assert tables.roll() == 2, "its minute and its hour"
    assert tables.one(asked) == {"n": 3, "max": 14.0}
    changed = [text + "\n-- more\n" if "-- repeatable flow" in text else text for text in texts]
    later = ["flow", "learning", "canned", "selection"]
    assert tables.migrate(changed) == later, "views of later files may read those of this one"
    tables.close()


def test_an_insert_that_the_table_refuses_is_an_error_and_not_lost_in_silence(
    either: Tables,
) -> None:
    either.run("ALTER TABLE verdicts ADD CONSTRAINT short CHECK duration_us < 5")
    either.add(topics.VERDICTS, [verdict(1)], at_ms=[1])
    with pytest.raises(InvariantError, match="short"):
        either.add(topics.VERDICTS, [verdict(9)], at_ms=[1])
    with pytest.raises(RejectedError, match="nonsense"):
        either.ask("SELECT nonsense")
    # Another's error is not taken for one of the next insert.
    either.add(topics.VERDICTS, [verdict(2)], at_ms=[1])
    assert either.one("SELECT count() AS n FROM verdicts") == {"n": 2}
    either.run("ALTER TABLE verdicts DROP CONSTRAINT short")


def test_rows_from_the_far_past_and_future_and_of_wild_clocks_are_all_kept(either: Tables) -> None:
    at_ms = [-1, 0, 1, 4_102_444_800_000, 2**53, small_run.T0 * 1000]
    points = [
        made(topics.METRICS, name="x_ms", value=1.0, at_us=at)
        for at in (-(2**62), 0, 2**62, 5, 1, 2)
    ]
    either.add(topics.METRICS, points, at_ms=at_ms)
    months = [86_400_000 * 31 * month for month in range(120)]
    many = [made(topics.METRICS, name="y_ms", value=1.0) for _ in months]
    either.add(topics.METRICS, many, at_ms=months)
    either.run("OPTIMIZE TABLE metric_points FINAL")
    either.roll()
    assert either.one("SELECT count() AS n FROM metric_points") == {"n": 126}
    assert either.one("SELECT sum(n) AS n FROM metric_quantiles") == {"n": 126}


def test_a_run_name_that_is_sql_stays_a_name(either: Tables) -> None:
    name = "x'); DROP TABLE verdicts; -- \\' \n {run:String}"
    record = made(topics.VERDICTS, run_id=name, code="correct", episode_id=name)
    either.add(topics.VERDICTS, [record], at_ms=[small_run.T0 * 1000])
    assert either.one("SELECT run_id, episode_id FROM verdicts") == {
        "run_id": name,
        "episode_id": name,
    }
    assert either.one("SELECT count() AS n FROM verdicts") == {"n": 1}


def test_of_several_who_choose_a_border_the_first_decides_for_all(either: Tables) -> None:
    assert either.agree("run-1", 10, 19, 5) == (10, 19)
    assert either.agree("run-1", 10, 99, 6) == (10, 19)
    assert either.agree("run-1", 10, 12, 1) == (10, 19)
    assert either.agree("run-2", 10, 12, 9) == (10, 12)
    assert either.agree("run-1", 20, 29, 7) == (20, 29)


def test_every_definition_for_a_cluster_is_one_that_the_engine_can_read(tables: Tables) -> None:
    definitions = parse_migrations(table_definitions())
    count = 0
    for migration in (*definitions.migrations, *definitions.repeatable):
        for statement in migration.statements:
            if statement.startswith(("CREATE TABLE", "ALTER", "DROP")):
                tables.run(f"EXPLAIN AST {on_cluster(statement, 'main')}")
                count += "Replicated" in on_cluster(statement, "main")
    assert count > 20


def test_a_label_with_ever_new_values_costs_its_rows_and_no_more(tables: Tables) -> None:
    tables.add(
        topics.TASKS, [made(topics.TASKS, purpose="train", environment="counter")], at_ms=[0]
    )
    labels = [{"environment": "counter" if n % 2 else f"e-{n}"} for n in range(200)]
    points = [
        made(topics.METRICS, name="environment_turn_s", value=0.5, labels=one) for one in labels
    ]
    tables.add(topics.METRICS, points, at_ms=[small_run.T0 * 1000] * len(points))
    tables.roll()
    assert tables.one("SELECT uniqExact(labels) AS n FROM metric_points") == {"n": 101}
    asked = "SELECT environment, n FROM quantity_1m WHERE quantity = 'environment_turn_ms' "
    assert tables.ask(asked + "ORDER BY environment") == [
        {"environment": "", "n": 100},
        {"environment": "counter", "n": 100},
    ]
