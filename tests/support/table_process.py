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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.errors import SluiceError
from schemas.ports import Delivered
from schemas.topics import Topic
from stream_jobs.core.sink_tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


class Tables:
    """The tables of one folder, made by the real migrations."""

    def __init__(self, folder: Path) -> None:
        """Start the child; it migrates before it answers."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.table_process", str(folder)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
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

    def insert(self, topic: Topic[Any], messages: Sequence[Delivered[Any]], token: str) -> int:
        """Insert under a token of the caller's; return how many rows were sent."""
        return int(self._call(("add", topic.name, token, list(messages))))

    def roll(self) -> int:
        """Make the minutes anew whose rows changed; return how many."""
        return int(self._call(("roll",)))

    def ask(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        answer: list[dict[str, Any]] = self._call(("ask", statement))
        return answer

    def one(self, statement: str) -> dict[str, Any]:
        """Return the only row of a query."""
        (row,) = self.ask(statement)
        return row

    def run(self, statement: str) -> None:
        """Run a statement that writes."""
        self._call(("run", statement))

    def migrate(self, texts: Sequence[str]) -> list[str]:
        """Apply definitions; return what was applied."""
        applied: list[str] = self._call(("migrate", list(texts)))
        return applied

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(20)

    def _call(self, what: tuple[Any, ...]) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        pickle.dump(what, self._child.stdin)
        self._child.stdin.flush()
        failed, answer = pickle.load(self._child.stdout)
        if failed:
            raise answer
        return answer


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

    async def add(self, name: str, token: str, messages: Sequence[Delivered[Any]]) -> int:
        return sum([await self._store.insert(one, messages, token) for one in TABLES[name]])

    async def roll(self) -> int:
        count = 0
        for rollup in self._rollups:
            self._rolled += 1
            minutes = await self._store.stale(rollup)
            await self._store.roll(rollup, minutes, rolled=self._rolled)
            count += len(minutes)
        return count

    async def ask(self, statement: str) -> Any:
        plain = f"{statement} SETTINGS output_format_json_quote_64bit_integers = 0"
        return json.loads(await self._store.ask(plain, "JSON", {}))["data"]

    async def run(self, statement: str) -> None:
        await self._store.run(statement)


async def _serve(folder: Path) -> None:
    from infra.run.worker import table_definitions
    from stream_jobs.sink_engines import EmbeddedEngine, Limits
    from stream_jobs.sink_store import Store

    limits = Limits(seconds_max=60, rows_max=1_000_000, memory_bytes_max=2_000_000_000)
    store = await Store.open(lambda: EmbeddedEngine(folder, limits))
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
    asyncio.run(_serve(Path(sys.argv[1])))
