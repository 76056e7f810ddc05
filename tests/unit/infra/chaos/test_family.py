"""What a process has started is found, however deep."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from infra.chaos.family import descendants, engine_processes

pytestmark = pytest.mark.slow


def test_children_and_their_children_are_found_and_only_those_of_an_engine_are_its() -> None:
    code = (
        "import subprocess, sys; "
        "c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        grandchild = int(child.stdout.readline())
        assert [pid for pid in descendants(os.getpid()) if pid in (child.pid, grandchild)] == [
            child.pid, grandchild,
        ]  # fmt: skip
        assert engine_processes(os.getpid()) == []
        os.kill(grandchild, 9)
        assert child.wait(timeout=20) == 0
        assert descendants(child.pid) == []
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
