"""Tables of the embedded ClickHouse when a start is killed while it defines them, on a full disk,
and when their files are damaged.
"""

from __future__ import annotations

import os
import shutil
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

_OPENED = """
import sys
from pathlib import Path
from types import SimpleNamespace
from schemas.errors import SluiceError
from stream_jobs import sink_engines
from stream_jobs.core.sink_statements import passes
limits = sink_engines.Limits(seconds_max=60, rows_max=9, memory_bytes_max=10**9)
try:
    engine = sink_engines.EmbeddedEngine(Path(sys.argv[1]), limits)
except SluiceError as error:
    sys.exit(f"{type(error).__name__}: {error}")
define = "CREATE TABLE IF NOT EXISTS a (x Int64) ENGINE = MergeTree ORDER BY x"
room, sink_engines.shutil.disk_usage = sink_engines.shutil.disk_usage, lambda path: SimpleNamespace(
    free=int(sys.argv[2])
)
try:
    engine.run(define)
except engine.faults as error:
    assert passes(str(error)), error
    print(error)
print(engine.run("EXISTS TABLE a").decode())
"""

_REPEATED = """
import asyncio, logging, sys
from pathlib import Path
from infra.run.worker import table_definitions
from schemas.errors import InvariantError
from schemas.ports import Delivered
from schemas.topics import TOKENS
from stream_jobs.core.sink_statements import parse_migrations
from stream_jobs.core.sink_tables import TABLES
from stream_jobs.sink_engines import EmbeddedEngine, Limits
from stream_jobs.sink_store import Store
from tests.support.records import commit
logging.basicConfig()
limits = Limits(seconds_max=60, rows_max=9, memory_bytes_max=10**9)
messages = [
    Delivered(topic=TOKENS.name, partition=0, offset=n, timestamp_ms=1, key=None, record=commit(n))
    for n in range(10)
]
async def main():
    store = await Store.open(lambda: EmbeddedEngine(Path(sys.argv[1]), limits))
    await store.migrate(parse_migrations(table_definitions()))
    for is_repeat in map(int, sys.argv[2]):
        await store.insert(TABLES[TOKENS.name][0], messages, "a token", is_repeat=bool(is_repeat))
        asked = "SELECT count(), uniqExact(src_offset) FROM token_commits"
        print(*(await store.rows(asked))[0])
    if sys.argv[3:]:
        try:
            await store.run("OPTIMIZE TABLE token_commits FINAL")
        except InvariantError as error:
            print(error.hint)
    await store.close()
asyncio.run(main())
"""


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip


def test_a_start_that_is_killed_behind_any_statement_is_made_up_by_the_next(
    tmp_path: Path,
) -> None:
    done = _run(_KILLED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    migrations = parse_migrations(table_definitions()).migrations
    assert done.stdout.splitlines() == [one.name for one in migrations]


def test_no_table_is_defined_on_a_full_disk_where_its_file_would_stay_empty(tmp_path: Path) -> None:
    full = _run(_OPENED, str(tmp_path), str((16 << 20) - 1))
    assert "NOT_ENOUGH_SPACE" in full.stdout or "Code: 243." in full.stdout, full
    assert full.stdout.split()[-1] == "0"
    room = _run(_OPENED, str(tmp_path), str(16 << 20))
    assert room.stdout.split() == ["1"], room


def test_tables_whose_files_are_damaged_are_refused_with_what_to_do(tmp_path: Path) -> None:
    made = _run(_OPENED, str(tmp_path), str(1 << 30))
    assert made.stdout.split() == ["1"], made
    (definition,) = tmp_path.glob("store/*/*/a.sql")
    definition.write_bytes(b"")
    refused = _run(_OPENED, str(tmp_path), str(1 << 30))
    assert refused.returncode == 1
    assert f"RejectedError: the tables in {tmp_path} cannot be opened" in refused.stderr
    assert "move the folder of the tables away" in refused.stderr
    assert "a.sql" in refused.stderr, "the engine says which file"


def _part(folder: Path) -> Path:
    tables = [one.parent for one in folder.glob("store/*/*/deduplication_logs")]
    (part,) = (
        one for table in tables for one in table.glob("1970*") if (one / "data.bin").exists()
    )
    return part


def test_rows_that_a_kill_left_out_behind_their_token_come_when_they_are_inserted_again(
    tmp_path: Path,
) -> None:
    made = _run(_REPEATED, str(tmp_path), "0")
    assert made.stdout.split() == ["10", "10"], made
    # The engine notes the token first and names the part then: a kill in between leaves this.
    tables = [one.parent for one in tmp_path.glob("store/*/*/deduplication_logs")]
    (part,) = (
        one for table in tables for one in table.glob("1970*") if (one / "data.bin").exists()
    )
    shutil.rmtree(part)
    again = _run(_REPEATED, str(tmp_path), "011")
    assert again.stdout.splitlines() == ["0 0", "10 10", "10 10"], again


def test_damaged_rows_are_told_with_what_to_do(tmp_path: Path) -> None:
    assert _run(_REPEATED, str(tmp_path), "0").stdout.split() == ["10", "10"]
    part = _part(tmp_path)
    data = bytearray((part / "data.bin").read_bytes())
    data[len(data) // 2] ^= 255
    (part / "data.bin").write_bytes(data)
    ended = _run(_REPEATED, str(tmp_path), "", "optimize")
    assert "move the folder of the tables away" in ended.stdout, ended
    (part / "columns.txt").write_bytes(b"")
    started = _run(_REPEATED, str(tmp_path), "")
    assert started.returncode == 0, started
    assert "token_commits lacks the rows of 1 parts" in started.stderr
    assert "move the folder of the tables away" in started.stderr
