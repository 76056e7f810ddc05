"""What is told of learning counts every episode once, reads the names that the learner writes, and
tells a number that is not finite apart.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learner.core.diagnostics import LAG_BUCKETS, bucket
from schemas import topics
from schemas.enums import Termination
from schemas.ids import RunId
from tests.support import small_run
from tests.support.learner_runs import BATCH, GROUP, LearnerWorld
from tests.support.small_run import RUN, fill, made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MEASURES = {
    "reward_mean": "reward_mean_reward",
    "advantage_mean": "advantage_mean_reward",
    "advantage_variance": "advantage_variance_reward2",
    "zero_advantage_ratio": "zero_advantage_ratio",
    "entropy_nats": "entropy_nats",
    "kl_nats": "kl_nats",
    "gate_fraction_ratio": "gate_fraction_ratio",
    "ratio_p50": "ratio_p50_ratio",
    "ratio_p95": "ratio_p95_ratio",
    "ratio_p99": "ratio_p99_ratio",
    "measured_tokens": "measured_tokens",
    "effective_sample_tokens": "sample_size_tokens",
    "gradient_norm": "gradient_norm",
    "lag_mean_updates": "lag_mean_updates",
    "mfu_ratio": "mfu_ratio",
}
"""Column of `learning_by_step` to what the learner calls it."""
BY_LAG = {
    "ratio_p50": "ratio_p50_lag_{}_ratio",
    "ratio_p95": "ratio_p95_lag_{}_ratio",
    "ratio_p99": "ratio_p99_lag_{}_ratio",
    "kl_mean": "kl_lag_{}_nats",
    "kl_p50": "kl_p50_lag_{}_nats",
    "kl_p95": "kl_p95_lag_{}_nats",
    "kl_p99": "kl_p99_lag_{}_nats",
    "tokens": "measured_lag_{}_tokens",
    "effective_sample_tokens": "sample_size_lag_{}_tokens",
}
"""The same of `ratio_by_lag_bucket`, by the bucket's name."""


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    """Tables that hold the small run, to be written on."""
    one = Tables(tmp_path)
    fill(one)
    yield one
    one.close()


def add(tables: Tables, topic: topics.Topic[Any], *records: Any, at_s: float = 30.0) -> None:
    at_ms = [round(1000 * (small_run.T0 + at_s))] * len(records)
    tables.add(topic, records, at_ms=at_ms)


def rows(tables: Tables, view: str) -> list[tuple[Any, ...]]:
    asked = f"SELECT * EXCEPT run_id FROM {view} WHERE run_id = '{RUN}' ORDER BY ALL"
    return [tuple(row.values()) for row in tables.ask(asked)]


def trajectories() -> list[Any]:
    return [record for topic, _, record in small_run.rows() if topic is topics.TRAJECTORIES]


def test_a_trajectory_that_was_written_again_changes_no_count_of_episodes(tables: Tables) -> None:
    views = ("episode_outcomes", "task_outcomes", "reward_histogram", "evaluation_by_version")
    before = {view: rows(tables, view) for view in views}
    again = [
        dataclasses.replace(one, termination=Termination.TASK_FAILURE, reward=0.0)
        for one in trajectories()
    ]
    add(tables, topics.TRAJECTORIES, *again)
    assert {view: rows(tables, view) for view in views} == before
    assert tables.one("SELECT count() AS n FROM trajectories")["n"] == 2 * len(again)
    # A filter on what the copies differ in does not bring them back.
    failed = "SELECT count() AS n FROM trajectories_counted WHERE termination = 'task_failure'"
    assert tables.one(failed) == {"n": 0}


def test_the_ends_of_every_task_sum_to_the_episodes_issued(tables: Tables) -> None:
    lost = {"episode_id": f"{RUN}.3.0", "group_id": f"{RUN}.3.g", "task_id": "t3"}
    add(
        tables, topics.EPISODES,
        made(topics.EPISODES, kind="issued", purpose="train", **lost),
        # The first Issued of an id counts, and so does one Abandoned.
        made(topics.EPISODES, kind="issued", purpose="train", **lost),
        made(topics.EPISODES, kind="abandoned", abandon_reason="poisoned_task", **lost),
    )  # fmt: skip
    assert rows(tables, "task_outcomes") == [
        ("t0", "train", "success", 2),
        ("t1", "train", "open", 1),
        ("t1", "train", "success", 1),
        ("t2", "evaluate", "success", 1),
        ("t3", "train", "abandoned", 1),
    ]
    issued = tables.one("SELECT n FROM trajectory_funnel WHERE stage = 'issued'")["n"]
    assert sum(row[-1] for row in rows(tables, "task_outcomes")) == issued == 6
    ended = sum(row["n"] for row in tables.ask("SELECT n FROM episode_outcomes"))
    assert ended == sum(
        row["n"] for row in tables.ask("SELECT n FROM trajectory_funnel WHERE stage = 'assembled'")
    )


def test_every_column_reads_what_a_learner_calls_so(tables: Tables, tmp_path: Path) -> None:
    """A name that the learner does not write would be a 0 and no error."""
    world = LearnerWorld(tmp_path / "learner", steps=3)
    world.admit(3 * BATCH // GROUP)
    asyncio.run(world.finish())
    phases = {name for one in world.events("step") for name in one.phases_us}
    assert phases >= {"wait_batch", "checkpoint", "start"}, "what the waits rest on"
    step = world.events("step")[-1]
    written = set(step.metrics)
    (seen,) = {bucket(member.lag_steps, LAG_BUCKETS) for member in step.trained}
    assert written >= {*MEASURES.values(), *(name.format(seen) for name in BY_LAG.values())}

    buckets = [bucket(lag, LAG_BUCKETS) for lag in (*LAG_BUCKETS, 99)]
    names = sorted(written | {name.format(one) for name in BY_LAG.values() for one in buckets})
    metrics = {name: float(place) for place, name in enumerate(names, 1)}
    mine = dataclasses.replace(step, run_id=RunId("learner-run"), metrics=metrics)
    add(tables, topics.LEARNER_STEPS, mine)
    row = tables.one("SELECT * FROM learning_by_step WHERE run_id = 'learner-run'")
    assert {column: row[column] for column in MEASURES} == {
        column: metrics[name] for column, name in MEASURES.items()
    }
    by_lag = tables.ask("SELECT * FROM ratio_by_lag_bucket WHERE run_id = 'learner-run'")
    assert {one["bucket"]: {column: one[column] for column in BY_LAG} for one in by_lag} == {
        one: {column: metrics[name.format(one)] for column, name in BY_LAG.items()}
        for one in buckets
    }


def member(place: int, **fields: Any) -> dict[str, Any]:
    """Return a trained trajectory whose measures are multiples of its place."""
    whole = {
        "partition": 0, "offset": place, "trajectory_offset": place, "weight": 1.0,
        "first_token_age_ms": 0, "action_tokens": 1, "kept_tokens": 1, "masked_low": 0,
        "masked_high": 0, "masked_other": {}, "advantage": 0.0, "repeat": 1,
    }  # fmt: skip
    measured = {
        "lag_steps": place, "lag_s": 2.0 * place, "kl": 3.0 * place, "age_ms": 4_000 * place,
        "reward": float(place),
    }  # fmt: skip
    names = {"episode_id": f"long.0.{place}", "group_id": "long.0.g", "environment": "counter"}
    return whole | measured | names | fields


def test_a_number_that_is_not_finite_is_in_no_mean_and_no_percentile(tables: Tables) -> None:
    bad = {"lag_s": float("inf"), "kl": float("nan"), "reward": float("-inf")}
    members = [*(member(9) for _ in range(4)), member(9, episode_id="long.0.bad", **bad)]
    step = made(topics.LEARNER_STEPS, run_id="long", kind="step", epoch=1, number=1, ordinal=1,
                trained=members)  # fmt: skip
    add(tables, topics.LEARNER_STEPS, step)
    judged = [
        dataclasses.replace(one, run_id="long", reward=reward)
        for one, reward in zip(trajectories(), (1.0, float("nan"), 1.0, float("inf")), strict=True)
    ]
    add(tables, topics.TRAJECTORIES, *judged)

    def told(columns: str, view: str) -> list[Any]:
        return list(tables.one(f"SELECT {columns} FROM {view} WHERE run_id = 'long'").values())

    assert told("s_p50, s_p99, s_max, kl_p99, kl_max, n", "policy_lag_by_step") == [
        18.0, 18.0, 18.0, 27.0, 27.0, 5,
    ]  # fmt: skip
    assert told("kl_p99, kl_max, reward_mean, n", "policy_lag_by_bucket") == [27.0, 27.0, 9.0, 5]
    assert told("mean, p95, most, n", "reward_by_step") == [9.0, 9.0, 9.0, 4]
    assert told("sum(h.n) AS n", "reward_histogram AS h") == [2]
    assert told("reward_mean, n", "evaluation_by_version") == [None, 1]
    for quantity, n in (("policy_lag_s", 4), ("policy_lag_kl_nats", 4), ("episode_reward", 2)):
        bad_n = 2 if quantity == "episode_reward" else 1
        assert told("n, bad", quantity) == [n, bad_n], quantity


def test_each_percentile_of_an_update_stands_under_its_own_name(tables: Tables) -> None:
    steps = [
        made(topics.LEARNER_STEPS, run_id="long", kind="step", epoch=1, number=n, ordinal=n,
             trained=[member(place) for place in range(1, 201)] if n == 1 else (),
             phases_us={"train": 5_000 * n})
        for n in range(1, 201)
    ]  # fmt: skip
    add(tables, topics.LEARNER_STEPS, *steps)
    points = [made(topics.METRICS, run_id="long", name="x_s", value=6.0 * n) for n in range(1, 201)]
    add(tables, topics.METRICS, *points)
    tables.roll()

    def require(view: str, unit: float, cuts: str = "", where: str = "1") -> None:
        names = [f"{cuts}{cut}" for cut in ("p50", "p95", "p99", "max")]
        asked = f"SELECT {', '.join(names)} FROM {view} WHERE run_id = 'long' AND {where}"
        told = [value / unit for value in tables.one(asked).values()]
        assert told == [pytest.approx(at, abs=1) for at in (100, 190, 198, 200)], (view, cuts)

    for cuts, unit in (("steps_", 1.0), ("s_", 2.0), ("kl_", 3.0), ("age_s_", 4.0)):
        require("policy_lag_by_step", unit, cuts)
    require("learner_phase_ms", 5.0, where="phase = 'train'")
    require("metric_quantiles", 6.0)
    spread = tables.one("SELECT p05, p50, p95, least, most FROM reward_by_step "
                        "WHERE run_id = 'long'")  # fmt: skip
    assert list(spread.values()) == [pytest.approx(at, abs=1) for at in (10, 100, 190, 1, 200)]
    by_lag = tables.one("SELECT kl_p50, kl_p95, kl_p99, kl_max FROM policy_lag_by_bucket "
                        "WHERE run_id = 'long' AND bucket = 'gt_8'")  # fmt: skip
    assert [kl / 3 for kl in by_lag.values()] == [
        pytest.approx(at, abs=1) for at in (104, 190, 198, 200)
    ]
