"""What a process has started is found, however deep."""

from __future__ import annotations

import os
import subprocess
import sys
import time

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
        assert engine_processes(child.pid) == []
        os.kill(grandchild, 9)
        assert child.wait(timeout=20) == 0
        assert descendants(child.pid) == []
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


ENGINE = (
    "import pathlib, time; pathlib.Path('/proc/self/comm').write_text('VLLM::Engine'); "
    "print('named', flush=True); time.sleep(60)"
)
WORKER = (
    "import subprocess, sys; "
    "c = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE); "
    "c.stdout.readline(); print(c.pid, flush=True); sys.stdin.read(); c.kill(); c.wait()"
)


def test_an_engine_process_is_found_by_its_name_until_it_is_dead() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with worker:
        assert worker.stdout is not None
        engine = int(worker.stdout.readline())
        assert engine_processes(worker.pid) == [engine]
        os.kill(engine, 9)
        ends = time.monotonic() + 20
        while engine_processes(worker.pid):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert descendants(worker.pid) == [engine], "it is there still, and nobody waits for it"
