"""Definitions of tables on the embedded ClickHouse when a start is killed while it applies them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.run.worker import table_definitions
from stream_jobs.core.sink_statements import parse_migrations
from tests.support.table_process import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_KILLED = """
import sys
from pathlib import Path
from infra.run.worker import table_definitions
from stream_jobs.core.sink_statements import parse_migrations
from stream_jobs.sink_engines import EmbeddedEngine, Limits
limits = Limits(seconds_max=60, rows_max=9, memory_bytes_max=10**9)
engine = EmbeddedEngine(Path(sys.argv[1]), limits)
definitions = parse_migrations(table_definitions())
for one in definitions.migrations:
    # A start that is killed behind each statement in turn; the next begins the migration anew.
    for last in range(len(one.statements)):
        for statement in one.statements[: last + 1]:
            engine.run(statement)
    for statement in one.statements:
        engine.run(statement)
    print(one.name)
"""


def test_a_start_that_is_killed_behind_any_statement_is_made_up_by_the_next(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    migrations = parse_migrations(table_definitions()).migrations
    assert done.stdout.splitlines() == [one.name for one in migrations]
