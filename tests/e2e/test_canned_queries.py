"""Every canned query against real tables: by hand, and as Grafana would ask it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.tables.canned import Canned, Shape, by_hand, in_grafana
from infra.tables.questions import BY_NAME, QUESTIONS
from schemas import topics
from schemas.errors import RejectedError
from schemas.topics import Topic
from tests.support import small_run
from tests.support.grafana_plugin import expand
from tests.support.small_run import made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

VALUES = {"run_id": small_run.RUN, "quantity": "ttft_ms"}
RANGE = {"from_s": small_run.T0 - 3600, "to_s": small_run.T0 + 3600, "interval_s": 60}
EMPTY = {"sink_positions"}
"""What no record fills, for it is the sink's own."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Tables that hold the small run, with a little of what goes wrong."""
    one = Tables(tmp_path_factory.mktemp("canned"))
    small_run.fill(one, more=((topic, 9.0, record) for topic, record in _wrong()))
    one.roll()
    yield one
    one.close()


def _wrong() -> Iterator[tuple[Topic[Any], Any]]:
    """Yield what the small run has none of."""
    for name in ("buffer_age_p99_s", "policy_lag_p99_steps", "trajectories"):
        yield topics.METRICS, made(topics.METRICS, name=f"waiting_{name}", value=3.0)
    yield from (
        (topics.REFRESHES, made(topics.REFRESHES, kind="failed", worker_id="inference-1",
                                epoch=1, number=1, detail="digest differs")),
        (topics.DEAD_LETTERS, made(topics.DEAD_LETTERS, origin_topic="tokens.v1",
                                   error_class="PoisonRecordError", error="no schema")),
        (topics.EPISODES, made(topics.EPISODES, kind="ended", attempt=1, episode_id="run-1.9.0",
                               group_id="run-1.9.g", stop_cause="environment_error")),
        (topics.EPISODES, made(topics.EPISODES, kind="leased", attempt=2, episode_id="run-1.9.0",
                               group_id="run-1.9.g", worker_id="environment-0",
                               after_failures={"environment_error": 1})),
        (topics.VERIFY_REQUESTS, made(topics.VERIFY_REQUESTS, episode_id="run-1.9.0",
                                      group_id="run-1.9.g")),
    )  # fmt: skip


def asked(one: Canned, *, run: str = small_run.RUN) -> str:
    """The statement that reaches ClickHouse from a panel."""
    text = in_grafana(one, {"quantity": VALUES["quantity"]})
    return expand(text, values={"run_id": run}, **RANGE)


def columns(tables: Tables, statement: str) -> list[tuple[str, str]]:
    return tables.described(statement)


def test_every_question_is_answered_by_hand_and_in_grafana_alike(tables: Tables) -> None:
    for one in QUESTIONS:
        values = {name: VALUES[name] for name in one.parameters}
        by_itself = tables.ask(by_hand(one), values)
        in_range = tables.ask(asked(one))
        assert len(by_itself) == len(in_range), one.name
        assert bool(in_range) is (one.name not in EMPTY), one.name


def test_another_run_has_no_part_in_an_answer(tables: Tables) -> None:
    for one in QUESTIONS:
        if "run_id" not in one.parameters:
            continue
        rows = tables.ask(asked(one, run="run-2"))
        # A statement without GROUP BY answers one row of nothing.
        assert rows == [] or (one.name in {"unjudged", "run_progress"} and len(rows) == 1), one.name


def test_what_is_drawn_over_time_is_words_then_figures_in_order(tables: Tables) -> None:
    for one in QUESTIONS:
        if one.shape is not Shape.OVER_TIME:
            continue
        (first, moment), *rest = columns(tables, asked(one))
        assert first == "time", one.name
        assert moment.startswith("DateTime"), one.name
        words = ["String" in kind for _, kind in rest]
        assert words == sorted(words, reverse=True), one.name
        assert not all(words), one.name
        times = [str(row["time"]) for row in tables.ask(asked(one))]
        assert times == sorted(times), one.name


def test_what_is_drawn_by_update_is_numbers_alone(tables: Tables) -> None:
    for one in QUESTIONS:
        if one.shape is Shape.BY_STEP:
            (first, _), *rest = columns(tables, asked(one))
            assert first == "ordinal", one.name
            assert all("Int" in kind or "Float" in kind for _, kind in rest), one.name


def test_answers_are_those_of_the_small_run(tables: Tables) -> None:
    accounts = {row["what"]: row["n"] for row in tables.ask(asked(BY_NAME["trajectory_accounts"]))}
    assert accounts == {"trained": 2, "dropped: lag": 1, "evaluated": 1, "pending": 1}
    (lag,) = tables.ask(asked(BY_NAME["lag_steps_by_step"]))
    assert (lag["ordinal"], lag["max"], lag["n"]) == (1, 1, 2)
    (first, *_) = tables.ask(asked(BY_NAME["quantity_over_time"]))
    assert first["n"] == 5
    assert first["p50"] == pytest.approx(300, rel=0.01)
    waits = {
        row["what"]: row["spent_s"] for row in tables.ask(asked(BY_NAME["where_the_time_went"]))
    }
    assert waits["train"] == small_run.TRAIN_S
    rates = tables.ask(asked(BY_NAME["throughput_over_time"]))
    assert sum(row["sampled"] for row in rates) * 60 == 200


def test_an_update_that_was_rolled_back_is_not_drawn(tables: Tables) -> None:
    step = made(topics.LEARNER_STEPS, kind="step", epoch=0, number=1, ordinal=1, loss_name="dis",
                losses={"dis": 9.0}, learner_id="learner-0")  # fmt: skip
    tables.add(topics.LEARNER_STEPS, [step], at_ms=[(small_run.T0 + 3) * 1000], partition=1)
    (row,) = tables.ask(asked(BY_NAME["loss_by_step"]))
    assert row == {"ordinal": 1, "loss": 0.5}


def test_the_table_of_questions_says_what_the_code_says(tables: Tables) -> None:
    rows = {row["name"]: row for row in tables.ask("SELECT * FROM canned_queries")}
    assert list(rows) == [one.name for one in QUESTIONS]
    for one in QUESTIONS:
        row = rows[one.name]
        assert (row["sql"], row["grafana_sql"]) == (by_hand(one), one.sql)
        assert row["parameters"] == ", ".join(one.parameters)
        assert (row["answers"], row["unit"], row["board"]) == (one.answers, one.unit, one.board)


def test_a_question_about_a_column_that_is_not_there_fails(tables: Tables) -> None:
    with pytest.raises(RejectedError, match="surprise_p50"):
        tables.ask(asked(BY_NAME["lag_steps_by_step"]).replace("steps_p50", "surprise_p50"))
