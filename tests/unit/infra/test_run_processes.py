"""The processes of a run: started again within a bound, stopped within a bound."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from infra.run import processes as module
from infra.run.processes import Part, Processes
from schemas.errors import SettingsError, TransientError

pytestmark = pytest.mark.slow

LIMIT_S = 10.0


def parts_running(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts_max: int = 2,
    roles: Sequence[str] = ("gate",), last: frozenset[str] = frozenset(),
) -> Processes:  # fmt: skip
    """A run of one part a role, each executing `code` in place of it."""
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\n{code}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 0.01)
    found = Processes(
        [Part(role=role, index=0) for role in roles], run_folder=tmp_path, logs=tmp_path,
        restarts_max=restarts_max, environment=os.environ, last=last,
    )  # fmt: skip
    found.start()
    return found


def told(found: Processes, lines: list[str]) -> int:
    """Look once, add what is said to the lines, and return how many there are."""
    lines += found.watch()
    return len(lines)


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_part_that_dies_is_started_again_until_its_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_running(
        "print('last words', flush=True); raise SystemExit(7)", tmp_path, monkeypatch
    )
    with pytest.raises(TransientError, match=r"died 3 times, last with code 7:\n(last words\n?)+"):
        until(lambda: found.watch() and False)
    assert found.restarts == 2


def test_wrong_settings_end_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_running("raise SystemExit(2)", tmp_path, monkeypatch)
    with pytest.raises(SettingsError, match="gate-0 refused to start"):
        until(lambda: found.watch() and False)
    assert found.restarts == 0


@pytest.mark.parametrize("role", ["learner", "scheduler", "task-source"])
def test_a_role_for_which_the_run_is_over_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    found = parts_running("raise SystemExit(4)", tmp_path, monkeypatch, roles=(role,))
    until(lambda: found.watch() == [] and found.pid(f"{role}-0") is None)
    assert found.watch() == []
    assert found.restarts == 0


@pytest.mark.parametrize("role", ["gate", "learner", "scheduler", "task-source"])
def test_a_preempted_worker_ends_well_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    found = parts_running(
        f"import time, pathlib; p = pathlib.Path({str(tmp_path / 'once')!r})\n"
        "if p.exists(): time.sleep(60)\n"
        "p.touch()", tmp_path, monkeypatch, roles=(role,),
    )  # fmt: skip
    lines: list[str] = []
    until(lambda: told(found, lines) and found.pid(f"{role}-0"))
    assert lines == [f"{role}-0 ended with code 0; again in 0.0 s"]
    found.stop(budget_s=0.0)


def test_a_retired_part_ends_for_good_even_with_no_restart_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_running("import time; time.sleep(60)", tmp_path, monkeypatch, restarts_max=0)
    found.retire("gate-0")
    until(lambda: found.watch() == [] and found.pid("gate-0") is None)
    assert found.watch() == []
    assert found.restarts == 0


def test_the_pause_grows_with_deaths_in_a_row_and_begins_anew_after_a_steady_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_running("raise SystemExit(7)", tmp_path, monkeypatch, restarts_max=4)
    lines: list[str] = []
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 0.1)
    until(lambda: told(found, lines) == 2)
    monkeypatch.setattr(module, "_STEADY_S", 0.0)
    until(lambda: told(found, lines) == 3)
    assert [line.rpartition("again in ")[2] for line in lines] == ["0.1 s", "0.2 s", "0.1 s"]
    found.stop(budget_s=0.0)


def test_a_killed_part_that_the_kernel_has_not_freed_yet_does_not_break_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_running("import time; time.sleep(60)", tmp_path, monkeypatch)
    with monkeypatch.context() as slow:
        slow.setattr(module, "_GONE_S", 0.0)
        slow.setattr("subprocess.Popen.poll", lambda _: None)
        assert found.stop(budget_s=0.0) == ["gate-0"]
    until(lambda: found.pid("gate-0") is None)


def test_a_part_that_does_not_listen_is_killed_after_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    found = parts_running(code, tmp_path, monkeypatch)
    until(lambda: "up" in found.last_words("gate-0"))
    assert found.stop(budget_s=0.2) == ["gate-0"]
    assert found.pid("gate-0") is None


_TAKER = """
import pathlib, signal, sys, time
here = pathlib.Path({folder!r})
def end(*_):
    if 'sink' in sys.argv: print('others gone:', (here / 'gone').exists(), flush=True)
    else: time.sleep(0.3); (here / 'gone').touch()
    raise SystemExit
if 'sink' in sys.argv:
    {before}
signal.signal(signal.SIGTERM, end)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print('up', flush=True)
time.sleep(60)
"""
"""A gate that is slow to end, and a sink that takes what it leaves."""


def taking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, before: str = "pass") -> Processes:
    """A gate and a sink, which does something before it can answer signals; the gate is up."""
    code = _TAKER.format(folder=str(tmp_path), before=before)
    found = parts_running(
        code, tmp_path, monkeypatch, roles=("sink", "gate"), last=frozenset({"sink"})
    )
    until(lambda: "up" in found.last_words("gate-0"))
    return found


def test_who_takes_the_last_words_of_the_others_is_asked_to_end_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taking(tmp_path, monkeypatch)
    until(lambda: "up" in found.last_words("sink-0"))
    assert found.stop(budget_s=LIMIT_S) == []
    assert "others gone: True" in found.last_words("sink-0")


def test_who_takes_the_last_words_is_started_for_it_when_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_once = "(here / 'died').exists() or ((here / 'died').touch(), sys.exit(9))"
    found = taking(tmp_path, monkeypatch, before=die_once)
    until(lambda: found.pid("sink-0") is None)
    assert found.stop(budget_s=LIMIT_S) == []
    assert "others gone: True" in found.last_words("sink-0")
    assert found.pid("sink-0") is None


def test_who_takes_the_last_words_may_be_asked_to_end_before_it_can_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taking(tmp_path, monkeypatch, before="time.sleep(1)")
    assert found.stop(budget_s=LIMIT_S) == []
    assert "others gone: True" in found.last_words("sink-0")


def test_who_takes_the_last_words_is_not_started_when_its_settings_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = "print('no', flush=True); sys.exit(2)"
    found = taking(tmp_path, monkeypatch, before=refuse)
    until(lambda: found.pid("sink-0") is None)
    assert found.stop(budget_s=LIMIT_S) == []
    assert found.last_words("sink-0").count("no") == 1
