"""The outside world of the counter task: one SQLite file that every process of a machine shares.

It counts every execution and prevents none, except that it serves no attempt lower than one it has
seen for the key: so a call that runs twice shows, and a process stopped between its check and its
call cannot come back late.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import FencedError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls(
    key TEXT PRIMARY KEY, lowest_attempt INTEGER NOT NULL, executions INTEGER NOT NULL, value
    INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS counters(episode TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
_BUSY_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the counter knows of one key."""

    key: str
    executions: int
    value: int


class CounterStore:
    """Opens the file anew for each operation, so that a killed process leaves nothing open."""

    def __init__(self, path: Path) -> None:
        """Take the path of the file; it is made at the first use."""
        self._path = path

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        with closing(connection):
            connection.executescript(_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back whatever ends the block
                yield connection

    def add(self, episode: str, key: str, attempt: int, amount: int) -> int:
        """Add to the episode's counter and return its value; raise FencedError."""
        with self._transaction() as connection:
            self._raise_floor(connection, key, attempt)
            connection.execute(
                "INSERT INTO counters VALUES (?, ?)"
                " ON CONFLICT(episode) DO UPDATE SET value = value + excluded.value",
                (episode, amount),
            )
            row = connection.execute(
                "SELECT value FROM counters WHERE episode = ?", (episode,)
            ).fetchone()
            value = int(row[0])
            connection.execute(
                "UPDATE calls SET executions = executions + 1, value = ? WHERE key = ?",
                (value, key),
            )
            return value

    def ask(self, key: str, attempt: int) -> int | None:
        """Return the value that the call of a key gave, or None when it never ran.

        From then on no lower attempt is served. Raises FencedError when the asker is itself
        such an attempt.
        """
        with self._transaction() as connection:
            self._raise_floor(connection, key, attempt)
            row = connection.execute(
                "SELECT executions, value FROM calls WHERE key = ?", (key,)
            ).fetchone()
            return int(row[1]) if row[0] else None

    def executions(self) -> list[Execution]:
        """Return what ran, by key, for checks from outside."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT key, executions, value FROM calls ORDER BY key")
            return [Execution(key=row[0], executions=row[1], value=row[2]) for row in rows]

    @staticmethod
    def _raise_floor(connection: sqlite3.Connection, key: str, attempt: int) -> None:
        row = connection.execute(
            "SELECT lowest_attempt FROM calls WHERE key = ?", (key,)
        ).fetchone()
        if row is not None and attempt < row[0]:
            raise FencedError(
                f"attempt {attempt} of {key} is below {row[0]}, which the counter has seen",
                hint="a later attempt owns the episode",
            )
        connection.execute(
            "INSERT INTO calls VALUES (?, ?, 0, 0)"
            " ON CONFLICT(key) DO UPDATE SET lowest_attempt = excluded.lowest_attempt",
            (key, attempt),
        )
