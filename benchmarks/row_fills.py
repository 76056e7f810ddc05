"""Rows that ClickHouse makes itself: an insert, and expressions for what depends on a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """An insert: SELECT with the columns that are not the schema's defaults."""

    table: str
    columns: Mapping[str, str]
    """Column to expression; `e` is the number of what the row is about, `at` its moment in ms."""
    source: str
    """FROM clause that yields them."""

    def statement(self) -> str:
        """Return the INSERT."""
        names = ", ".join(f"`{name}`" for name in self.columns)
        values = ",\n  ".join(f"{value} AS `{name}`" for name, value in self.columns.items())
        return f"INSERT INTO {self.table} ({names})\nSELECT\n  {values}\nFROM {self.source}"


def chance(salt: int, of: str = "e") -> str:
    """Return an expression for a number in [0, 1) that depends on the row alone."""
    return f"(cityHash64({of}, {salt}) % 1000003) / 1000003"


def tail(median: float, salt: int, of: str = "e") -> str:
    """Return a Pareto-like length with this median; one in a thousand is 100 times as long."""
    return f"toInt64({median} * 0.5 / pow(1 - {chance(salt, of)}, 0.67))"


def moment(ms: str) -> str:
    return f"fromUnixTimestamp64Milli(toInt64({ms}), 'UTC')"


def fine(us: str) -> str:
    return f"fromUnixTimestamp64Micro(toInt64({us}), 'UTC')"


def pick(words: tuple[str, ...], by: str) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return f"[{listed}][1 + ({by}) % {len(words)}]"
