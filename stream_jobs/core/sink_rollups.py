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


class Stale:
    """The minutes that got rows since they were made, by table."""

    def __init__(self, tables: Iterable[str], *, interval_ms: int) -> None:
        """tables: those with a rollup. interval_ms: a minute is made at most so often."""
        self._minutes: dict[str, set[int]] = {table: set() for table in tables}
        self._interval_ms = interval_ms
        self._made_ms = 0

    def note(self, table: str, minutes: Iterable[int]) -> None:
        """Take minutes that got rows; other tables' are left out. Unit: s since 1970."""
        known = self._minutes.get(table)
        if known is not None:
            known.update(minutes)

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
    """Return the query for how many rows these minutes have; asked before they are made."""
    return _filled(
        f"SELECT toUnixTimestamp(toStartOfMinute(ts)) AS t, count() FROM {rollup.table}\n"
        f"WHERE {OF_MINUTES}\nGROUP BY t",
        minutes,
        0,
    )


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


def differing(rollup: Rollup) -> str:
    """Return the query for minutes whose rows are not those that the rollup holds."""
    return (
        "SELECT toUnixTimestamp(s.t) FROM (\n"
        f"  SELECT toStartOfMinute(ts) AS t, count() AS rows FROM {rollup.table} GROUP BY t\n"
        ") AS s\nLEFT JOIN (\n"
        f"  SELECT t, rows, definition FROM rolled_minutes FINAL WHERE rollup = '{rollup.name}'\n"
        ") AS r ON s.t = r.t\n"
        f"WHERE s.rows != r.rows OR r.definition != '{rollup.definition}'\nORDER BY s.t"
    )
