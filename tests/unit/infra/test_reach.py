"""A bus that does not answer is named in time, by every command, and the registry is asked once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from infra import registry, topic_admin
from infra.cli.app import COMMANDS, LazyGroup, exit_code, sluice
from infra.platform import commands
from infra.reach import patience_at, within
from infra.run import bus, folder, worker
from infra.settings import assemble
from infra.topic_admin import count_brokers, create_topics, describe_topics, log_starts
from schemas.errors import BusUnreachableError, SettingsError, SluiceError
from schemas.ids import RunId, episode_id
from schemas.topics import ALL
from tests.unit.infra.test_settings import PLACES, SMALLEST

TOLD_WITHIN_S = 15.0
NOBODY = "127.0.0.1:1"
EPISODE = episode_id(RunId("0192"), 0, 0)
_MISSING = {
    "topic": "tokens", "name": "0", "episode": str(EPISODE), "letter": "0:0", "version": "1/1",
}  # fmt: skip


class Silent:
    """Somebody who takes connections and never says a word."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._door.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join(timeout=5)
        for one in self.taken:
            one.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bus, topic_admin, registry, commands, worker):
        monkeypatch.setattr(module, "patience_s", lambda: 0.05)


def test_a_wrong_address_is_told_in_time_however_long_the_interpreter_took_to_start() -> None:
    for age_s in (0.0, 0.5, 2.0, 4.0, 6.0, 8.0, 10.0, 11.5):
        assert age_s + patience_at(age_s) < TOLD_WITHIN_S
        assert patience_at(age_s) >= 3.0, "a broker that is only slow must be given a chance"
    assert patience_at(0.0) == patience_at(3_600.0), "nobody waits for a process that is long up"


def test_what_does_not_come_back_is_given_up_and_what_fails_says_why() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within"):
        within(0.05, never.wait)
    never.set()

    def refuse() -> int:
        raise TimeoutError("the host said so")

    with pytest.raises(TimeoutError, match="the host said so"):
        within(5.0, refuse)
    assert within(5.0, lambda: 7) == 7


@pytest.mark.usefixtures("impatient")
def test_a_registry_that_is_silent_is_asked_once_and_not_once_a_subject(silent: Silent) -> None:
    asked = (registry.resolve, registry.register_all)
    for ask in asked:
        with pytest.raises(BusUnreachableError, match=silent.address):
            ask(f"http://{silent.address}", prefix="sluice")
    assert len(silent.taken) <= len(asked)


@pytest.mark.usefixtures("impatient")
def test_each_first_question_to_a_broker_ends_in_the_time_that_is_given(silent: Silent) -> None:
    for ask in (
        lambda at: count_brokers(at, limit_s=0.05),
        lambda at: create_topics(at, prefix="sluice", partitions=1),
        lambda at: describe_topics(at, prefix="sluice"),
        lambda at: log_starts(at, prefix="sluice", topics=ALL),
    ):
        with pytest.raises(BusUnreachableError, match=silent.address):
            ask(silent.address)


def test_a_broker_that_cannot_be_found_is_told_by_its_cause() -> None:
    # How long the resolver takes to say no is not ours; it is waited for a little first.
    for limit_s in (0.2, 2.0, 10.0):
        with pytest.raises(BusUnreachableError) as told:
            count_brokers("no-such-host.invalid:9092", limit_s=limit_s)
        if "resolve" in told.value.message:
            break
    assert "resolve" in told.value.message
    assert "host name" in told.value.hint


@pytest.mark.usefixtures("impatient")
def test_a_wrong_broker_does_not_wait_for_the_registry(silent: Silent) -> None:
    address = bus.BusAddress(bootstrap=NOBODY, registry=f"http://{silent.address}", prefix="sluice")
    with pytest.raises(BusUnreachableError, match=NOBODY):
        bus.Doors(address)
    assert not silent.taken


def _on_the_bus() -> list[tuple[str, ...]]:
    """Every command that takes the address of a bus, with arguments that pass its own checks."""
    found: list[tuple[str, ...]] = []
    root = click.Context(sluice)
    assert isinstance(sluice, LazyGroup)
    for name in COMMANDS:
        one = sluice.get_command(root, name)
        inner = one.commands.values() if isinstance(one, click.Group) else (one,)
        for command in inner:
            assert command is not None
            if not any(parameter.name == "bootstrap" for parameter in command.params):
                continue
            words = (name,) if command is one else (name, str(command.name))
            arguments = (
                _MISSING[str(one.name)]
                for one in command.params
                if isinstance(one, click.Argument) and one.required
            )
            found.append((*words, *arguments))
    return found


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("line", _on_the_bus(), ids=" ".join)
def test_every_command_with_a_wrong_address_ends_with_the_code_of_no_bus(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--bootstrap", NOBODY, "--registry", f"http://{NOBODY}")
    result = CliRunner().invoke(sluice, [*line, *where])
    assert isinstance(result.exception, SluiceError), result.output
    assert (exit_code(result.exception), NOBODY in str(result.exception)) == (3, True)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "line",
    [("report", "last"), ("run", "--resume", "last"), ("worker", "gate", "--run", "last")],
    ids=" ".join,
)
def test_a_run_whose_bus_is_gone_ends_with_the_code_of_no_bus(
    line: tuple[str, ...], tmp_path: Path
) -> None:
    root = tmp_path / "0192aaaa"
    start = folder.RunStart(
        run_id=RunId(root.name), bootstrap=NOBODY, registry=f"http://{NOBODY}", prefix="sluice",
        starts={}, topic_ids={},
    )  # fmt: skip
    settings = assemble(SMALLEST, places=PLACES).model_dump(mode="json")
    folder.make(folder.RunFolder(root=root), start, settings)
    result = CliRunner().invoke(sluice, [*line, "--runs", str(tmp_path)])
    assert isinstance(result.exception, SluiceError), result.output
    assert exit_code(result.exception) == 3


@pytest.mark.usefixtures("impatient")
def test_a_run_that_finds_no_bus_makes_neither_a_model_nor_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_BOOTSTRAP", NOBODY)
    monkeypatch.setenv("SLUICE_REGISTRY", f"http://{NOBODY}")
    config = Path(__file__).resolve().parents[3] / "examples" / "tiny.toml"
    result = CliRunner().invoke(sluice, ["run", str(config), "--runs", str(tmp_path / "runs")])
    assert isinstance(result.exception, SluiceError), result.output
    assert (exit_code(result.exception), NOBODY in str(result.exception)) == (3, True)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "home" / "models").exists()


def test_a_run_whose_schema_ids_are_gone_is_told_and_not_traced(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"schemas\.json is missing or damaged"):
        worker.codec_of(folder.RunFolder(root=tmp_path))
