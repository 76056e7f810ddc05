"""How the fields of a record become columns: names, types and values, derived from its dataclass.

Invariants: every scalar field of a record is a column unless it is named as left out; every row
carries run, broker time and its place in the log; the values of one batch depend on its records
alone, since the insert's token names exact content.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

from schemas.ports import Delivered


class Kind(StrEnum):
    """Type of a column, by its name in ClickHouse."""

    TEXT = "String"
    WORD = "LowCardinality(String)"
    INTEGER = "Int64"
    NUMBER = "Float64"
    MAYBE_NUMBER = "Nullable(Float64)"
    FLAG = "Bool"
    TIME_MS = "DateTime64(3, 'UTC')"
    TIME_US = "DateTime64(6, 'UTC')"
    COUNTS = "Map(LowCardinality(String), Int64)"
    NUMBERS = "Map(LowCardinality(String), Float64)"
    WORDS = "Map(LowCardinality(String), String)"
    PARTITION = "UInt16"
    OFFSET = "UInt64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one row is made of: a delivered record, and for child tables one of its parts."""

    message: Delivered[Any]
    part: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name, its type, and where its value comes from."""

    name: str
    kind: Kind
    value: Callable[[Part], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its columns, and the parts of a record that become its rows."""

    name: str
    columns: tuple[Column, ...]
    order: tuple[str, ...]
    """Sorting key."""
    parts: Callable[[Any], Sequence[Any]] = lambda record: (record,)
    """Of a record; the record itself, or those of its parts that are rows here."""

    def rows(self, messages: Sequence[Delivered[Any]]) -> dict[str, list[Any]]:
        """Return the values by column for the records of one batch, in log order."""
        rows = [
            Part(message=message, part=part)
            for message in messages
            for part in self.parts(message.record)
        ]
        return {column.name: [column.value(row) for row in rows] for column in self.columns}


TIMES: Mapping[str, str] = {
    "at_us": "at",
    "deadline_us": "deadline_at",
    "ended_us": "ended_at",
    "first_token_us": "first_token_at",
    "issued_us": "issued_at",
    "started_us": "started_at",
    "trajectory_us": "trajectory_at",
    "until_us": "until_at",
    "verified_us": "verified_at",
}
"""Fields that hold a moment, not a length of time, with the names of their columns."""

_LATEST_US = 4_102_444_800_000_000
"""The year 2100."""

WORDS = frozenset(
    {
        "consumer", "environment", "incarnation", "learner_id", "loss_name", "origin_topic",
        "scheduler_id", "stream", "tool", "unit", "worker_id", "writer_id",
    }
)  # fmt: skip
"""Texts of which a run has few."""

PLACE: tuple[Column, ...] = (
    Column(name="run_id", kind=Kind.WORD, value=lambda row: row.message.record.run_id),
    Column(name="ts", kind=Kind.TIME_MS, value=lambda row: instant(row.message.timestamp_ms)),
    Column(name="src_topic", kind=Kind.WORD, value=lambda row: row.message.topic),
    Column(name="src_partition", kind=Kind.PARTITION, value=lambda row: row.message.partition),
    Column(name="src_offset", kind=Kind.OFFSET, value=lambda row: row.message.offset),
)
"""What every row carries: run, broker time, and its place in the log."""


def kind_of(annotation: Any) -> Kind | None:
    """Return the column type of a field's type, or None when it is no scalar and no map."""
    if get_origin(annotation) is not None and set(get_args(annotation)) == {float, type(None)}:
        return Kind.MAYBE_NUMBER
    if get_origin(annotation) is not None and issubclass(get_origin(annotation), Mapping):
        values = {str: Kind.WORDS, int: Kind.COUNTS, float: Kind.NUMBERS}
        return values.get(get_args(annotation)[1])
    plain = getattr(annotation, "__supertype__", annotation)
    if not isinstance(plain, type):
        return None
    if issubclass(plain, StrEnum):
        return Kind.WORD
    return {str: Kind.TEXT, int: Kind.INTEGER, float: Kind.NUMBER, bool: Kind.FLAG}.get(plain)


def columns_of(
    record: type[Any], *, without: frozenset[str] = frozenset(), prefix: str = ""
) -> tuple[Column, ...]:
    """Return the columns of a record's scalar fields in their order.

    without: fields that become no column; of these, and of arrays and bytes, nothing is kept.
    prefix: put before each name, for a part that would repeat names of the place.
    """
    hints = get_type_hints(record)
    found: list[Column] = []
    for field in dataclasses.fields(record):
        kind = kind_of(hints[field.name])
        if kind is None or field.name in without or field.name == "run_id":
            continue
        found.append(_column(field.name, kind, prefix))
    return tuple(found)


def instant(at_ms: int) -> int:
    """Return a broker's time within what the tables can hold. Unit: ms."""
    return min(max(at_ms, 0), _LATEST_US // 1000)


def moment(at_us: int) -> int:
    """Return a writer's time within what the tables can hold, so that a wild clock costs no row.
    Unit: us.
    """
    return min(max(at_us, 0), _LATEST_US)


def _column(name: str, kind: Kind, prefix: str) -> Column:
    read = attrgetter(f"part.{name}")
    if name in TIMES:
        return Column(
            name=prefix + TIMES[name], kind=Kind.TIME_US, value=lambda row: moment(read(row))
        )
    if kind is Kind.TEXT and name in WORDS:
        return Column(name=prefix + name, kind=Kind.WORD, value=read)
    if kind in (Kind.WORDS, Kind.COUNTS, Kind.NUMBERS):
        return Column(name=prefix + name, kind=kind, value=lambda row: list(read(row).items()))
    return Column(name=prefix + name, kind=kind, value=read)


def of_record(name: str, kind: Kind, value: Callable[[Any], Any]) -> Column:
    """Return a column computed from the whole record."""
    return Column(name=name, kind=kind, value=lambda row: value(row.message.record))


def of_part(name: str, kind: Kind, value: Callable[[Any], Any]) -> Column:
    """Return a column computed from the part of the record that is the row."""
    return Column(name=name, kind=kind, value=lambda row: value(row.part))
