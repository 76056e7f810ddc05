"""A sample that no other record carries.

Generated from `schemas/avro/metric_point.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId

_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """A sample that no other record carries."""

    run_id: RunId
    """The run this record belongs to."""
    name: str
    """Quantity with its unit last."""
    unit: str
    """Unit."""
    value: float
    """Value; may be non-finite, which is counted apart."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Bounded labels."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("MetricPoint", "run_id", self.run_id)
        if type(self.name) is not str:
            raise FieldTypeError("MetricPoint", "name", self.name)
        if type(self.unit) is not str:
            raise FieldTypeError("MetricPoint", "unit", self.unit)
        if type(self.value) is not float:
            raise FieldTypeError("MetricPoint", "value", self.value)
        if not isinstance(self.labels, Mapping) or any(type(key) is not str or type(value) is not str for key, value in self.labels.items()):
            raise FieldTypeError("MetricPoint", "labels", self.labels)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("MetricPoint", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("MetricPoint", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "labels": dict(self.labels),
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            name=raw["name"],
            unit=raw["unit"],
            value=raw["value"],
            labels=raw["labels"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class MetricPointDraft:
    """The layout of MetricPoint without its lock: it is filled, then becomes the record."""

    __slots__ = MetricPoint.__slots__


def _init_MetricPoint(
    self: Any,
    *,
    run_id: RunId,
    name: str,
    unit: str,
    value: float,
    labels: Mapping[str, str] = _NEW_MAP,
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", MetricPointDraft)
    self.run_id = run_id
    self.name = name
    self.unit = unit
    self.value = value
    self.labels = {} if labels is _NEW_MAP else labels
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = MetricPoint


# What it does is what the generated one does; `replace` and `copy` go through it too.
MetricPoint.__init__ = _init_MetricPoint  # type: ignore[method-assign]
