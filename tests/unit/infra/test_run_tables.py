"""Where the tables of a run are looked for once its sink is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.run import tables
from infra.run.asking import ask
from infra.run.folder import RunFolder
from schemas.errors import SettingsError
from stream_jobs import sink_engines
from stream_jobs.sink_engines import Limits


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
