"""The engines behind the tables: the embedded ClickHouse (chDB), or a ClickHouse server.

Invariants: an engine is used by the one thread that opened it, in a process that never forks
afterwards; queries of others run on a handle that the engine itself holds to reading, with limits
on time, rows and memory; an insert that was not made raises. Waits for: the engine, whose queries
end by `max_execution_time`.
"""

from __future__ import annotations

import fcntl
import io
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from schemas.errors import Boundary, RejectedError, TransientError

DEFINITION_BYTES_MIN = 16 << 20
"""So much of the disk is free when a table or view is defined. Unit: bytes."""
_DEFINES = re.compile(r"\s*(?:CREATE|ALTER|DROP)\b", re.IGNORECASE)
_HELD = "one process at a time; a sink that runs answers over HTTP instead"
ANEW = (
    "where files are damaged, move the folder of the tables away, and the run's sink makes them "
    "anew from the topics (`sluice run --resume RUN`)"
)
_DAMAGED = f"the line of the engine before this one says why; {ANEW}"
_READ_AHEAD = 696
"""Error of the engine when a query ends before what it read ahead: it comes in the background, at
any time, and is no insert's. ClickHouse calls it ASYNC_LOAD_CANCELED.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query of others may take."""

    seconds_max: float
    rows_max: int
    memory_bytes_max: int
    threads_max: int = 1
    """In the embedded engine; a server goes by the profile of its reader."""


class Engine(Protocol):
    """The calls that differ between the embedded engine and a server; made on one thread."""

    faults: tuple[type[Exception], ...]
    """What its library raises."""
    is_shared: bool
    """Whether another process may reach the same tables."""

    def insert(self, table: str, data: pa.Table, settings: Mapping[str, str]) -> None: ...

    def run(self, statement: str) -> bytes:
        """Run one of our own statements; return its answer as TabSeparated."""
        ...

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        """Run a reading statement of others within the limits."""
        ...

    def close(self) -> None: ...


class EmbeddedEngine:
    """chDB on a folder of its own; one process at a time."""

    is_shared = False

    def __init__(self, path: Path, limits: Limits) -> None:
        """Open or make the folder.

        Raises RejectedError when another process holds it or the engine cannot read it,
        TransientError when it cannot be made.
        """
        import chdb
        from chdb._exceptions import ChdbError

        self.faults: tuple[type[Exception], ...] = (ChdbError, RuntimeError)
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransientError(
                f"the folder of the tables, {path}, cannot be made: {error.strerror}",
                boundary=Boundary.STORE, hint="is the disk full, or read-only, or not ours?",
            ) from error  # fmt: skip
        try:
            connect: Callable[[str], Any] = chdb.connect
            self._handle = connect(str(path.resolve()))
            self._reader = connect(str(path.resolve()))
        except RuntimeError as error:
            raise RejectedError(
                f"the tables in {path} cannot be opened: {error}", boundary=Boundary.STORE,
                hint=_HELD if _is_held(path) else _DAMAGED,
            ) from error  # fmt: skip
        self._errors: dict[int, int] | None = None
        """Errors that the engine had counted after the last insert; None when others may have
        followed.
        """
        # One thread has no groups of others to merge, so that two levels of them only cost.
        single: dict[str, object] = {
            "max_threads": 1, "group_by_two_level_threshold": 0,
            "group_by_two_level_threshold_bytes": 0,
        }  # fmt: skip
        for name, value in single.items():
            self._handle.query(f"SET {name} = {value}")
        for name, value in {
            **(single if limits.threads_max == 1 else {"max_threads": limits.threads_max}),
            "max_execution_time": limits.seconds_max,
            "max_result_rows": limits.rows_max,
            "result_overflow_mode": "'throw'",
            # Over views and on one thread these two passes of a plan cost more than they save.
            "enable_join_runtime_filters": 0,
            "query_plan_remove_unused_columns": 0,
            "max_memory_usage": limits.memory_bytes_max,
            "readonly": 1,
        }.items():
            self._reader.query(f"SET {name} = {value}")

    def insert(self, table: str, data: pa.Table, settings: Mapping[str, str]) -> None:
        """Insert and wait for the end."""
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, data.schema) as writer:
            writer.write_table(data)
        columns = ", ".join(f"`{name}`" for name in data.column_names)
        clause = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        statement = f"INSERT INTO {table} ({columns}) SETTINGS {clause}"
        self.stream(statement, "ArrowStream", stream.getvalue())

    def stream(self, statement: str, form: str, data: bytes) -> None:
        """Insert data in a format and wait for the end.

        chDB answers success, with all rows written, to a streamed insert that the table refused;
        only the engine's own count of its errors tells. When that count moved, the insert is taken
        as failed: it is repeated under its token, which costs no row twice if it did not.
        """
        if self._errors is None:
            self._errors = self._count_errors()
        before, self._errors = self._errors, None
        with self._handle.send_insert(statement, form) as insert:
            insert.append(data)
            insert.finish()
        self._errors = after = self._count_errors()
        for code, count in after.items():
            if count != before.get(code, 0):
                raise RuntimeError(self._told_error(code))

    def _count_errors(self) -> dict[int, int]:
        """Return how often each error of an insert happened since it was opened, by code."""
        lines = self.run(
            f"SELECT code, value FROM system.errors WHERE value > 0 AND code != {_READ_AHEAD}"
        ).decode()
        return {int(code): int(count) for code, count in map(str.split, lines.splitlines())}

    def _told_error(self, code: int) -> str:
        told = self.run(f"SELECT last_error_message FROM system.errors WHERE code = {code} LIMIT 1")
        return f"Code: {code}. DB::Exception: {told.decode().strip()}"

    def run(self, statement: str) -> bytes:
        """Run one of our own statements."""
        if _DEFINES.match(statement):
            self._require_room()
        try:
            return self._answer(self._handle, statement, "TabSeparated")
        except self.faults:
            self._errors = None
            raise

    def _require_room(self) -> None:
        """Raise RuntimeError unless a definition can be written whole: on a full disk chDB answers
        success, leaves the file of the table empty, and can never open the folder again.
        """
        free = shutil.disk_usage(self._path).free
        if free < DEFINITION_BYTES_MIN:
            raise RuntimeError(
                f"Code: 243. DB::Exception: {free} bytes are free under {self._path}, and tables "
                f"are defined with {DEFINITION_BYTES_MIN} at least"
            )

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        """Run a reading statement of others."""
        # Whatever it does wrong is counted among the engine's errors, and is no insert's.
        self._errors = None
        return self._answer(self._reader, statement, form, parameters)

    def _answer(
        self,
        handle: Any,
        statement: str,
        form: str,
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        """Return what a handle answers; chDB keeps what a query wrote before it failed and sets it
        before the next answer of that handle, whoever asked, so that it is taken away here.
        """
        try:
            answer: bytes = handle.query(statement, form, params=dict(parameters) or None).bytes()
        except self.faults:
            handle.query("SELECT 1", "Null").bytes()
            raise
        return answer or b""

    def close(self) -> None:
        """Release the folder."""
        self._reader.close()
        self._handle.close()


class ServerEngine:
    """A ClickHouse server; the same statements, over its own client."""

    is_shared = True

    def __init__(self, url: str, limits: Limits, *, is_replicated: bool = False) -> None:
        """Connect; `url` may carry user, password and database. Raises TransientError.

        is_replicated: every write then waits for most replicas, and reads see all such writes.
        """
        import clickhouse_connect
        from clickhouse_connect.driver.exceptions import Error

        self.faults: tuple[type[Exception], ...] = (Error, OSError)
        certain = {"insert_quorum": "auto", "select_sequential_consistency": "1"}
        try:
            self._client = clickhouse_connect.get_client(
                dsn=url,
                autogenerate_session_id=False,
                send_receive_timeout=60,
                query_limit=0,
                settings=certain if is_replicated else None,
            )
        except self.faults as error:
            raise TransientError(
                f"the ClickHouse server does not answer: {error}", boundary=Boundary.STORE,
                hint="is sink.server_url right, and the server up?",
            ) from error  # fmt: skip
        self._limits = {
            "max_execution_time": str(limits.seconds_max),
            "max_result_rows": str(limits.rows_max),
            "result_overflow_mode": "throw",
            "max_memory_usage": str(limits.memory_bytes_max),
            "readonly": "1",
            # Or it answers with 200 and rows, and tells behind them that it failed.
            "wait_end_of_query": "1",
        }

    def insert(self, table: str, data: pa.Table, settings: Mapping[str, str]) -> None:
        """Insert and wait for the end."""
        self._client.insert_arrow(table, data, settings=dict(settings))

    def run(self, statement: str) -> bytes:
        """Run one of our own statements."""
        answer: bytes = self._client.raw_query(statement)
        return answer

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        """Run a reading statement of others."""
        answer: bytes = self._client.raw_query(
            statement, parameters=dict(parameters), settings=self._limits, fmt=form
        )
        return answer

    def close(self) -> None:
        """Release the connection."""
        self._client.close()


def _is_held(path: Path) -> bool:
    """Whether a process has the folder open: the engine locks this file of it, and says so to its
    standard error alone.
    """
    try:
        with (path / "status").open("rb") as status:
            fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
