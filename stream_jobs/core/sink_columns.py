"""How the fields of a record become columns: names, types and values, derived from its dataclass.

Invariants: every scalar field of a record is a column unless it is named as left out; every row
carries run, broker time and its place in the log; the values of one batch depend on its records
alone, since the insert's token names exact content.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

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
    IDS = "Array(Int32)"
    LOGPROBS = "Array(Float32)"
    PARTITION = "UInt16"
    OFFSET = "UInt64"


@dataclass(slots=True)
class Rows:
    """The rows of one table from the records of one batch, side by side in log order."""

    messages: Sequence[Delivered[Any]]
    """The delivered record of each row."""
    parts: Sequence[Any]
    """What each row is: the record itself, or for child tables one of its parts."""
    shared: dict[str, Any]
    """What several columns are taken from, by the name of who worked it out."""


Values = Sequence[Any] | NDArray[Any]
"""The values of one column, one a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name, its type, and where its values come from."""

    name: str
    kind: Kind
    field: str = ""
    """Field of the part that it is; empty when it is computed."""
    turn: Callable[[Sequence[Any]], Values] | None = None
    """Makes values of the field's."""
    values: Callable[[Rows], Values] | None = None
    """Computes the values; set when `field` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its columns, and the parts of a record that become its rows."""

    name: str
    columns: tuple[Column, ...]
    order: tuple[str, ...]
    """Sorting key."""
    parts: Callable[[Any], Sequence[Any]] | None = None
    """Those parts of a record that are rows here; None when the record itself is one."""
    fields: Callable[[Any], tuple[Any, ...]] = field(init=False)
    """Reads all fields of a part that are columns at once."""

    def __post_init__(self) -> None:
        names = [column.field for column in self.columns if column.field]
        # With one name alone it would answer the bare value.
        assert len(names) > 1, self.name
        object.__setattr__(self, "fields", attrgetter(*names))

    def rows(self, messages: Sequence[Delivered[Any]]) -> dict[str, Values]:
        """Return the values by column for the records of one batch, in log order."""
        rows = self._rows(messages)
        if not rows.parts:
            return {column.name: () for column in self.columns}
        read = iter(zip(*map(self.fields, rows.parts), strict=True))
        found: dict[str, Values] = {}
        for column in self.columns:
            if column.field:
                values = next(read)
                found[column.name] = values if column.turn is None else column.turn(values)
            else:
                assert column.values is not None
                found[column.name] = column.values(rows)
        return found

    def _rows(self, messages: Sequence[Delivered[Any]]) -> Rows:
        if self.parts is None:
            return Rows(messages, [message.record for message in messages], {})
        pairs = [(message, part) for message in messages for part in self.parts(message.record)]
        return Rows([one for one, _ in pairs], [part for _, part in pairs], {})


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


def _of_message(name: str, turn: Callable[[Sequence[Any]], Values] | None = None) -> Any:
    read = attrgetter(name)

    def values(rows: Rows) -> Values:
        found = list(map(read, rows.messages))
        return found if turn is None else turn(found)

    return values


def _of_batch(name: str) -> Any:
    """Return what reads a column that is the same in all rows, since a batch is one partition's."""
    read = attrgetter(name)
    return lambda rows: [read(rows.messages[0])] * len(rows.messages)


def instants(at_ms: Sequence[int]) -> NDArray[np.int64]:
    """Return broker times within what the tables can hold. Unit: ms."""
    return np.clip(np.array(at_ms, np.int64), 0, _LATEST_US // 1000)


def moments(at_us: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return writers' times within what the tables can hold, so that a wild clock costs no row.
    Unit: us.
    """
    return np.clip(np.array(at_us, np.int64), 0, _LATEST_US)


PLACE: tuple[Column, ...] = (
    Column(name="run_id", kind=Kind.WORD, values=_of_message("record.run_id")),
    Column(name="ts", kind=Kind.TIME_MS, values=_of_message("timestamp_ms", instants)),
    Column(name="src_topic", kind=Kind.WORD, values=_of_batch("topic")),
    Column(name="src_partition", kind=Kind.PARTITION, values=_of_batch("partition")),
    Column(name="src_offset", kind=Kind.OFFSET, values=_of_message("offset")),
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
    for one in dataclasses.fields(record):
        kind = kind_of(hints[one.name])
        if kind is None or one.name in without or one.name == "run_id":
            continue
        found.append(_column(one.name, kind, prefix))
    return tuple(found)


def _column(name: str, kind: Kind, prefix: str) -> Column:
    if name in TIMES:
        return Column(name=prefix + TIMES[name], kind=Kind.TIME_US, field=name, turn=moments)
    if kind is Kind.TEXT and name in WORDS:
        return Column(name=prefix + name, kind=Kind.WORD, field=name)
    if kind in (Kind.WORDS, Kind.COUNTS, Kind.NUMBERS):
        return Column(name=prefix + name, kind=kind, field=name, turn=_entries)
    return Column(name=prefix + name, kind=kind, field=name)


def _entries(maps: Sequence[Mapping[str, Any]]) -> list[list[tuple[str, Any]]]:
    return [list(one.items()) for one in maps]


def of_record(name: str, kind: Kind, value: Callable[[Any], Any]) -> Column:
    """Return a column computed from the whole record."""
    return Column(
        name=name, kind=kind, values=lambda rows: [value(one.record) for one in rows.messages]
    )


def of_part(name: str, kind: Kind, value: Callable[[Any], Any]) -> Column:
    """Return a column computed from the part of the record that is the row."""
    return Column(name=name, kind=kind, values=lambda rows: list(map(value, rows.parts)))


def of_parts(name: str, kind: Kind, values: Callable[[Rows], Values]) -> Column:
    """Return a column computed from all rows at once."""
    return Column(name=name, kind=kind, values=values)
