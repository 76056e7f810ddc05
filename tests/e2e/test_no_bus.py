"""How soon a person is told that there is no bus, the start of the interpreter included."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "127.0.0.1:1"
TOLD_WITHIN_S = 15.0


@pytest.mark.slow
def test_a_command_tells_in_time_and_in_one_line_that_no_broker_answers(tmp_path: Path) -> None:
    environ = {
        **os.environ, "PYTHONPATH": str(ROOT),
        "SLUICE_BOOTSTRAP": NOBODY, "SLUICE_REGISTRY": f"http://{NOBODY}",
    }  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli", "audit", "a-run"], cwd=tmp_path, env=environ,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=28, check=False,
    )  # fmt: skip
    assert time.monotonic() - began < TOLD_WITHIN_S
    assert (done.returncode, done.stdout) == (3, "")
    (told,) = done.stderr.splitlines()
    assert NOBODY in told
