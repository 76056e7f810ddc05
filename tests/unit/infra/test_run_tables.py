"""Where the tables of a run are looked for once its sink is gone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.cli.dashboard import _listen
from infra.run import tables
from infra.run.asking import ask
from infra.run.folder import RunFolder, conducting
from schemas.errors import RejectedError, SettingsError, TransientError
from stream_jobs import sink_engines
from stream_jobs.sink_engines import Limits
from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_settings import SinkSettings


class Server:
    """Takes a server's place, and says what it was asked."""

    faults: tuple[type[Exception], ...] = ()

    def __init__(self, url: str, limits: Limits) -> None:
        self.asked = f"{url} {limits.rows_max}"

    def ask(self, statement: str, form: str, values: dict[str, str]) -> bytes:
        return f"{self.asked} {statement} {form} {values}".encode()

    def close(self) -> None:
        pass


def test_a_run_that_wrote_to_a_server_is_asked_there_once_its_sink_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(root=tmp_path)
    folder.settings.write_text("{}")
    settings = SimpleNamespace(sink=SimpleNamespace(server_url="http://server:8123"))
    monkeypatch.setattr(tables, "read_resolved", lambda _: settings)
    monkeypatch.setattr(sink_engines, "ServerEngine", Server)
    answer = ask(folder, "SELECT 1", "JSON", {"run_id": "a"}).decode()
    assert answer == "http://server:8123 1000000 SELECT 1 JSON {'run_id': 'a'}"
    settings.sink.server_url = ""
    with pytest.raises(SettingsError, match="neither a sink that runs nor tables"):
        ask(folder, "SELECT 1", "JSON", {})


def test_a_folder_without_a_run_has_no_tables(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="neither a sink that runs nor tables"):
        ask(RunFolder(root=tmp_path), "SELECT 1", "JSON", {})


CONDUCTOR = """
import sys
from pathlib import Path
from infra.run.folder import RunFolder, conducting
with conducting(RunFolder(root=Path(sys.argv[1]))):
    print("conducts", flush=True)
    sys.stdin.read()
"""


def test_the_folder_is_left_to_the_sink_while_another_process_conducts_the_run(
    tmp_path: Path,
) -> None:
    folder = RunFolder(root=tmp_path / "run-7")
    folder.tables.mkdir(parents=True)
    conductor = subprocess.Popen(
        [sys.executable, "-c", CONDUCTOR, str(folder.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )  # fmt: skip
    with conductor:
        assert conductor.stdout
        assert conductor.stdout.readline() == "conducts\n"
        with pytest.raises(TransientError, match="run-7 goes on, but its sink does not") as told:
            ask(folder, "SELECT 1", "JSON")
        conductor.communicate("")
    assert "sink-0.log" in told.value.hint
    tables.require_tables(folder)


def test_the_conductor_itself_looks_once_its_sink_has_ended(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path)
    folder.tables.mkdir()
    with conducting(folder):
        tables.require_tables(folder)


@contextmanager
def sink_that_answers(folder: RunFolder, answer: bytes) -> Iterator[None]:
    """Take one question, say `answer`, and hang up as a process that is killed does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        folder.sink_address.write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))

        def serve() -> None:
            taken, _ = listening.accept()
            with closing(taken):
                taken.recv(65_536)
                taken.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield
        serving.join(10)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_sink_that_is_killed_while_it_answers_is_told_as_one_that_comes_back(
    tmp_path: Path, said: bytes
) -> None:
    folder = RunFolder(root=tmp_path)
    with (
        sink_that_answers(folder, said),
        pytest.raises(TransientError, match="went away before it had answered"),
    ):
        ask(folder, "SELECT 1", "JSON")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Code: 396. DB::Exception: Limit for result exceeded (TOO_MANY_ROWS_OR_BYTES)", "LIMIT"),
        ("Code: 159. DB::Exception: Timeout exceeded (TIMEOUT_EXCEEDED)", "ask for less"),
        ("Code: 241. DB::Exception: Memory limit (MEMORY_LIMIT_EXCEEDED)", "too much memory"),
        ("Code: 60. DB::Exception: Unknown table (UNKNOWN_TABLE)", "SHOW TABLES"),
    ],
)
def test_what_the_engine_refuses_says_what_to_do_about_that(
    tmp_path: Path, said: str, hint: str
) -> None:
    folder = RunFolder(root=tmp_path)
    head = f"HTTP/1.1 500 No\r\nContent-Length: {len(said)}\r\n\r\n"
    with (
        sink_that_answers(folder, (head + said).encode()),
        pytest.raises(RejectedError) as refused,
    ):
        ask(folder, "SELECT 1", "JSON")
    assert hint in refused.value.hint


def test_a_page_whose_port_is_taken_names_its_own_option() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        settings = SinkSettings(listen_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="cannot listen") as told:
            asyncio.run(_listen(Endpoint(None, settings)))  # type: ignore[arg-type]  # not asked
    assert "--port" in told.value.hint
