"""What the embedded engine counts in the background is not taken for an error of an insert."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import contextlib, sys
from pathlib import Path
import chdb
import pyarrow as pa
from stream_jobs.sink_engines import EmbeddedEngine, Limits

limits = Limits(seconds_max=5, rows_max=9, memory_bytes_max=10**9)
engine = EmbeddedEngine(Path(sys.argv[1]), limits)
engine.run("CREATE TABLE t (n Int64) ENGINE = MergeTree ORDER BY n")
row = pa.table({"n": [1]})
engine.insert("t", row, {"async_insert": "0"})
custom = "SETTINGS allow_custom_error_code_in_throwif = 1"
other = chdb.connect(str(Path(sys.argv[1]).resolve()))
for code in (696, 395):
    with contextlib.suppress(*engine.faults):
        # Counted by the same engine, and told to nobody that inserts.
        other.query(f"SELECT throwIf(1, 'told', toInt16({code})) {custom}")
    try:
        engine.insert("t", row, {"async_insert": "0"})
        print("inserted")
    except RuntimeError as error:
        print(str(error).split(".")[0])
print(engine.run("SELECT count() FROM t").decode().strip())
"""


def test_a_read_ahead_that_was_called_off_fails_no_insert(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    # Any other error that is counted meanwhile may be the insert's: it is tried again.
    assert done.stdout.splitlines() == ["inserted", "Code: 395", "3"], done.stderr
