"""A mould and what is forked from it, in place of a learner's processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.run import mould as mould_module
from infra.run import processes as module
from infra.run.mould import Forked, Mould
from infra.run.processes import Part, Processes
from infra.run.roles import ROLES

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
PYTHON = sys.executable
MADE = """
import sys
import time
imported = time.monotonic_ns()
def go_on(arguments):
    print("forked", imported, *arguments, flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    if arguments[0] == "wait":
        time.sleep(60)
    sys.exit(int(arguments[1]))
from infra.run.mould import fork_at_requests
fork_at_requests(go_on)
"""


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.fixture
def mould(tmp_path: Path) -> Iterator[Mould]:
    made = mould_of(MADE, tmp_path)
    yield made
    made.close()


def mould_of(code: str, folder: Path) -> Mould:
    return Mould(environment=os.environ, log=folder / "mould.log", command=[PYTHON, "-c", code])


def made_by(mould: Mould, *arguments: str, log: Path) -> Forked:
    until(lambda: mould.is_ready)
    one = mould.make(arguments, log)
    assert one is not None
    return one


def test_what_is_forked_has_the_imports_its_arguments_its_log_and_its_own_end(
    mould: Mould, tmp_path: Path
) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    both = [made_by(mould, "end", code, log=log) for code, log in zip("47", logs, strict=True)]
    until(lambda: all(one.poll() is not None for one in both))
    assert [one.poll() for one in both] == [4, 7]
    lines = [log.read_text().splitlines() for log in logs]
    told = [line[0].split() for line in lines]
    assert [words[2:] for words in told] == [["end", "4"], ["end", "7"]]
    assert told[0][1] == told[1][1], "imported once"
    assert [line[1] for line in lines] == ["to stderr"] * 2


def test_what_is_forked_leads_a_group_of_its_own_and_tells_which_signal_ended_it(
    mould: Mould, tmp_path: Path
) -> None:
    one = made_by(mould, "wait", log=tmp_path / "a.log")
    until(lambda: os.getpgid(one.pid) == one.pid)
    assert one.poll() is None
    one.send_signal(signal.SIGTERM)
    until(lambda: one.poll() == -signal.SIGTERM)
    one.send_signal(signal.SIGTERM)  # to nobody


def test_the_end_of_a_mould_is_the_end_of_nobody_but_seen_by_its_children_as_their_parents(
    mould: Mould, tmp_path: Path
) -> None:
    one = made_by(mould, "wait", log=tmp_path / "a.log")
    parent = int(Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    until(lambda: mould.is_gone)
    assert one.poll() is None
    assert mould.make(["wait"], tmp_path / "b.log") is None
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: one.poll() == -signal.SIGKILL)


def test_a_mould_whose_imports_fail_is_gone_and_its_log_says_why(tmp_path: Path) -> None:
    broken = mould_of("import nothing_of_this_name", tmp_path)
    until(lambda: broken.is_gone)
    assert not broken.is_ready
    assert "nothing_of_this_name" in (tmp_path / "mould.log").read_text()


def test_a_part_comes_from_a_mould_when_it_had_got_on_and_by_its_command_when_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!{PYTHON}\nimport time\nprint('by command', flush=True)\ntime.sleep(60)")
    fake.chmod(0o755)
    code = MADE.replace('"wait"', '"worker"')
    monkeypatch.setattr(module, "Mould", lambda **_: mould_of(code, tmp_path))
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 0.01)
    monkeypatch.setattr(sys, "executable", str(fake))
    found = Processes(
        [Part(role="learner", index=0)], run_folder=tmp_path, logs=tmp_path, restarts_max=50,
        environment=os.environ, moulded=frozenset({"learner"}),
    )  # fmt: skip
    log = tmp_path / "learner-0.log"

    def killed() -> str:
        """Kill the part and return how it came back."""
        before = len(log.read_text())
        found.signal("learner-0", signal.SIGKILL)
        lines: list[str] = []

        def is_back() -> bool:
            lines.extend(found.watch())
            return bool(lines) and found.pid("learner-0") is not None

        until(is_back)
        until(lambda: "\n" in log.read_text()[before:])
        assert "code -9" in lines[0]
        return log.read_text()[before:].split()[0]

    found.start()
    until(lambda: log.read_text())
    assert killed() == "forked"
    assert killed() == "by", "it had not got on"
    found.got_on("learner", 1)
    assert killed() == "forked"
    found.got_on("learner", 1)
    assert killed() == "by", "that was an earlier life"
    found.got_on("learner", 2)
    assert killed() == "forked"
    assert found.stop(budget_s=5.0) == []
    assert found.pid("learner-0") is None


def test_what_a_mould_imports_of_ours_is_there_and_its_role_is_one_of_a_run() -> None:
    ours = [name for name in mould_module.IMPORTS if name.split(".")[0] in ("infra", "learner")]
    assert all(importlib.util.find_spec(name) for name in ours)
    assert ROLES["learner"].entry.partition(":")[0] in ours, "the role's own code"
    assert set(ROLES) >= mould_module.MOULDED
