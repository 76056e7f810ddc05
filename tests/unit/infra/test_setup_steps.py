"""Steps of the set-up: once, whole or not at all, and one set-up at a time."""

import subprocess
from pathlib import Path

import pytest

from infra.setup.bootstrap import link_environment
from infra.setup.model import damaged_files, model_stamp
from infra.setup.places import Places, find_places
from infra.setup.steps import (
    folder_bytes,
    locked,
    made_beside,
    run_step,
    said,
    write_atomically,
)
from schemas.errors import SettingsError, TransientError
from tests.architecture.tree import ROOT


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "constraints.txt").write_text("one==1\n")
    return find_places({"SLUICE_HOME": str(tmp_path / "home")}, tmp_path / "checkout")


def test_a_step_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def work() -> str:
        made.write_text("x" * 10)
        return "a note"

    first = run_step("thing", made.exists, work, made, tmp_path / "lock")
    second = run_step("thing", made.exists, work, made, tmp_path / "lock")
    assert (first.done, first.bytes, first.note) == (True, 10, "a note")
    assert not second.done


def test_a_folder_that_is_made_half_way_never_takes_its_place(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def fail_half_way() -> None:
        with made_beside(target) as draft:
            (draft / "half").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []
    with made_beside(target) as draft:
        (draft / "whole").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert folder_bytes(target) == 5


def test_a_second_set_up_waits_for_the_first_but_not_for_ever(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    refused = pytest.raises(TransientError, match="held by another process")
    with locked(lock), refused, locked(lock, wait_s=0.15):
        pytest.fail("both hold the lock")
    with locked(lock, wait_s=0):
        pass


def test_the_first_set_up_of_a_checkout_asks_for_its_environment_once_it_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    told = subprocess.run(
        ["make", "--dry-run", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "-m infra.setup" in told
    assert not [line for line in told.splitlines() if line.startswith("/bin/")]


def test_the_environment_changes_with_the_pins(places: Places) -> None:
    before = places.venv
    places.constraints.write_text("one==2\n")
    assert places.venv != before
    assert len(places.venv_key) == 12


def test_the_checkout_points_at_its_environment_and_a_real_folder_is_left_alone(
    places: Places,
) -> None:
    link_environment(places)
    assert places.venv_link.readlink() == places.venv
    places.constraints.write_text("one==2\n")
    link_environment(places)
    assert places.venv_link.readlink() == places.venv
    places.venv_link.unlink()
    places.venv_link.mkdir()
    with pytest.raises(SettingsError, match="a folder of its own"):
        link_environment(places)


def test_a_model_with_a_file_cut_short_is_named_as_damaged(places: Places) -> None:
    assert damaged_files(places) == ["smollm2-135m.json"]
    places.model.mkdir(parents=True)
    (places.model / "model.safetensors").write_text("12345")
    write_atomically(model_stamp(places), '{"model.safetensors": {"bytes": 5, "sha256": "x"}}')
    assert damaged_files(places) == []
    (places.model / "model.safetensors").write_text("123")
    assert damaged_files(places) == ["model.safetensors"]


def test_the_cache_folder_follows_the_usual_variables() -> None:
    assert find_places({"SLUICE_HOME": "/a"}).home == Path("/a")
    assert find_places({"XDG_CACHE_HOME": "/b"}).home == Path("/b/sluice")
    assert find_places({"HOME": "/c"}).home == Path("/c/.cache/sluice")


def test_an_environment_seen_under_another_name_compiles_in_a_folder_of_its_own(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name is part of the compiler's command: one folder for two names is compiled again at each
    # change between them.
    monkeypatch.setattr("sys.prefix", str(places.venv))
    by_its_own_name = places.torch_extensions
    monkeypatch.setattr("sys.prefix", str(places.venv_link))
    assert places.torch_extensions.parent == by_its_own_name.parent
    assert places.torch_extensions != by_its_own_name


def test_a_command_of_the_set_up_that_does_not_end_is_ended_and_says_so() -> None:
    assert said(["sh", "-c", "echo one; echo two >&2; exit 3"], limit_s=20) == (3, "one\ntwo")
    assert said(["sleep", "60"], limit_s=0.2) == (124, "no end after 0.2 s")
