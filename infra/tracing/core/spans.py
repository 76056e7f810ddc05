"""A span as a value, and the time that a record tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from schemas.ports import Delivered
from schemas.tracing import SpanId, TraceId

Value: TypeAlias = bool | int | float | str | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Value]

_TRUSTED_US = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something at one moment of a span."""

    name: str
    at_us: int
    """Microseconds since 1970."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Another span, in another trace, that this one has to do with."""

    trace_id: TraceId
    span_id: SpanId


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stage of a trace, from start to end."""

    trace_id: TraceId
    span_id: SpanId
    parent_id: SpanId | None
    """None in a root."""
    name: str
    start_us: int
    """Microseconds since 1970."""
    end_us: int
    """Microseconds since 1970; never before the start."""
    attributes: Attributes = field(default_factory=dict)
    happenings: tuple[Happening, ...] = ()
    links: tuple[Link, ...] = ()
    error: str = ""
    """What failed, in words; empty when nothing did."""

    def __post_init__(self) -> None:
        if self.end_us < self.start_us:
            # Two writers told the two times; the later word does not make the stage end before it
            # began.
            object.__setattr__(self, "end_us", self.start_us)


def moment_us(message: Delivered[Any]) -> int:
    """Return when a record came about: its writer's time where the broker's allows it, since that
    is finer; else the broker's.

    A record is made before it is stored, and not long before. Unit: microseconds since 1970.
    """
    stored_us = message.timestamp_ms * 1000
    told_us = int(message.record.at_us)
    is_allowed = stored_us - _TRUSTED_US <= told_us <= stored_us + 999
    return told_us if is_allowed else stored_us


def said(**values: Value | None) -> dict[str, Value]:
    """Return the attributes under `sluice.`, without those that say nothing.

    An underscore pair stands for a dot: `wal__first` is `sluice.wal.first`.
    """
    return {
        f"sluice.{name.replace('__', '.')}": value
        for name, value in values.items()
        if value is not None and value not in ("", ())
    }
