"""Where rows go: an engine on its thread, with what the sink writes to it and asks of it.

Invariants: every call of the engine is made on one thread, which also opened it; inserts carry a
token that names their content and wait for their end. Waits for: the engine. Foreign errors become
ours here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import Boundary, InvariantError, RejectedError, TransientError
from schemas.ids import RunId
from schemas.ports import Delivered
from stream_jobs.core.sink_avro import Texts, Words
from stream_jobs.core.sink_batches import Place
from stream_jobs.core.sink_columns import Kind, Table
from stream_jobs.core.sink_ranges import Range, Stored, Written, claim, progress
from stream_jobs.core.sink_rollups import (
    NEWEST,
    Rollup,
    counting,
    differing,
    made,
    noted,
    portions,
)
from stream_jobs.core.sink_slabs import Held, SlabValues
from stream_jobs.core.sink_statements import (
    Definitions,
    changed,
    engine_code,
    is_damage,
    on_cluster,
    outstanding,
    passes,
)
from stream_jobs.sink_engines import ANEW, Engine

T = TypeVar("T")

_LOG = logging.getLogger("sluice.sink")
_PLACED = ("run_id", "src_topic", "src_partition")
_WORDS = pa.map_(pa.string(), pa.string())
_ARROW: Mapping[Kind, pa.DataType] = {
    Kind.TEXT: pa.string(),
    # As the engine keeps them, so that it need not look for each text again.
    Kind.WORD: pa.dictionary(pa.int32(), pa.string()),
    Kind.INTEGER: pa.int64(),
    Kind.NUMBER: pa.float64(),
    Kind.MAYBE_NUMBER: pa.float64(),
    Kind.FLAG: pa.bool_(),
    Kind.TIME_MS: pa.timestamp("ms", tz="UTC"),
    Kind.TIME_US: pa.timestamp("us", tz="UTC"),
    Kind.COUNTS: pa.map_(pa.string(), pa.int64()),
    Kind.NUMBERS: pa.map_(pa.string(), pa.float64()),
    Kind.WORDS: _WORDS,
    Kind.IDS: pa.list_(pa.int32()),
    Kind.LOGPROBS: pa.list_(pa.float32()),
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


class Store:
    """The engine on its thread."""

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread
        # Of the queries of others one stands in the thread's way at a time: rows wait for no more.
        self._asking = asyncio.Semaphore(1)
        self._rolled: int | None = None
        """When minutes were last made, by anyone as far as it is known. Unit: us."""

    @property
    def is_shared(self) -> bool:
        """Whether another process may reach the same tables."""
        return self._engine.is_shared

    @classmethod
    async def open(cls, make: Callable[[], Engine]) -> Store:
        """Make the engine on the thread that will make all its calls.

        Raises TransientError when a server cannot be reached now.
        """
        with contextlib.ExitStack() as undo:
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clickhouse")
            undo.callback(thread.shutdown, wait=False)
            engine = await asyncio.get_running_loop().run_in_executor(thread, make)
            undo.pop_all()
        return cls(engine, thread)

    async def migrate(self, definitions: Definitions, *, cluster: str = "") -> tuple[str, ...]:
        """Apply what is outstanding, in order; return the names of what was applied now.

        cluster: of a server, whose tables are replicated then.
        """
        await self.run(on_cluster(_VERSIONS, cluster))
        await self.run(on_cluster(_REPEATABLE, cluster))
        rows = await self.rows("SELECT version, checksum FROM schema_migrations FINAL")
        todo = outstanding(
            definitions.migrations, {int(version): checksum for version, checksum in rows}
        )
        for migration in todo:
            for statement in migration.statements:
                await self.run(on_cluster(statement, cluster))
            await self.run(
                "INSERT INTO schema_migrations (version, name, checksum) VALUES "
                f"({migration.version}, '{_quoted(migration.name)}', '{migration.checksum}')"
            )
        rows = await self.rows("SELECT name, checksum FROM schema_repeatable FINAL")
        again = changed(definitions, todo, {row[0]: row[1] for row in rows})
        for one in again:
            for statement in one.statements:
                await self.run(on_cluster(statement, cluster))
            await self.run(
                "INSERT INTO schema_repeatable (name, checksum) VALUES "
                f"('{_quoted(one.name)}', '{one.checksum}')"
            )
        await self._tell_set_aside()
        return tuple(one.name for one in (*todo, *again))

    async def _tell_set_aside(self) -> None:
        """Say of which tables the embedded engine left parts out that it could not read."""
        if self.is_shared:
            return
        for table, parts in await self.rows(
            "SELECT `table`, count() FROM system.detached_parts "
            "WHERE database = currentDatabase() AND startsWith(reason, 'broken') GROUP BY `table`"
        ):
            _LOG.error(
                "%s lacks the rows of %s parts whose files are damaged (`sluice audit RUN "
                "--tables` counts them): %s", table, parts, ANEW,
            )  # fmt: skip

    async def insert(
        self, table: Table, messages: Sequence[Held], token: str, *, is_repeat: bool = False
    ) -> int:
        """Insert the rows of records under a token and return how many they are; the same token
        with the same rows leaves no second copy.

        is_repeat: this may have been tried before; then it is also looked whether they are there.
        Raises TransientError when it may succeed later, InvariantError when it never will.
        """
        return await self._call(lambda: self._insert(table, messages, token, is_repeat))

    def _insert(self, table: Table, messages: Sequence[Held], token: str, is_repeat: bool) -> int:
        data = arrow_of(table, messages)
        if data.num_rows:
            self._insert_under(table.name, data, token)
        if data.num_rows and is_repeat:
            lacking = self._lacking(table.name, data)
            if lacking.num_rows:
                first = lacking.column("src_offset")[0].as_py()
                _LOG.warning("%s noted the token %s without all rows", table.name, token)
                self._insert_under(table.name, lacking, f"{token}:{first}+{lacking.num_rows}")
        return int(data.num_rows)

    def _insert_under(self, table: str, data: pa.Table, token: str) -> None:
        settings = {**_INSERT, "insert_deduplication_token": _quoted(token)}
        self._engine.insert(table, data, settings)

    def _lacking(self, table: str, data: pa.Table) -> pa.Table:
        """Return the rows of one partition's range that are not in their table.

        The engine notes a token before it gives the part its name, so that a kill between the two
        leaves a token without rows, which no repeat of it will bring.
        """
        offsets = data.column("src_offset")
        run, topic, partition = (data.column(name)[0].as_py() for name in _PLACED)
        ends = pc.min_max(offsets).as_py()
        answer = self._engine.run(
            f"SELECT DISTINCT src_offset FROM {table} WHERE run_id = '{_quoted(run)}' "
            f"AND src_topic = '{topic}' AND src_partition = {partition} "
            f"AND src_offset BETWEEN {ends['min']} AND {ends['max']}"
        )
        there = pa.array([int(line) for line in answer.split()], offsets.type)
        return data.filter(pc.invert(pc.is_in(offsets, value_set=there)))

    async def stored(self, run_id: RunId) -> dict[Place, Stored]:
        """Return the newest range of every partition of a run."""
        rows = await self.rows(
            "SELECT src_topic, src_partition, first, last, state FROM sink_progress FINAL "
            f"WHERE run_id = '{_quoted(run_id)}'"
        )
        return {
            (topic, int(partition)): Stored(Range(int(first), int(last)), Written(state))
            for topic, partition, first, last, state in rows
        }

    async def stale(self, rollup: Rollup, *, or_waiting: bool = False) -> list[int]:
        """Return the minutes whose rows are not those that the rollup holds. Unit: s since 1970.

        or_waiting: and those that have them and still wait for a task.
        """
        rows = await self.rows(differing(rollup, or_waiting=or_waiting))
        return [int(minute) for (minute,) in rows]

    async def roll(self, rollup: Rollup, minutes: Sequence[int], *, now_us: int) -> list[int]:
        """Make these minutes of a rollup anew; return those that had rows without their task. Of
        several makings of a minute that of the latest time counts, so that this one is given a
        later time than all that stand, whatever the clock says.
        """
        if self._rolled is None:
            ((newest,),) = await self.rows(NEWEST)
            self._rolled = int(newest)
        self._rolled = rolled = max(now_us, self._rolled + 1)
        waiting: list[int] = []
        for some in portions(minutes):
            counted = await self.rows(counting(rollup, some))
            if not counted:
                # Of a topic that fills several tables, the minutes are those of all its records.
                continue
            await self.run(made(rollup, some, rolled=rolled))
            rows = [(minute, count) for minute, count, _ in counted]
            await self.run(noted(rollup, rows, rolled=rolled))
            waiting += [int(minute) for minute, _, waits in counted if waits == "1"]
        return waiting

    async def mark(self, run_id: RunId, ranges: Mapping[Place, Stored]) -> None:
        """Write the newest range of these partitions."""
        rows = ", ".join(
            f"('{_quoted(run_id)}', '{topic}', {partition}, {one.range.first}, {one.range.last}, "
            f"'{one.state}', {progress(one)})"
            for (topic, partition), one in ranges.items()
        )
        # A row replaces the one before it, so a repeat does no harm and needs no token.
        await self.run(
            "INSERT INTO sink_progress (run_id, src_topic, src_partition, first, last, state, "
            f"progress) SETTINGS async_insert = 0 VALUES {rows}"
        )

    async def agree(self, run_id: RunId, place: Place, wanted: Range, *, claimed: int) -> Range:
        """Return the range that begins where `wanted` does, as whoever asked first chose it.

        claimed: when this was asked; tells a choice that is still remembered from a later one.
        """
        topic, partition = place
        data = pa.table(
            {
                "run_id": pa.array([run_id], pa.string()),
                "src_topic": pa.array([topic], pa.string()),
                "src_partition": pa.array([partition], pa.uint16()),
                "first": pa.array([wanted.first], pa.int64()),
                "last": pa.array([wanted.last], pa.int64()),
                "claimed": pa.array([claimed], pa.int64()),
            }
        )
        chosen = _quoted(claim(run_id, topic, partition, wanted.first))
        settings = {"async_insert": "0", "insert_deduplication_token": chosen}
        await self._call(lambda: self._engine.insert("sink_borders", data, settings))
        ((last,),) = await self.rows(
            f"SELECT argMin(last, claimed) FROM sink_borders WHERE run_id = '{_quoted(run_id)}' "
            f"AND src_topic = '{topic}' AND src_partition = {partition} AND first = {wanted.first}"
        )
        return Range(wanted.first, int(last))

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
            async with self._asking:
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
            if is_damage(message):
                raise InvariantError(message, boundary=Boundary.STORE, hint=ANEW) from error
            raise InvariantError(
                message, boundary=Boundary.STORE,
                hint=f"ClickHouse error {engine_code(message)}: tables and program disagree",
            ) from error  # fmt: skip


def arrow_of(table: Table, messages: Sequence[Held]) -> pa.Table:
    """Return the rows that these records are in a table, in one piece: an insert is one block."""
    pieces: list[Mapping[str, SlabValues]] = []
    alone: list[Delivered[Any]] = []
    for one in messages:
        if isinstance(one, Delivered):
            alone.append(one)
            continue
        if alone:
            pieces.append(table.rows(alone))
            alone = []
        pieces.append(one.values)
    if alone or not pieces:
        pieces.append(table.rows(alone))
    made = [
        pa.table({one.name: _arrow(values[one.name], one.kind) for one in table.columns})
        for values in pieces
    ]
    return made[0] if len(made) == 1 else pa.concat_tables(made).combine_chunks()


def _arrow(values: SlabValues, kind: Kind) -> pa.Array:
    if isinstance(values, Texts):
        buffers = (pa.py_buffer(values.offsets), pa.py_buffer(values.data))
        texts = pa.StringArray.from_buffers(len(values), *buffers)
        return texts.dictionary_encode() if kind is Kind.WORD else texts
    if isinstance(values, Words):
        words = pa.array(values.words, pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(values.codes), words)
    if isinstance(values, np.ndarray):
        # int64 and times are the same bytes.
        return pa.array(values).view(_ARROW[kind])
    return pa.array(values, type=_ARROW[kind])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
