"""The reaper ends what its front started, and nothing else, however the front went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.vllm_reaper import OWNER, Reaper, owned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]
ROOT = Path(__file__).parents[3]
FRONT = """
import subprocess, sys, time
from inference.vllm_reaper import Reaper
reaper = Reaper()
child = subprocess.Popen(["sleep", "60"])
print(reaper.token, child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def gone(token: str) -> bool:
    until = time.monotonic() + 10
    while owned(token) and time.monotonic() < until:
        time.sleep(0.02)
    return not owned(token)


def test_closing_ends_what_was_started_since_and_spares_the_rest(
    stranger: subprocess.Popen[bytes],
) -> None:
    reaper = Reaper()
    with subprocess.Popen(["sleep", "60"]) as child:
        while owned(reaper.token) != [child.pid]:
            time.sleep(0.005)
        reaper.close()
        assert child.wait(5) == -signal.SIGKILL
    assert gone(reaper.token)
    assert OWNER not in os.environ
    assert stranger.poll() is None


def test_a_killed_front_leaves_nothing_behind(stranger: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as front:
        assert front.stdout is not None
        token, child = front.stdout.readline().split()
        until = time.monotonic() + 10
        while int(child) not in owned(token) and time.monotonic() < until:
            time.sleep(0.005)
        front.kill()
        assert gone(token)
    assert stranger.poll() is None
