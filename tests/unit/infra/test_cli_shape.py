"""What commands have in common: JSON where data is printed, a dry run where something changes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from infra.cli import bench, top
from infra.cli.app import COMMANDS, sluice
from infra.cli.output import show_table
from infra.run.bus import find_bus
from infra.run.folder import RunFolder, RunStart, make
from infra.run.roles import ROLES
from schemas.errors import SettingsError
from schemas.ids import RunId
from schemas.topics import ALL

ROOT = Path(__file__).resolve().parents[3]
TELLS_NOTHING = {"worker"}
"""Has no data of its own to print."""
CHANGES = {
    "up", "down", "run", "report", "chaos", "audit", "topics create", "topics trim",
    "dead-letters retry",
}  # fmt: skip


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with the words that call it."""
    root = click.Context(sluice)
    for name in COMMANDS:
        one = sluice.get_command(root, name)
        assert one is not None
        if isinstance(one, click.Group):
            yield from ((f"{name} {inner}", command) for inner, command in one.commands.items())
        else:
            yield name, one


def call(*words: str) -> Any:
    return CliRunner().invoke(sluice, list(words))


def test_every_command_that_prints_data_can_print_it_as_json() -> None:
    lacking = {name for name, one in commands() if not any(p.name == "as_json" for p in one.params)}
    assert lacking == TELLS_NOTHING


def test_the_json_of_every_command_is_described() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text().partition("## JSON")[2]
    described = {word for row in page.splitlines() for word in re.findall(r"`([^`]+)`", row[:40])}
    assert {name for name, _ in commands()} - TELLS_NOTHING <= described


def test_every_command_that_changes_something_can_say_first_what() -> None:
    assert {n for n, one in commands() if any(p.name == "dry_run" for p in one.params)} == CHANGES


def test_an_option_that_several_commands_share_is_the_same_in_all() -> None:
    said: dict[str, set[tuple[Any, ...]]] = {}
    for _, one in commands():
        for p in one.params:
            if isinstance(p, click.Option) and p.opts[0] in ("--runs", "--set", "--json"):
                said.setdefault(p.opts[0], set()).add((p.name, p.help, str(p.default)))
    assert {name: len(ways) for name, ways in said.items()} == {
        "--runs": 1,
        "--set": 1,
        "--json": 1,
    }


def test_a_table_is_rounded_for_people_and_takes_any_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_table(("p99", "error", "quantiles"), [(1.730000000000004, "no [/such] tag", [0.1 + 0.2])])
    shown = capsys.readouterr().out
    assert "1.73 " in shown
    assert "1.7300" not in shown
    assert "no [/such] tag" in shown
    assert "[0.3]" in shown


def test_what_people_see_rounded_is_exact_in_json() -> None:
    exact = 1.730000000000004

    def asking(statement: str) -> list[dict[str, Any]]:
        if "FROM quantities" not in statement:
            return []
        return [
            {"quantity": "lag", "p50": 1, "p95": 2, "p99": exact, "max": 3, "n": "12345678901234"}
        ]

    assert top.look(asking)["quantities"][0]["p99"] == exact
    assert top.look(asking)["dead_letters"] == 0
    assert top._plain(exact) == "1.73"


def test_bench_without_a_name_lists_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} was run")

    monkeypatch.setattr(bench, "alone", refuse)
    listed = CliRunner().invoke(bench.bench, [])
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in (*bench.BENCHES, "all"))
    assert f"about {sum(one.minutes for one in bench.BENCHES.values()):.0f} min" in listed.stdout
    told = json.loads(CliRunner().invoke(bench.bench, ["--json"]).stdout)
    assert [one["name"] for one in told] == list(bench.BENCHES)


def test_bench_says_what_it_runs_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(module: str) -> list[dict[str, Any]]:
        ran.append(module)
        return []

    monkeypatch.setattr(bench, "alone", run)
    result = CliRunner().invoke(bench.bench, ["all"])
    assert ran == [one.module for one in bench.BENCHES.values()]
    assert f"measuring {', '.join(bench.BENCHES)}: about" in result.stderr


def test_a_measurement_runs_alone_and_what_it_prints_is_no_part_of_the_table(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert bench.alone("tests.support.loud_measurement") == [{"name": "loud", "value": 1}]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "noise" in captured.err
    with pytest.raises(subprocess.SubprocessError):
        bench.alone("tests.support.no_measurement")


@pytest.mark.parametrize("dry_run", [True, False])
def test_topics_create_changes_nothing_in_a_dry_run(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra import registry, topic_admin

    done: list[str] = []
    monkeypatch.setattr(topic_admin, "missing_topics", lambda *_, **__: ["sluice.tasks.v1"])
    monkeypatch.setattr(registry, "unregistered", lambda *_, **__: ["sluice.tasks.v1-value"])

    def create(*_: Any, **__: Any) -> list[str]:
        done.append("topics")
        return ["sluice.tasks.v1"]

    monkeypatch.setattr(topic_admin, "create_topics", create)
    monkeypatch.setattr(registry, "register_all", lambda *_, **__: done.append("schemas"))
    words = ["topics", "create", "--bootstrap", "b:1", "--registry", "http://r", "--json"]
    result = call(*words, *(["--dry-run"] if dry_run else []))
    assert json.loads(result.stdout) == {
        "dry_run": dry_run, "created": ["sluice.tasks.v1"], "registered": ["sluice.tasks.v1-value"],
    }  # fmt: skip
    assert done == ([] if dry_run else ["topics", "schemas"])
    assert f"1 {'would be ' if dry_run else ''}created of {len(ALL)}" in result.stderr


def test_a_chaos_dry_run_prints_the_hits_of_its_seed_and_makes_nothing(tmp_path: Path) -> None:
    words = ["chaos", str(ROOT / "examples" / "chaos.toml"), "--runs", str(tmp_path), "--dry-run"]
    plans = [
        json.loads(call(*words, "--json", "--kills", "7", "--seed", seed).stdout)
        for seed in ("5", "5", "6")
    ]
    assert [len(plan) for plan in plans] == [7, 7, 7]
    assert plans[0] == plans[1] != plans[2]
    assert not list(tmp_path.iterdir())
    assert plans[0][0]["target"] in call(*words, "--kills", "7", "--seed", "5").stdout


def test_a_chaos_run_of_one_role_hits_only_its_processes(tmp_path: Path) -> None:
    words = ["chaos", str(ROOT / "examples" / "chaos.toml"), "--runs", str(tmp_path), "--dry-run"]
    told = call(
        *words, "--json", "--kills", "30", "--seed", "5", "--role", "lag_age", "--role", "gate"
    )
    assert {one["target"] for one in json.loads(told.stdout)} == {"gate-0", "lag-age-0"}
    for asked, names in (
        (["--role", "lerner"], "no role lerner that can be hit"),
        (["--role", "tracer"], "no role tracer that can be hit"),
        (["--role", "gate", "--act", "edge"], "none of these acts can be done here: edge"),
        (["--act", "engine"], "none of these acts can be done here: engine"),
    ):
        for dry in (words, words[:-1]):
            refused = call(*dry, *asked).exception
            assert isinstance(refused, SettingsError), refused
            assert names in str(refused)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_a_resume_prints_the_settings_that_it_would_keep(tmp_path: Path) -> None:
    from infra.settings import assemble
    from tests.unit.infra.test_settings import PLACES, SMALLEST

    start = RunStart(
        run_id=RunId("a1"), bootstrap="b", registry="r", prefix="sluice", starts={}, topic_ids={}
    )
    settings = assemble(SMALLEST, places=PLACES).model_dump(mode="json")
    make(RunFolder(root=tmp_path / "a1"), start, settings)
    told = call("run", "--resume", "last", "--runs", str(tmp_path), "--dry-run")
    assert json.loads(told.stdout)["run"] == settings["run"]
    assert not (tmp_path / "a1" / "conductor.lock").exists()


def test_a_setting_without_a_value_is_refused_in_every_command_that_takes_one() -> None:
    for words in (("run", "x.toml"), ("chaos", "x.toml")):
        told = call(*words, "--set", "run.seed")
        assert (told.exit_code, "expected SECTION.KEY=VALUE" in told.output) == (2, True)
    told = call("run", "--resume", "last", "--set", "run.seed=1")
    assert (told.exit_code, "keeps its settings" in told.output) == (2, True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("audit", "Missing argument 'RUN'"),
        ("report", "Missing argument 'RUN'"),
        ("policies list", "Missing argument 'RUN'"),
        ("dead-letters show 3", "PARTITION:OFFSET"),
        ("dead-letters retry a:b", "PARTITION:OFFSET"),
        ("topics contract --prefix Bad!", "'Bad!'"),
        ("tail tokens --prefix Bad!", "'Bad!'"),
        ("tail tokens --limit -1", "'--limit'"),
        ("topics create --partitions 0", "'--partitions'"),
        ("chaos x.toml --kills 0", "'--kills'"),
        ("chaos x.toml --every 0", "'--every'"),
        ("worker gate --run x --index -1", "'--index'"),
        ("bench nosuch", "known: all, codec"),
        ("aduit last", "Did you mean audit?"),
    ],
)
def test_wrong_use_is_told_before_anything_is_reached(line: str, told: str) -> None:
    result = call(*line.split())
    assert (result.exit_code, told in result.output) == (2, True), result.output


@pytest.mark.parametrize("line", ["replay a.b.c", "tail tokens --episode a.1.x"])
def test_what_is_no_episode_id_is_refused(line: str) -> None:
    error = call(*line.split()).exception
    assert isinstance(error, SettingsError)
    assert "not an episode id" in error.message


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "host:", "host:x", "good:9092,bad:0"])
def test_what_is_no_address_of_a_broker_is_wrong_use_and_not_a_bus_that_is_away(
    address: str,
) -> None:
    with pytest.raises(SettingsError, match="no address of a broker"):
        find_bus(address, "http://r")
    assert find_bus("one:9092, two:9093", "http://r").registry == "http://r"


def test_the_help_of_worker_names_the_roles() -> None:
    told = call("worker", "--help").stdout
    assert all(role in " ".join(told.split()) for role in ROLES)


def test_a_setting_that_is_left_out_is_named_and_nothing_else_is_told(tmp_path: Path) -> None:
    config = tmp_path / "empty.toml"
    config.touch()
    error = call("run", str(config), "--dry-run").exception
    assert isinstance(error, SettingsError)
    assert error.message.splitlines()[1:] == ["  - task_source.streams is required"]
