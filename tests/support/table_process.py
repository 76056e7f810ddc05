"""Real tables in a process of their own: takes records, answers SQL.

The embedded ClickHouse must not be open in a process that forks later, as a test session does. The
child is `python -m tests.support.table_process FOLDER`; both sides speak pickles over its pipes.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import SluiceError
from schemas.ids import RunId
from schemas.ports import Delivered
from schemas.topics import Topic
from stream_jobs.core.sink_ranges import Range
from stream_jobs.core.sink_slabs import Held
from stream_jobs.core.sink_tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


class Tables:
    """The tables of one folder, made by the real migrations."""

    def __init__(self, folder: Path, *, behind_http: bool = False) -> None:
        """Start the child; it migrates before it answers.

        behind_http: it reaches the engine as it would a server, through the ordinary client.
        """
        self._server = _start("fake_clickhouse", folder) if behind_http else None
        where = str(folder)
        if self._server is not None:
            assert self._server.stdout is not None
            where = f"http://127.0.0.1:{int(self._server.stdout.readline())}"
        self._child = _start("table_process", where)
        self._offsets: dict[tuple[str, int], int] = {}

    def add(
        self, topic: Topic[Any], records: Sequence[Any], *, at_ms: Sequence[int], partition: int = 0
    ) -> None:
        """Insert records as one batch, each with its broker time."""
        first = self._offsets.get((topic.name, partition), 0)
        messages = [
            Delivered(
                topic=topic.name, partition=partition, offset=first + index, timestamp_ms=at,
                key=None, record=record,
            )
            for index, (record, at) in enumerate(zip(records, at_ms, strict=True))
        ]  # fmt: skip
        self._offsets[topic.name, partition] = first + len(messages)
        self._call(("add", topic.name, f"{topic.name}:{partition}:{first}", messages))

    def insert(self, topic: Topic[Any], messages: Sequence[Held], token: str) -> int:
        """Insert under a token of the caller's; return how many rows were sent."""
        return int(self._call(("add", topic.name, token, list(messages))))

    def roll(self) -> int:
        """Make the minutes anew whose rows changed; return how many."""
        return int(self._call(("roll",)))

    def ask(
        self, statement: str, parameters: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of a query; parameters: what `{name:Type}` in it stands for."""
        answer: list[dict[str, Any]] = self._call(("ask", statement, dict(parameters or {})))
        return answer

    def described(self, statement: str) -> list[tuple[str, str]]:
        """Return the columns of a query's answer, each with its type."""
        answer: list[tuple[str, str]] = self._call(("described", statement))
        return answer

    def one(self, statement: str) -> dict[str, Any]:
        """Return the only row of a query."""
        (row,) = self.ask(statement)
        return row

    def rows_read(self, statement: str) -> int:
        """Return how many rows of tables the engine read to answer a query."""
        return int(self._call(("rows_read", statement)))

    def run(self, statement: str) -> None:
        """Run a statement that writes."""
        self._call(("run", statement))

    def agree(self, run: str, first: int, last: int, claimed: int) -> tuple[int, int]:
        """Choose the border of a range of one partition; return the range as it was chosen."""
        agreed: tuple[int, int] = self._call(("agree", run, first, last, claimed))
        return agreed

    def migrate(self, texts: Sequence[str]) -> list[str]:
        """Apply definitions; return what was applied."""
        applied: list[str] = self._call(("migrate", list(texts)))
        return applied

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(20)
        if self._server is not None:
            self._server.kill()
            self._server.wait(20)

    def _call(self, what: tuple[Any, ...]) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        pickle.dump(what, self._child.stdin)
        self._child.stdin.flush()
        failed, answer = pickle.load(self._child.stdout)
        if failed:
            raise answer
        return answer


def _start(module: str, argument: Path | str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{module}", str(argument)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


class _Served:
    """The child's side: a store, and what was asked of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._rollups: Sequence[Any] = ()
        self._rolled = 0

    async def migrate(self, texts: Sequence[str]) -> list[str]:
        from stream_jobs.core.sink_statements import parse_migrations

        definitions = parse_migrations(texts)
        self._rollups = definitions.rollups
        return list(await self._store.migrate(definitions))

    async def add(self, name: str, token: str, messages: Sequence[Held]) -> int:
        return sum([await self._store.insert(one, messages, token) for one in TABLES[name]])

    async def roll(self) -> int:
        # As in the sink, all rollups of a table see the same minutes.
        stale: dict[str, set[int]] = {}
        for rollup in self._rollups:
            stale.setdefault(rollup.table, set()).update(await self._store.stale(rollup))
        for rollup in self._rollups:
            self._rolled += 1
            minutes = sorted(stale[rollup.table])
            await self._store.roll(rollup, minutes, now_us=self._rolled)
        return sum(len(stale[rollup.table]) for rollup in self._rollups)

    async def ask(self, statement: str, parameters: Mapping[str, str]) -> Any:
        plain = f"{statement} SETTINGS output_format_json_quote_64bit_integers = 0"
        return json.loads(await self._store.ask(plain, "JSON", parameters))["data"]

    async def rows_read(self, statement: str) -> int:
        told = json.loads(await self._store.ask(statement, "JSON", {}))
        return int(told["statistics"]["rows_read"])

    async def described(self, statement: str) -> list[tuple[str, str]]:
        answer = json.loads(await self._store.ask(statement, "JSON", {}))
        return [(column["name"], column["type"]) for column in answer["meta"]]

    async def run(self, statement: str) -> None:
        await self._store.run(statement)

    async def agree(self, run: str, first: int, last: int, claimed: int) -> tuple[int, int]:
        place, wanted = ("tokens.v1", 0), Range(first, last)
        agreed = await self._store.agree(RunId(run), place, wanted, claimed=claimed)
        return agreed.first, agreed.last


async def _serve(where: str) -> None:
    from infra.run.worker import table_definitions
    from stream_jobs.sink_engines import EmbeddedEngine, Engine, Limits, ServerEngine
    from stream_jobs.sink_store import Store

    limits = Limits(seconds_max=60, rows_max=1_000_000, memory_bytes_max=2_000_000_000)

    def engine() -> Engine:
        is_server = where.startswith("http")
        return ServerEngine(where, limits) if is_server else EmbeddedEngine(Path(where), limits)

    store = await Store.open(engine)
    served = _Served(store)
    await served.migrate(table_definitions())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            name, *given = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = (False, await getattr(served, name)(*given))
        except SluiceError as error:
            answer = (True, error)
        pickle.dump(answer, out)
        out.flush()
    await store.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
