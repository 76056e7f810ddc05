"""Views of what happened, against a small run worked out by hand, and against that run after a
restore, failures and retries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.cli.top import look
from schemas import topics
from schemas.enums import VerdictCode
from tests.support import small_run
from tests.support.small_run import RUN, fill, made
from tests.support.table_process import Tables
from verifier.core.verdicts import Judged, Verdict, decide

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

STEP_S = 18
"""From the start of the learner to its first step, and from a step to the next. Unit: s."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Tables that hold the small run, and are only read."""
    tables = Tables(tmp_path_factory.mktemp("by-hand"))
    fill(tables)
    tables.roll()
    yield tables
    tables.close()


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    """Tables that hold the small run, to be written on."""
    one = Tables(tmp_path)
    fill(one)
    yield one
    one.close()


def rows(tables: Tables, view: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in tables.ask(f"SELECT * EXCEPT run_id FROM {view} ORDER BY ALL")
    ]


def add(tables: Tables, topic: topics.Topic[Any], at_s: float, *records: Any) -> None:
    tables.add(topic, records, at_ms=[round(1000 * (small_run.T0 + at_s))] * len(records))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (
            "trajectory_funnel",
            [
                (1, "issued", "", 5), (3, "ended", "policy_stop", 4), (4, "judged", "correct", 4),
                (5, "assembled", "success", 4), (6, "admitted", "", 2), (7, "dropped", "lag", 1),
                (9, "trained", "", 2),
            ],
        ),
        (
            "token_funnel",
            [
                (1, "sampled", "", 200), (2, "prefilled", "", 5 * 4), (3, "reused", "", 5 * 6),
                (4, "assembled", "", 40 + 55 + 30 + 50), (5, "superseded", "", 5),
                (7, "masked", "dis_high", 4), (7, "masked", "dis_low", 2), (8, "trained", "", 89),
            ],
        ),
        (
            "learner_phase_ms",
            [("record", *[2_000.0] * 5, 1), ("train", *[6_000.0] * 5, 1),
             ("wait_batch", *[10_000.0] * 5, 1)],
        ),
        ("reward_histogram", [("counter", "evaluate", 1.0, 1), ("counter", "train", 1.0, 3)]),
        ("reward_components_by_name", [("right", 1.0, 0.0, 1.0, 1.0, 4)]),
        (
            "episode_outcomes",
            [("counter", "evaluate", "success", 1, 50, 1, 0, 0.0),
             ("counter", "train", "success", 3, 40 + 55 + 30, 3, 0, 0.0)],
        ),
        ("doubtful_rows", [("not_finite", "writer-0", 1)]),
        ("tool_outcomes", [("add", "ok", 5, 0)]),
        ("steps_counted", [(1, 1)]),
    ],
)  # fmt: skip
def test_a_view_tells_what_happened(
    small: Tables, view: str, expected: list[tuple[Any, ...]]
) -> None:
    assert rows(small, view) == expected


@pytest.mark.parametrize(
    ("name", "p50", "most", "n"),
    [
        ("ttft_ms", 300.0, 300.0, 5),
        ("inter_token_ms", 10.0, 10.0, 5),
        ("commit_latency_ms", 10.0, 10.0, 15),
        ("exposure_wait_ms", 2.5, 3.0, 2),
        ("kv_reuse_ratio", 0.6, 0.6, 5),
        ("policy_lag_steps", 0.5, 1.0, 2),
        ("policy_lag_s", 1.0, 2.0, 2),
        ("policy_lag_kl_nats", 0.005, 0.01, 2),
        ("verdict_wait_ms", 500.0, 500.0, 4),
        ("assembly_wait_ms", 200.0, 200.0, 4),
        ("learner_step_ms", 18_000.0, 18_000.0, 1),
        ("learner_busy_ms", 8_000.0, 8_000.0, 1),
        ("buffer_age_s", 1.0, 1.0, 2),
        ("first_token_age_s", 5.0, 5.0, 2),
        ("gate_lag_steps", 0.0, 9.0, 3),
        ("gate_age_s", 0.9, 0.9, 3),
        ("commit_size_tokens", 10.0, 50.0, 10),
        ("gateway_overhead_ms", 0.5, 0.5, 1),
        ("queue_wait_ms", 10.0, 10.0, 4),
        ("environment_reset_ms", 100.0, 100.0, 4),
        ("environment_step_ms", 200.0, 200.0, 4),
        ("environment_turn_ms", 250.0, 250.0, 1),
        ("tool_call_ms", 20.0, 20.0, 5),
        ("verifier_ms", 400.0, 400.0, 4),
        ("verify_queue_ms", 100.0, 100.0, 4),
        ("episode_s", 4.5, 7.0, 4),
        ("episode_size_tokens", 45.0, 55.0, 4),
        ("episode_length_turns", 1.0, 1.0, 4),
        ("episode_reward", 1.0, 1.0, 4),
        ("refresh_fetch_ms", 50.0, 50.0, 2),
        ("refresh_pause_ms", 2_000.0, 2_000.0, 1),
        ("refresh_load_ms", 1_500.0, 1_500.0, 1),
    ],
)
def test_a_quantity_is_what_its_definition_says(
    small: Tables, name: str, p50: float, most: float, n: int
) -> None:
    row = small.one(f"SELECT p50, max, n FROM {name}")
    assert (row["p50"], row["max"], row["n"]) == (pytest.approx(p50), pytest.approx(most), n)


def test_quantities_are_cut_by_version_worker_environment_and_minute(small: Tables) -> None:
    by = "SELECT {0}, n FROM quantities_by_{1} WHERE quantity = 'ttft_ms' ORDER BY {0}"
    assert small.ask(by.format("number", "version")) == [{"number": 0, "n": 5}]
    assert small.ask(by.format("worker", "worker")) == [
        {"worker": "inference-0", "n": 3},
        {"worker": "inference-1", "n": 2},
    ]
    assert small.ask(by.format("environment", "environment")) == [
        {"environment": "counter", "n": 5}
    ]
    assert sum(row["n"] for row in small.ask(by.format("t", "minute"))) == 5


def test_a_number_that_is_not_finite_is_counted_apart(small: Tables) -> None:
    row = small.one("SELECT n, bad, max FROM exposure_wait_ms")
    assert row == {"n": 2, "bad": 1, "max": 3.0}


def test_held_out_tasks_are_told_by_the_version_that_answered(small: Tables) -> None:
    row = small.one("SELECT environment, purpose, successes, n, success_ratio, reward_mean "
                    "FROM evaluation_by_version")  # fmt: skip
    assert tuple(row.values()) == ("counter", "evaluate", 1, 1, 1.0, 1.0)


def again(epoch: int, at_s: float) -> tuple[Any, Any]:
    """Return what a learner writes that was restored to before the first step and makes it anew."""
    (step,) = [
        record
        for topic, _, record in small_run.rows()
        if topic is topics.LEARNER_STEPS and record.kind == "step"
    ]
    at_us = round(1_000_000 * (small_run.T0 + at_s))
    return (
        made(topics.LEARNER_STEPS, kind="epoch_started", epoch=epoch, learner_id="learner-0"),
        dataclasses.replace(step, epoch=epoch, at_us=at_us),
    )


def test_what_a_restore_rolled_back_is_not_trained_twice(tables: Tables) -> None:
    before = tables.one("SELECT trained_tokens, trained_trajectories FROM throughput")
    by_lag = rows(tables, "policy_lag_by_bucket")
    add(tables, topics.LEARNER_STEPS, 40, *again(2, 40))
    tables.roll()
    assert rows(tables, "policy_lag_by_bucket") == by_lag
    flow = tables.one("SELECT * FROM throughput")
    assert {name: flow[name] for name in before} == before
    accounted = tables.one("SELECT sum(tokens) AS n FROM token_accounts WHERE outcome = 'trained'")
    assert flow["trained_tokens"] == accounted["n"] == 89
    # The time that it took passed all the same.
    assert flow["wall_s"] == 40.0
    assert flow["effective_tokens_per_s"] == pytest.approx(89 / 40)
    by_minute = tables.one(
        "SELECT sum(trained_tokens) AS tokens, sum(trained_trajectories) AS trajectories "
        "FROM throughput_by_minute"
    )
    assert by_minute == {"tokens": 89, "trajectories": 2}
    assert rows(tables, "steps_counted") == [(1, 2)]


def test_what_was_measured_on_no_token_is_not_zero(tables: Tables) -> None:
    measures = "kl_nats, entropy_nats, gate_fraction_ratio, ratio_p50, ratio_p95, ratio_p99"
    names = ("kl_nats", "entropy_nats", "gate_fraction_ratio", "ratio_p50_ratio")
    step = made(
        topics.LEARNER_STEPS, kind="step", epoch=1, number=2, ordinal=2, learner_id="learner-0",
        metrics={"measured_tokens": 0.0} | dict.fromkeys(names, 0.0),
    )  # fmt: skip
    add(tables, topics.LEARNER_STEPS, 60, step)
    one = tables.one(f"SELECT {measures} FROM learning_by_step WHERE ordinal = 2")
    assert set(one.values()) == {None}
    assert tables.one("SELECT kl_nats FROM learning_by_step WHERE ordinal = 1") == {
        "kl_nats": 0.005
    }


def test_failures_lower_the_effective_rate_and_leave_what_was_sampled(tables: Tables) -> None:
    tables.roll()
    before = tables.one("SELECT * FROM throughput")
    names = {"episode_id": f"{RUN}.3.0", "group_id": f"{RUN}.3.g"}
    own = names | {"purpose": "train", "task_id": "t3"}
    add(
        tables, topics.EPISODES, 9,
        made(topics.EPISODES, kind="issued", **own),
        made(topics.EPISODES, kind="leased", **own, attempt=1, worker_id="environment-0"),
        made(topics.EPISODES, kind="ended", **own, attempt=1, stop_cause="environment_error"),
        made(topics.EPISODES, kind="abandoned", **own, abandon_reason="retries_exhausted"),
    )  # fmt: skip
    add(
        tables, topics.TOKENS, 9,
        made(topics.TOKENS, kind="action", **names, attempt=1, fence_number=1, count=100,
             finish_reason="stop"),
    )  # fmt: skip
    tables.roll()
    after = tables.one("SELECT * FROM throughput")
    assert after["raw_tokens_per_s"] == pytest.approx(before["raw_tokens_per_s"] * 300 / 200)
    for name in ("effective_tokens_per_s", "effective_trajectories_per_s"):
        assert after[name] == before[name]
    share = "effective_tokens_per_s / raw_tokens_per_s AS share FROM throughput"
    assert tables.one(f"SELECT {share}")["share"] == pytest.approx(89 / 300)
    assert ("abandoned", "retries_exhausted", 1) in rows(tables, "trajectory_accounts")
    assert ("abandoned", "retries_exhausted", 100) in rows(tables, "token_accounts")


def test_a_reward_can_be_worked_out_again_from_its_components_and_their_weights(
    tables: Tables,
) -> None:
    parts, weights = {"sum": 0.1, "cell": 1 / 3, "short": -0.7}, {"sum": 0.3, "cell": 2.0}
    judged = Judged(code=VerdictCode.WRONG_ANSWER, components=parts, weights=weights)
    decided = decide([judged], tries_max=1, is_late=False)
    assert isinstance(decided, Verdict)
    add(
        tables, topics.VERDICTS, 9,
        made(topics.VERDICTS, episode_id=f"{RUN}.4.0", code=decided.code, reward=decided.reward,
             components=decided.components, component_weights=decided.weights),
    )  # fmt: skip
    rewards = tables.ask(
        "SELECT any(reward) AS reward, sum(value * weight) AS again, count() AS n "
        f"FROM reward_components WHERE episode_id = '{RUN}.4.0' GROUP BY episode_id"
    )
    by_hand = 0.1 * 0.3 + 2 / 3 - 0.7
    assert rewards == [
        {"reward": pytest.approx(by_hand, abs=1e-9), "again": pytest.approx(by_hand, abs=1e-9),
         "n": 3}
    ]  # fmt: skip


def test_retries_are_counted_by_cause_whether_or_not_anyone_was_left_to_say_so(
    tables: Tables,
) -> None:
    leases = [
        (small_run.episode(0), 2, {"lease_expired": 1}),
        # Each Leased tells all failures of its episode so far.
        (small_run.episode(0), 3, {"lease_expired": 1, "environment_error": 1}),
        (small_run.episode(1), 2, {"lease_expired": 1}),
    ]
    records = [
        made(topics.EPISODES, kind="leased", episode_id=episode, attempt=attempt,
             after_failures=failures, worker_id="environment-0")
        for episode, attempt, failures in leases
    ]  # fmt: skip
    # A Leased that stands twice in the log is one.
    add(tables, topics.EPISODES, 10, *records, records[-1])
    assert rows(tables, "retries_by_cause") == [("environment_error", 1), ("lease_expired", 2)]


def test_a_learner_that_waits_while_no_episode_runs_is_held_back(tables: Tables) -> None:
    """Attempts ran until 7 s; the next begins at 30, and the learner waits from 20 to 36."""
    ended = made(topics.EPISODES, kind="progress", episode_id=small_run.episode(3), attempt=1)
    add(tables, topics.EPISODES, 7, ended)
    lease = made(topics.EPISODES, kind="leased", episode_id=f"{RUN}.9.0", attempt=1,
                 worker_id="environment-0")  # fmt: skip
    add(tables, topics.EPISODES, 30, lease)
    at_s = 2 + 2 * STEP_S
    step = made(
        topics.LEARNER_STEPS, kind="step", epoch=1, number=2, ordinal=2, learner_id="learner-0",
        at_us=round(1_000_000 * (small_run.T0 + at_s)),
        phases_us={"wait_batch": 16 * 10**6, "train": 2 * 10**6},
    )  # fmt: skip
    add(tables, topics.LEARNER_STEPS, at_s, step)
    tables.roll()
    spent = {
        row["cause"]: row["spent_s"]
        for row in tables.ask("SELECT cause, spent_s FROM wait_attribution WHERE ordinal = 2")
    }
    # From 20, where the wait begins, to 30, where an episode runs again.
    assert spent["backpressure"] == pytest.approx(10.0)
    assert spent["batch_not_full"] + spent["commit"] == pytest.approx(6.0)
    assert spent["train"] == 2.0
    assert tables.one("SELECT * FROM wait_check")["attributed_ratio"] == pytest.approx(1.0)


def test_time_that_no_phase_tells_of_shows_beside_the_wall_clock(tables: Tables) -> None:
    at_s = 2 + 2 * STEP_S
    step = made(
        topics.LEARNER_STEPS, kind="step", epoch=1, number=2, ordinal=2, learner_id="learner-0",
        at_us=round(1_000_000 * (small_run.T0 + at_s)), phases_us={"train": 9 * 10**6},
    )  # fmt: skip
    add(tables, topics.LEARNER_STEPS, at_s, step)
    check = tables.one("SELECT * FROM wait_check")
    assert (check["attributed_s"], check["wall_s"]) == pytest.approx((18 + 9, 36.0))


def test_top_tells_of_one_run_where_tables_hold_several(tables: Tables) -> None:
    def seen() -> dict[str, Any]:
        tables.roll()
        return look(lambda statement: tables.ask(statement, {"run_id": RUN}))

    before = seen()
    assert all(before[name] for name in ("learning", "throughput", "quantities", "workers"))
    other = [
        (topic, dataclasses.replace(record, run_id="run-2"))
        for topic, _, record in small_run.rows()
    ]
    letter = made(topics.DEAD_LETTERS, run_id="run-2", origin_topic="tokens.v1",
                  error_class="PoisonRecordError", error="no schema")  # fmt: skip
    for topic, record in (*other, (topics.DEAD_LETTERS, letter)):
        add(tables, topic, 100, record)
    assert seen() == before


def test_top_counts_a_record_once_however_many_could_not_take_it(tables: Tables) -> None:
    for consumer, offset in (("gate", 7), ("sink", 7), ("sink", 8)):
        letter = made(
            topics.DEAD_LETTERS, origin_topic="tokens.v1", origin_offset=offset,
            error_class="PoisonRecordError", error="no schema", consumer=consumer,
        )  # fmt: skip
        add(tables, topics.DEAD_LETTERS, 100, letter)
    seen = look(lambda statement: tables.ask(statement, {"run_id": RUN}))
    assert seen["dead_letters"] == 2
    assert int(tables.one("SELECT sum(n) AS n FROM dead_letters_by_error")["n"]) == 3
