"""The folder of a run: written once, found by name, secret kept to its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from infra.cli.sql import sql
from infra.cli.top import top
from infra.run import session
from infra.run.bus import new_run_id
from infra.run.folder import RunFolder, RunStart, conducting, find, make, read_start, run_id_of
from schemas.errors import SettingsError
from schemas.ids import RunId

ROOT = Path(__file__).resolve().parents[3]
_HOLD = """
import sys
from pathlib import Path
from infra.run.folder import RunFolder, conducting
with conducting(RunFolder(root=Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""
_FILL = """
import sys
from pathlib import Path
from infra.run.folder import RunFolder, write_atomically
from schemas.errors import TransientError
folder = RunFolder(root=Path(sys.argv[1]))
try:
    write_atomically(folder.settings, bytes(100_000))
except TransientError as error:
    print(error)
print("left behind:", [one.name for one in folder.root.iterdir()])
"""


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


def test_a_folder_under_another_name_is_still_its_run(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {})
    copied = RunFolder(root=folder.root.rename(tmp_path / "kept for the paper"))
    assert run_id_of(copied) == "run-a"
    assert run_id_of(RunFolder(root=tmp_path / "run-b")) == "run-b"


@pytest.mark.parametrize(
    ("command", "words"), [(sql, ["--canned", "run_summary", "--run"]), (top, ["--json"])]
)
def test_the_tables_of_a_folder_under_another_name_are_asked_for_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command, words: list[str]
) -> None:
    copied = RunFolder(root=tmp_path / "copy")
    make(copied, start(), {})
    asked: list[str] = []

    def answer(folder: RunFolder, statement: str, form: str, values: dict[str, str]) -> bytes:
        del folder, statement, form
        asked.append(values["run_id"])
        return b'{"meta": [], "data": []}'

    monkeypatch.setattr(f"infra.cli.{command.name}.ask", answer)
    done = CliRunner().invoke(command, [*words, str(copied.root)])
    assert done.exit_code == 0, done.output
    assert set(asked) == {"run-a"}


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {})
    with pytest.raises(SettingsError, match="holds a run already"):
        make(folder, start(), {})


@pytest.mark.slow
def test_a_run_that_a_process_conducts_is_refused_to_a_second_by_name_until_the_first_ends(
    tmp_path: Path,
) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {})
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(SettingsError, match=rf"run-a goes on already: process {holder.pid}\b"),
        conducting(folder),
    ):
        pass
    # A killed conductor leaves its file behind, and nothing that would need to be cleared.
    holder.kill()
    holder.wait(10)
    with conducting(folder):
        assert folder.lock.read_text() == str(os.getpid())
    with conducting(folder):
        pass


async def test_a_run_that_goes_on_is_not_resumed_and_nothing_is_written_about_it(
    tmp_path: Path,
) -> None:
    folder = RunFolder(root=tmp_path / "run-a")
    make(folder, start(), {})
    with conducting(folder), pytest.raises(SettingsError, match="goes on already"):
        # The bus of this run does not exist: the refusal comes before anything is asked of it.
        await session.resume("run-a", directory=tmp_path)


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_names_the_file_and_the_way_on(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=16k tmpfs {tmp_path} && mkdir {tmp_path}/run-a && "
        f"head -c 12k /dev/zero > {tmp_path}/filler; "
        f"exec {sys.executable} -c '{_FILL}' {tmp_path}/run-a"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=30, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/run-a/resolved.json cannot be written: No space left on device" in (
        done.stdout
    )
    assert "--resume" in done.stdout
    assert "left behind: []" in done.stdout


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
