"""What is kept of the surroundings in which a run begins."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from infra.run import environment
from infra.settings import RunSettings, assemble
from tests.unit.infra.test_settings import PLACES, SMALLEST


def _settings(every: int, seed: int = 0) -> RunSettings:
    tree = {
        **SMALLEST, "run": {"seed": seed},
        "task_source": {**SMALLEST["task_source"], "evaluate_every": every},
    }  # fmt: skip
    return assemble(tree, places=PLACES)


def test_versions_and_machine_are_kept() -> None:
    kept = environment.describe(_settings(every=4))
    assert kept["packages"]["chdb"] == metadata.version("chdb")
    assert kept["python"].startswith("3.")
    assert kept["processors"] >= 1
    assert all(kept["packages"].values())


def test_the_held_out_set_is_kept_by_what_fixes_it_and_only_where_there_is_one() -> None:
    ((label, digest),) = environment.describe(_settings(every=4))["held_out"].items()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert environment.describe(_settings(every=4))["held_out"] == {label: digest}
    assert environment.describe(_settings(every=4, seed=9))["held_out"][label] != digest
    assert environment.describe(_settings(every=0))["held_out"] == {}


def test_code_without_a_checkout_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_CODE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "commit" not in environment.describe(_settings(every=0))


@pytest.mark.parametrize("text", [None, "", "[1]", "{"])
def test_what_was_not_kept_or_cannot_be_read_is_nothing(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "environment.json"
    if text is not None:
        path.write_text(text)
    assert environment.read(path) == {}
