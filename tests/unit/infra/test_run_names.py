"""One word for one run in every command: folder, id, start of the id, or `last` of --runs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import click
import pytest

from infra.cli.app import COMMANDS, sluice
from infra.run.folder import RunFolder, RunStart, make
from infra.run.naming import HOW, pick
from infra.run.starts import named
from schemas.enums import AbandonReason, ControlKind, EpisodeEventKind
from schemas.errors import SettingsError
from schemas.ids import RunId, WorkerId
from schemas.records.parts import LogEnd
from schemas.records.policy_version import PolicyVersion
from schemas.topics import CONTROL, EPISODES, POLICIES, VERDICTS
from tests.support.fake_rollout import DIGEST, RUN
from tests.unit.infra.test_dead_letters import verdict
from tests.unit.infra.test_letters_cli import Line, refused
from tests.unit.infra.test_trim import control
from tests.unit.stream_jobs.scheduling import issued_event

OTHER = "such-a-run-of-elsewhere"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Line:
    monkeypatch.chdir(tmp_path)
    return Line(monkeypatch)


def folder(name: str, directory: Path) -> None:
    start = RunStart(
        run_id=RunId(name), bootstrap="b", registry="r", prefix="sluice", starts={}, topic_ids={}
    )
    make(RunFolder(root=directory / name), start, {})


def test_a_run_that_is_not_there_is_answered_with_the_nearest_names() -> None:
    known = ["0199aaaa-1111", "0199aaab-2222", "0199bbbb-3333"]
    assert pick("0199bbbb-3333", known, where="here") == "0199bbbb-3333"
    assert pick("0199b", known, where="here") == "0199bbbb-3333"
    assert pick("last", known, where="here") == "0199bbbb-3333"
    with pytest.raises(SettingsError, match=r"did you mean 0199aaab-2222") as near:
        pick("0199aaac-2222", known, where="here")
    assert "no run called '0199aaac-2222' here" in near.value.message
    with pytest.raises(SettingsError, match=r"known: .*0199bbbb-3333 \(newest last\)"):
        pick("nosuch", known, where="here")
    with pytest.raises(SettingsError, match=r"2 runs called '0199aaa' here.*give more"):
        pick("0199aaa", known, where="here")
    for nothing in ("last", "x", ""):
        with pytest.raises(SettingsError):
            pick(nothing, [], where="here")


def test_last_is_the_newest_folder_here_although_the_bus_knows_a_newer_run(
    line: Line, tmp_path: Path
) -> None:
    for run in (RUN, OTHER):
        _publish(line, run)
    folder(RUN, tmp_path / "runs")
    newer = max(RUN, OTHER)
    assert newer == OTHER, "the run of elsewhere must be the newer one for this to say anything"
    for word in ("last", RUN, RUN[:-1], str(tmp_path / "runs" / RUN)):
        (listed,) = line.ask("policies", "list", word, "--json")
        assert listed["run_id"] == RUN
    assert line.ask("policies", "list", OTHER, "--json")[0]["run_id"] == OTHER
    with pytest.raises(SettingsError, match=r"no run under nowhere"):
        named("last", Path("nowhere"))


def _publish(line: Line, run: str) -> None:
    """Let the bus know a run with one version."""
    ends = tuple(
        LogEnd(topic=POLICIES.name, partition=partition, offset=0) for partition in range(2)
    )
    start = replace(control(ControlKind.START, 0, run=run), ends=ends)
    line.office.bus.append(CONTROL, start)
    version = PolicyVersion(
        run_id=RunId(run), epoch=1, number=1, ordinal=1, digest=DIGEST, location="versions/1",
        manifest="the manifest", at_us=1, writer_id=WorkerId("learner-0"),
    )  # fmt: skip
    line.office.bus.append(POLICIES, version)


@pytest.mark.parametrize(
    "words",
    [
        ("tail", "verdicts", "--from-start", "--no-follow", "--run"),
        ("dead-letters", "list", "--run"), ("policies", "list"), ("audit",), ("report",),
        ("dashboard",), ("top", "--once"),
        ("run", "--resume"), ("worker", "gate", "--run"), ("sql", "SELECT 1", "--run"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_that_takes_a_run_refuses_one_that_is_not_there(
    words: tuple[str, ...], line: Line
) -> None:
    line.office.bus.append(CONTROL, control(ControlKind.START, 0))
    for name in ("nosuch", "last"):
        told = refused(line.call(*words, name), code=2)
        assert "no run" in told, told
    assert line.call(*words, "nosuch").stdout == ""


def test_every_command_that_takes_a_run_says_in_its_help_what_names_one(line: Line) -> None:
    root, met = click.Context(sluice), 0
    for name in COMMANDS:
        one = sluice.get_command(root, name)
        for command in one.commands.values() if isinstance(one, click.Group) else (one,):
            assert command is not None
            takes = {p.name for p in command.params if "RUN" in str(p.metavar) or p.name == "run"}
            words = (name,) if command is one else (name, str(command.name))
            if takes:
                met += 1
                text = " ".join(line.call(*words, "--help").stdout.split())
                assert HOW in text, words
                assert "`last` is the newest there" in text, words
    assert met >= 10


def test_tail_shows_the_run_and_refuses_what_no_record_could_fit(line: Line) -> None:
    line.office.bus.append(CONTROL, control(ControlKind.START, 0))
    line.office.bus.append(VERDICTS, verdict(0))
    line.office.bus.append(VERDICTS, verdict(1))
    whole = ("tail", "verdicts", "--from-start", "--no-follow", "--json")
    assert len(line.call(*whole, "--run", RUN).stdout.splitlines()) == 2
    one = line.call(*whole, "--episode", str(verdict(1).episode_id)).stdout
    assert json.loads(one)["record"]["episode_id"] == verdict(1).episode_id
    assert "no episode_id" in refused(line.call("tail", "policies", "--episode", "a.1.0"), code=2)
    assert "not an episode id" in refused(line.call(*whole, "--episode", "nosuch"), code=2)
    assert "no kind" in refused(line.call(*whole, "--kind", "leased"), code=2)
    told = refused(line.call("tail", "episodes", "--kind", "lesed"), code=2)
    assert "leased" in told
    assert "did you mean episodes" in refused(line.call("tail", "episods"), code=2)


def test_tail_lists_the_quarantined_with_their_whole_evidence(line: Line) -> None:
    line.office.bus.append(CONTROL, control(ControlKind.START, 0))
    evidence = "; ".join(f"attempt {n} on environment-{n}: lease_expired" for n in range(9))
    gone = replace(
        issued_event(0), kind=EpisodeEventKind.ABANDONED, detail=evidence,
        abandon_reason=AbandonReason.POISONED_TASK,
    )  # fmt: skip
    for event in (issued_event(0), gone, issued_event(1)):
        line.office.bus.append(EPISODES, event)
    asked = ("tail", "episodes", "--from-start", "--no-follow", "--kind", "abandoned", "--json")
    shown = line.call(*asked, "--run", RUN).stdout.splitlines()
    (told,) = [json.loads(one)["record"] for one in shown]
    assert (told["episode_id"], told["abandon_reason"]) == (gone.episode_id, "poisoned_task")
    assert told["detail"] == evidence


def test_letters_of_a_run_are_those_that_it_met(line: Line) -> None:
    asyncio.run(line.office.poison(VERDICTS, verdict()))
    for run in (RUN, OTHER):
        line.office.bus.append(CONTROL, control(ControlKind.START, 0, run=run))
    assert len(line.ask("dead-letters", "list", "--run", RUN, "--json")) == 1
    assert line.ask("dead-letters", "list", "--run", OTHER, "--json") == []


def test_one_version_is_shown_for_people_and_as_json(line: Line) -> None:
    _publish(line, RUN)
    assert line.ask("policies", "show", RUN, "1/1", "--json")["manifest"] == "the manifest"
    plain = line.call("policies", "show", RUN, "1/1").stdout
    assert "the manifest" in plain
    assert not plain.startswith("{")
    assert "known: 1/1" in refused(line.call("policies", "show", RUN, "1/2"), code=2)
    assert "not a policy version" in refused(line.call("policies", "show", RUN, "latest"), code=2)
