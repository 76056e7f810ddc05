"""The guide's code is a working task: it is put into a folder, loaded, checked and run."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
from environments import registry
from environments.ports import Done, Reply, TaskPackage
from schemas.enums import FinishReason, StopCause, VerdictCode
from tests.support.task_records import task_of

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "write-a-task.md"
BLOCK = re.compile(r"```python file=(\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskPackage]:
    """Put the guide's files beside the packages, as its reader would."""
    folder = tmp_path / "echo"
    folder.mkdir()
    blocks = BLOCK.findall(GUIDE.read_text())
    assert {name for name, _ in blocks} == {
        "__init__.py", "rubric.py", "environment.py", "task.py",
    }  # fmt: skip
    for name, text in blocks:
        (folder / name).write_text(text)
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield importlib.import_module("environments.echo.task").PACKAGE
    for name in [name for name in sys.modules if name.startswith("environments.echo")]:
        del sys.modules[name]


def test_the_guides_task_satisfies_the_contract_and_its_gold_check(echo: TaskPackage) -> None:
    assert isinstance(echo, TaskPackage)
    assert len(echo.digest()) == len(echo.verifier_digest()) == 64
    assert json.loads(echo.payload({"words": ["one"]}, 1, 1)) == {"word": "one"}
    for gold in echo.gold():
        task = task_of("digits", gold.payload)
        assert echo.rubric.judge(task, gold.right).reward == 1.0
        assert echo.rubric.judge(task, gold.wrong).code is VerdictCode.WRONG_ANSWER


async def test_the_guides_environment_runs(echo: TaskPackage) -> None:
    environment = echo.environment(task_of("digits", echo.payload(None, 1, 0)))
    opening = await environment.reset()
    assert opening.messages[0].content.startswith("Say ")
    assert await environment.act(Reply(text="red")) == Done(cause=StopCause.POLICY_STOP)
    cut = await environment.act(Reply(text="re", finish_reason=FinishReason.LENGTH))
    assert isinstance(cut, Done)
    assert cut.cause is StopCause.BUDGET_TRUNCATION


def test_every_package_and_file_that_the_guide_names_is_there() -> None:
    root = GUIDE.parents[1]
    for named in re.findall(r"`((?:environments|tests)/[\w./-]+)`", GUIDE.read_text()):
        assert (root / named).exists() or "/echo/" in named, named
    assert "echo" not in registry.names(), "the guide's example must stay an example"
