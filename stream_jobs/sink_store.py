"""Where rows go: the embedded ClickHouse engine (chDB), or a ClickHouse server, behind one face.

Invariants: every call of the engine is made on one thread, which also opened it; a process that has
it open never forks; inserts carry a token that names their content and wait for their end; queries
of others run on a second handle that the engine itself holds to reading, with limits. Waits for:
the engine, whose queries end by `max_execution_time`. Foreign errors become ours here.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from schemas.errors import Boundary, InvariantError, RejectedError, TransientError
from schemas.ids import RunId
from schemas.ports import Delivered
from stream_jobs.core.sink_batches import Place
from stream_jobs.core.sink_columns import Kind, Table, Values
from stream_jobs.core.sink_ranges import Range, Stored, Written
from stream_jobs.core.sink_rollups import (
    Rollup,
    counting,
    differing,
    made,
    noted,
    portions,
)
from stream_jobs.core.sink_statements import (
    Definitions,
    changed,
    engine_code,
    outstanding,
    passes,
)

T = TypeVar("T")

_WORDS = pa.map_(pa.string(), pa.string())
_ARROW: Mapping[Kind, pa.DataType] = {
    Kind.TEXT: pa.string(),
    Kind.WORD: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.NUMBER: pa.float64(),
    Kind.MAYBE_NUMBER: pa.float64(),
    Kind.FLAG: pa.bool_(),
    Kind.TIME_MS: pa.timestamp("ms", tz="UTC"),
    Kind.TIME_US: pa.timestamp("us", tz="UTC"),
    Kind.COUNTS: pa.map_(pa.string(), pa.int64()),
    Kind.NUMBERS: pa.map_(pa.string(), pa.float64()),
    Kind.WORDS: _WORDS,
    Kind.PARTITION: pa.uint16(),
    Kind.OFFSET: pa.uint64(),
}
_VERSIONS = """CREATE TABLE IF NOT EXISTS schema_migrations (
  version UInt32, name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(applied_at) ORDER BY version"""
_REPEATABLE = """CREATE TABLE IF NOT EXISTS schema_repeatable (
  name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(applied_at) ORDER BY name"""
_INSERT = {
    "async_insert": "0",
    # Rows of many months in one batch mean a broker's clock that jumped; they are kept.
    "max_partitions_per_insert_block": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query of others may take."""

    seconds_max: float
    rows_max: int
    memory_bytes_max: int


class Engine(Protocol):
    """The calls that differ between the embedded engine and a server; made on one thread."""

    faults: tuple[type[Exception], ...]
    """What its library raises."""

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

    def __init__(self, path: Path, limits: Limits) -> None:
        """Open or make the folder; raise RejectedError when another process holds it."""
        import chdb
        from chdb._exceptions import ChdbError

        self.faults: tuple[type[Exception], ...] = (ChdbError, RuntimeError)
        path.mkdir(parents=True, exist_ok=True)
        try:
            connect: Callable[[str], Any] = chdb.connect
            self._handle = connect(str(path.resolve()))
            self._reader = connect(str(path.resolve()))
        except RuntimeError as error:
            raise RejectedError(
                f"the tables in {path} cannot be opened: {error}", boundary=Boundary.STORE,
                hint="one process at a time; a sink that runs answers over HTTP instead",
            ) from error  # fmt: skip
        self._errors: dict[int, int] | None = None
        """Errors that the engine had counted after the last insert; None when others may have
        followed.
        """
        self._handle.query("SET max_threads = 1")
        for name, value in {
            "max_execution_time": limits.seconds_max,
            "max_result_rows": limits.rows_max,
            "result_overflow_mode": "'throw'",
            "max_memory_usage": limits.memory_bytes_max,
            "max_threads": 1,
            "readonly": 1,
        }.items():
            self._reader.query(f"SET {name} = {value}")

    def insert(self, table: str, data: pa.Table, settings: Mapping[str, str]) -> None:
        """Insert and wait for the end.

        chDB answers success, with all rows written, to a streamed insert that the table refused;
        only the engine's own count of its errors tells. When that count moved, the insert is taken
        as failed: it is repeated under its token, which costs no row twice if it did not.
        """
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, data.schema) as writer:
            writer.write_table(data)
        columns = ", ".join(f"`{name}`" for name in data.column_names)
        clause = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        statement = f"INSERT INTO {table} ({columns}) SETTINGS {clause}"
        if self._errors is None:
            self._errors = self._count_errors()
        before, self._errors = self._errors, None
        with self._handle.send_insert(statement, "ArrowStream") as insert:
            insert.append(stream.getvalue())
            insert.finish()
        self._errors = after = self._count_errors()
        for code, count in after.items():
            if count != before.get(code, 0):
                raise RuntimeError(self._told_error(code))

    def _count_errors(self) -> dict[int, int]:
        """Return how often each error of the engine happened since it was opened, by code."""
        lines = self.run("SELECT code, value FROM system.errors WHERE value > 0").decode()
        return {int(code): int(count) for code, count in map(str.split, lines.splitlines())}

    def _told_error(self, code: int) -> str:
        told = self.run(f"SELECT last_error_message FROM system.errors WHERE code = {code} LIMIT 1")
        return f"Code: {code}. DB::Exception: {told.decode().strip()}"

    def run(self, statement: str) -> bytes:
        """Run one of our own statements."""
        try:
            answer: bytes = self._handle.query(statement, "TabSeparated").bytes() or b""
        except self.faults:
            self._errors = None
            raise
        return answer

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        """Run a reading statement of others."""
        # Whatever it does wrong is counted among the engine's errors, and is no insert's.
        self._errors = None
        answer: bytes = (
            self._reader.query(statement, form, params=dict(parameters) or None).bytes() or b""
        )
        return answer

    def close(self) -> None:
        """Release the folder."""
        self._reader.close()
        self._handle.close()


class ServerEngine:
    """A ClickHouse server; the same statements, over its own client."""

    def __init__(self, url: str, limits: Limits) -> None:
        """Connect; `url` may carry user and password."""
        import clickhouse_connect
        from clickhouse_connect.driver.exceptions import Error

        self.faults: tuple[type[Exception], ...] = (Error, OSError)
        self._client = clickhouse_connect.get_client(
            dsn=url, autogenerate_session_id=False, send_receive_timeout=60, query_limit=0
        )
        self._limits = {
            "max_execution_time": str(limits.seconds_max),
            "max_result_rows": str(limits.rows_max),
            "result_overflow_mode": "throw",
            "max_memory_usage": str(limits.memory_bytes_max),
            "readonly": "1",
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


class Store:
    """The engine on its thread."""

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread

    @classmethod
    async def open(cls, make: Callable[[], Engine]) -> Store:
        """Make the engine on the thread that will make all its calls."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clickhouse")
        try:
            engine = await asyncio.get_running_loop().run_in_executor(thread, make)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(engine, thread)

    async def migrate(self, definitions: Definitions) -> tuple[str, ...]:
        """Apply what is outstanding, in order; return the names of what was applied now."""
        await self.run(_VERSIONS)
        await self.run(_REPEATABLE)
        rows = await self.rows("SELECT version, checksum FROM schema_migrations FINAL")
        todo = outstanding(
            definitions.migrations, {int(version): checksum for version, checksum in rows}
        )
        for migration in todo:
            for statement in migration.statements:
                await self.run(statement)
            await self.run(
                "INSERT INTO schema_migrations (version, name, checksum) VALUES "
                f"({migration.version}, '{_quoted(migration.name)}', '{migration.checksum}')"
            )
        rows = await self.rows("SELECT name, checksum FROM schema_repeatable FINAL")
        again = changed(definitions, todo, {row[0]: row[1] for row in rows})
        for one in again:
            for statement in one.statements:
                await self.run(statement)
            await self.run(
                "INSERT INTO schema_repeatable (name, checksum) VALUES "
                f"('{_quoted(one.name)}', '{one.checksum}')"
            )
        return tuple(one.name for one in (*todo, *again))

    async def insert(self, table: Table, messages: Sequence[Delivered[Any]], token: str) -> int:
        """Insert the rows of records under a token and return how many they are; the same token
        with the same rows leaves no second copy.

        Raises TransientError when it may succeed later, InvariantError when it never will.
        """
        return await self._call(lambda: self._insert(table, messages, token))

    def _insert(self, table: Table, messages: Sequence[Delivered[Any]], token: str) -> int:
        values = table.rows(messages)
        data = pa.table({c.name: _arrow(values[c.name], c.kind) for c in table.columns})
        if data.num_rows:
            settings = {**_INSERT, "insert_deduplication_token": _quoted(token)}
            self._engine.insert(table.name, data, settings)
        return int(data.num_rows)

    async def stored(self, run_id: RunId) -> dict[Place, Stored]:
        """Return the newest range of every partition of a run."""
        rows = await self.rows(
            "SELECT src_topic, src_partition, first, last, state FROM sink_ranges FINAL "
            f"WHERE run_id = '{_quoted(run_id)}'"
        )
        return {
            (topic, int(partition)): Stored(Range(int(first), int(last)), Written(state))
            for topic, partition, first, last, state in rows
        }

    async def stale(self, rollup: Rollup) -> list[int]:
        """Return the minutes whose rows are not those that the rollup holds. Unit: s since 1970."""
        return [int(minute) for (minute,) in await self.rows(differing(rollup))]

    async def roll(self, rollup: Rollup, minutes: Sequence[int], *, rolled: int) -> None:
        """Make these minutes of a rollup anew; `rolled` rises with every call."""
        for some in portions(minutes):
            rows = await self.rows(counting(rollup, some))
            await self.run(made(rollup, some, rolled=rolled))
            if rows:
                await self.run(noted(rollup, rows, rolled=rolled))

    async def mark(self, run_id: RunId, ranges: Mapping[Place, Stored], *, written: int) -> None:
        """Write the newest range of these partitions; `written` rises with every call."""
        places = list(ranges)
        data = pa.table(
            {
                "run_id": pa.array([run_id] * len(places), pa.string()),
                "src_topic": pa.array([topic for topic, _ in places], pa.string()),
                "src_partition": pa.array([number for _, number in places], pa.uint16()),
                "first": pa.array([ranges[one].range.first for one in places], pa.int64()),
                "last": pa.array([ranges[one].range.last for one in places], pa.int64()),
                "state": pa.array([ranges[one].state.value for one in places], pa.string()),
                "written": pa.array([written] * len(places), pa.int64()),
            }
        )
        # A row replaces the one before it, so a repeat does no harm and needs no token.
        await self._call(lambda: self._engine.insert("sink_ranges", data, {"async_insert": "0"}))

    async def run(self, statement: str) -> bytes:
        """Run one of our own statements."""
        return await self._call(lambda: self._engine.run(statement))

    async def rows(self, statement: str) -> list[tuple[str, ...]]:
        """Run one of our own queries; return its rows as texts."""
        answer = await self.run(statement)
        return [tuple(line.split("\t")) for line in answer.decode().splitlines()]

    async def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        """Run a reading statement of others; raise RejectedError with the engine's message."""
        try:
            return await self._call(lambda: self._engine.ask(statement, form, parameters))
        except (TransientError, InvariantError) as error:
            raise RejectedError(error.message, boundary=Boundary.STORE) from error

    async def close(self) -> None:
        """Close the engine on its thread."""
        await self._on_thread(self._engine.close)
        self._thread.shutdown(wait=False)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _call(self, call: Callable[[], T]) -> T:
        try:
            return await self._on_thread(call)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise InvariantError(
                f"rows do not fit their table: {error}", boundary=Boundary.STORE
            ) from error
        except self._engine.faults as error:
            message = str(error)
            if passes(message):
                raise TransientError(
                    message, boundary=Boundary.STORE, hint="disk, memory, address of the server?"
                ) from error
            raise InvariantError(
                message, boundary=Boundary.STORE,
                hint=f"ClickHouse error {engine_code(message)}: tables and program disagree",
            ) from error  # fmt: skip


def _arrow(values: Values, kind: Kind) -> pa.Array:
    if isinstance(values, np.ndarray):
        # int64 and times are the same bytes.
        return pa.array(values).view(_ARROW[kind])
    return pa.array(values, type=_ARROW[kind])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
