"""The canned queries as texts: they read, they name their run, and nothing chosen becomes SQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from infra.cli.sql import sql
from infra.docs import ROOT, generate
from infra.run.folder import RunFolder
from infra.tables.canned import Canned, Shape, by_hand, in_grafana, view
from infra.tables.quantities import QUANTITIES
from infra.tables.questions import BY_NAME, QUESTIONS
from schemas.errors import SettingsError
from stream_jobs.core.sink_reading import reading
from stream_jobs.core.sink_statements import parse_migrations
from tests.support.grafana_plugin import expand


def _question(sql: str) -> Canned:
    return Canned(name="q", board="runs", answers="?", unit="s", shape=Shape.ROWS, sql=sql)


def test_no_two_questions_have_one_name() -> None:
    assert len(BY_NAME) == len(QUESTIONS)
    assert not BY_NAME.keys() & {one.name for one in QUANTITIES}


@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: one.name)
def test_a_question_reads_one_run_and_leaves_no_macro_behind(one: Canned) -> None:
    assert reading(by_hand(one)).format is None
    assert "$" not in by_hand(one)
    assert one.answers.endswith(("?", "."))
    assert one.unit
    if one.name != "run_list":
        assert "run_id" in one.parameters
    first = {Shape.OVER_TIME: "time", Shape.BY_STEP: "ordinal"}.get(one.shape)
    if first is not None:
        assert f"ORDER BY {first}" in one.sql


def test_a_name_with_quotes_stays_a_text() -> None:
    fixed = in_grafana(_question("SELECT {quantity:String}"), {"quantity": "o'clock\\"})
    assert fixed == "SELECT 'o\\'clock\\\\'"
    chosen = in_grafana(_question("SELECT {run_id:String}"))
    assert chosen == "SELECT ${run_id:sqlstring}"
    sent = expand(chosen, values={"run_id": "x' OR ''='"}, from_s=0, to_s=1, interval_s=1)
    assert sent == "SELECT 'x'' OR ''''='''"


def test_a_value_that_nobody_gives_is_refused() -> None:
    with pytest.raises(KeyError):
        in_grafana(BY_NAME["quantity_over_time"])


def test_macros_by_hand_mean_the_whole_run_minute_by_minute() -> None:
    one = _question("SELECT $__timeInterval(t), 1 / $__interval_s FROM x WHERE $__timeFilter(t)")
    assert by_hand(one) == "SELECT toStartOfMinute(t), 1 / 60 FROM x WHERE true"


def test_the_view_survives_the_way_that_definitions_are_applied() -> None:
    (one,) = parse_migrations([view(QUESTIONS)]).repeatable
    (statement,) = one.statements
    for question in QUESTIONS:
        assert question.name in statement
    assert statement.count("'over_time'") == sum(q.shape is Shape.OVER_TIME for q in QUESTIONS)


def test_the_definition_on_disk_is_the_one_that_follows() -> None:
    path = ROOT / "infra" / "clickhouse" / "r50_canned.sql"
    assert path.read_text() == generate()[path]


def test_the_command_lists_the_questions_without_a_run() -> None:
    done = CliRunner().invoke(sql, ["--list", "--json"])
    assert done.exit_code == 0
    assert [row["name"] for row in json.loads(done.stdout)] == [one.name for one in QUESTIONS]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["SELECT 1", "--canned", "run_summary"],
        ["--list", "SELECT 1"],
        ["--list", "--quantity", "ttft_ms"],
        ["SELECT 1", "--quantity", "ttft_ms"],
    ],
)
def test_the_command_asks_one_thing(words: list[str]) -> None:
    assert CliRunner().invoke(sql, words).exit_code == 2


def test_the_command_gives_a_canned_query_its_run_and_what_it_asks_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def answer(
        folder: RunFolder, statement: str, form: str, values: dict[str, str]
    ) -> bytes:  # fmt: skip
        del folder, form
        asked.append((statement, values))
        return b'{"meta": [], "data": []}'

    folder = RunFolder(root=tmp_path / "run-7")
    monkeypatch.setattr("infra.cli.sql.find", lambda *_: folder)
    monkeypatch.setattr("infra.cli.sql.ask", answer)
    words = ["--canned", "quantity_over_time"]
    refused = CliRunner().invoke(sql, words)
    assert isinstance(refused.exception, SettingsError)
    assert "--quantity" in refused.exception.hint
    assert CliRunner().invoke(sql, [*words, "--quantity", "ttft_ms"]).exit_code == 0
    mistyped = CliRunner().invoke(sql, [*words, "--quantity", "tft_ms"])
    assert isinstance(mistyped.exception, SettingsError)
    assert "ttft_ms" in mistyped.exception.hint
    aimless = CliRunner().invoke(sql, ["--canned", "run_summary", "--quantity", "ttft_ms"])
    assert aimless.exit_code == 2
    unknown = CliRunner().invoke(sql, ["--canned", "lag_step_by_step"])
    assert isinstance(unknown.exception, SettingsError)
    assert "lag_steps_by_step" in unknown.exception.hint
    assert asked == [
        (by_hand(BY_NAME["quantity_over_time"]), {"run_id": "run-7", "quantity": "ttft_ms"})
    ]
