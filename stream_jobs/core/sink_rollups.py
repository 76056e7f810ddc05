"""Which minutes of the rollups have to be made anew, and the statements that make them.

Invariants: a minute is made whole from the rows that stand, and its newest making counts, so that
it may be made any number of times, by anyone; it is noted as made after it is, with the rows that
it had before, so that a crash and rows that came meanwhile both show as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MINUTE_S = 60
MINUTES_MAX = 500
"""Minutes that one statement makes, at most."""
TASKS = "tasks"
"""The table that rows of some others wait for: it tells the environment of their group."""
_KNOWN = f"countIf((run_id, group_id) IN (SELECT run_id, group_id FROM {TASKS}))"
"""How many rows have a task that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """A statement that fills a rollup from one table."""

    name: str
    """Where to and where from."""
    table: str
    statement: str
    """With the places {since}, {until}, {minutes} and {rolled}."""
    definition: str
    """Checksum of the file that it stands in: a minute made by another one is made anew."""
    waits_for_tasks: bool = False
    """Whether it joins rows with their tasks: those whose task comes later change what it makes."""


class Stale:
    """The minutes that got rows since they were made, by table."""

    def __init__(self, tables: Iterable[str], *, interval_ms: int) -> None:
        """tables: those with a rollup. interval_ms: a minute is made at most so often."""
        self._minutes: dict[str, set[int]] = {table: set() for table in tables}
        self._waiting: dict[str, set[int]] = {}
        """Minutes with rows whose task was not there when they were made, by table."""
        self._interval_ms = interval_ms
        self._made_ms = 0

    def note(self, table: str, minutes: Iterable[int]) -> None:
        """Take minutes that got rows; other tables' are left out. Unit: s since 1970.

        Tasks make those stale that wait for tasks: any of them may be theirs.
        """
        known = self._minutes.get(table)
        if known is not None:
            known.update(minutes)
        if table == TASKS:
            for other, waiting in self._waiting.items():
                self._minutes[other] |= waiting
            self._waiting = {}

    def wait(self, table: str, minutes: Iterable[int]) -> None:
        """Take minutes that were made without all their tasks. Unit: s since 1970."""
        self._waiting.setdefault(table, set()).update(minutes)

    @property
    def waiting(self) -> int:
        """Minutes to be made."""
        return sum(map(len, self._minutes.values()))

    def due(self, *, now_ms: int, all_of_it: bool = False) -> dict[str, list[int]]:
        """Return the minutes to make now, each table's in order; they are forgotten here."""
        if not all_of_it and now_ms - self._made_ms < self._interval_ms:
            return {}
        self._made_ms = now_ms
        found = {table: sorted(minutes) for table, minutes in self._minutes.items() if minutes}
        for table in found:
            self._minutes[table] = set()
        return found


def minutes_of(times_ms: NDArray[np.int64]) -> set[int]:
    """Return the minutes, as seconds since 1970, that these broker times lie in. Unit: ms."""
    return {int(minute) * MINUTE_S for minute in np.unique(times_ms // 60_000)}


def portions(minutes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield minutes in portions of no more than one statement makes."""
    for begin in range(0, len(minutes), MINUTES_MAX):
        yield minutes[begin : begin + MINUTES_MAX]


def counting(rollup: Rollup, minutes: Sequence[int]) -> str:
    """Return the query for how many rows these minutes have, those with a task twice, and whether
    they wait for a task; asked before they are made.
    """
    return _filled(
        f"SELECT toUnixTimestamp(toStartOfMinute(ts)) AS t, {_rows(rollup)} AS rows, "
        f"{_waits(rollup)}\nFROM {rollup.table}\nWHERE {OF_MINUTES}\nGROUP BY t",
        minutes,
        0,
    )


def _rows(rollup: Rollup) -> str:
    """Return the count that shows both a row and a task that came later."""
    return f"count() + ({_KNOWN} AS known)" if rollup.waits_for_tasks else "count()"


def _waits(rollup: Rollup) -> str:
    """Return the condition on the same rows that one of them lacks its task."""
    return "known < count()" if rollup.waits_for_tasks else "0"


def noted(rollup: Rollup, rows: Iterable[tuple[str, ...]], *, rolled: int) -> str:
    """Return the statement that notes minutes as made from so many rows, as they were counted."""
    values = ", ".join(
        f"('{rollup.name}', {minute}, {count}, '{rollup.definition}', {rolled})"
        for minute, count in rows
    )
    return (
        "INSERT INTO rolled_minutes (rollup, t, rows, definition, rolled)\n"
        f"SETTINGS async_insert = 0, max_partitions_per_insert_block = 0\nVALUES {values}"
    )


def made(rollup: Rollup, minutes: Sequence[int], *, rolled: int) -> str:
    """Return the statement that makes these minutes. rolled: rises with every making."""
    return _filled(rollup.statement, minutes, rolled)


NEWEST = "SELECT max(rolled) FROM (\n{}\n)".format(
    "\nUNION ALL\n".join(
        f"  SELECT max(rolled) AS rolled FROM {table}"
        for table in ("metric_minutes", "quantity_minutes", "quantity_hours", "rolled_minutes")
    )
)
"""The query for the latest making of anything; 0 when nothing was made."""

OF_MINUTES = (
    "ts >= toDateTime64({since}, 3, 'UTC') AND ts < toDateTime64({until}, 3, 'UTC') "
    "AND toUnixTimestamp(toStartOfMinute(ts)) IN ({minutes})"
)
"""The condition on rows that a rollup's statement holds."""


def _filled(statement: str, minutes: Sequence[int], rolled: int) -> str:
    values: Mapping[str, str] = {
        "{since}": str(minutes[0]),
        "{until}": str(minutes[-1] + MINUTE_S),
        "{minutes}": ", ".join(map(str, minutes)),
        "{rolled}": str(rolled),
    }
    for place, value in values.items():
        statement = statement.replace(place, value)
    return statement


def differing(rollup: Rollup, *, or_waiting: bool = False) -> str:
    """Return the query for minutes whose rows are not those that the rollup holds.

    or_waiting: and for those that have them and still wait for a task.
    """
    waiting = " OR s.waits" if or_waiting else ""
    return (
        "SELECT toUnixTimestamp(s.t) FROM (\n"
        f"  SELECT toStartOfMinute(ts) AS t, {_rows(rollup)} AS rows, {_waits(rollup)} AS waits\n"
        f"  FROM {rollup.table} GROUP BY t\n"
        ") AS s\nLEFT JOIN (\n"
        f"  SELECT t, rows, definition FROM rolled_minutes FINAL WHERE rollup = '{rollup.name}'\n"
        ") AS r ON s.t = r.t\n"
        f"WHERE s.rows != r.rows OR r.definition != '{rollup.definition}'{waiting}\n"
        "ORDER BY s.t"
    )
