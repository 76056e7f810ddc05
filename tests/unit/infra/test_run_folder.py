"""The folder of a run: written once, found by name, secret kept to its owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.run.bus import new_run_id
from infra.run.folder import RunFolder, RunStart, find, make, read_start
from schemas.errors import SettingsError
from schemas.ids import RunId


def start(run_id: str = "run-a") -> RunStart:
    return RunStart(
        run_id=RunId(run_id), bootstrap="b:1", registry="http://r", prefix="sluice",
        starts={"t.v1": {0: 5, 11: 7}}, topic_ids={"t.v1": "id"},
    )  # fmt: skip


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {"run": {}})
    assert read_start(folder) == start()
    assert folder.secret.stat().st_mode & 0o077 == 0
    assert folder.secret.read_bytes() not in folder.settings.read_bytes()


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {})
    with pytest.raises(SettingsError, match="holds a run already"):
        make(folder, start(), {})


def test_a_run_is_found_by_the_start_of_its_id_and_by_last(tmp_path: Path) -> None:
    for name in ("aa1", "ab2"):
        make(RunFolder(root=tmp_path / name), start(name), {})
    assert find("aa", tmp_path).root.name == "aa1"
    assert find("last", tmp_path).root.name == "ab2"
    with pytest.raises(SettingsError, match="2 runs"):
        find("a", tmp_path)
    with pytest.raises(SettingsError, match="known: aa1, ab2"):
        find("zz", tmp_path)


def test_a_damaged_start_is_named(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "aa1")
    make(folder, start("aa1"), {})
    folder.start.write_text("{")
    with pytest.raises(SettingsError, match=r"start\.json cannot be read"):
        read_start(folder)


def test_run_ids_are_ordered_by_time_and_say_version_7() -> None:
    early = new_run_id(1_700_000_000_000_000, b"\xff" * 16)
    late = new_run_id(1_700_000_000_001_000, b"\x00" * 16)
    assert early < late
    assert early[14] == "7"
    assert early[19] in "89ab"
