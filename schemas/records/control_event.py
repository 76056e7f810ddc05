"""What the whole run is told.

Generated from `schemas/avro/control_event.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import ControlKind
from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId
from schemas.records.parts import LogEnd

_CONTROLKIND = {member.value: member for member in ControlKind if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEvent:
    """What the whole run is told."""

    run_id: RunId
    """The run this record belongs to."""
    kind: ControlKind
    """What."""
    ends: tuple[LogEnd, ...] = ()
    """Start, EndOfStream, Audited, Snapshot: offsets per partition."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """EndOfStream, Audited, Snapshot: counts by name. Unit: records."""
    scheduler_epoch: int = 0
    """SchedulerFence, Draining, EndOfStream, Snapshot: epoch of the scheduler. Unit: epochs."""
    scheduler_id: WorkerId = WorkerId("")
    """That scheduler."""
    settings: str = ""
    """Start: the resolved settings as JSON, without secrets."""
    reason: str = ""
    """Human sentence."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""
    snapshot: str = ""
    """Snapshot: JSON of what its ends and counts do not say: the fences at the floors, and which ordinals are not settled."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("ControlEvent", "run_id", self.run_id)
        if type(self.kind) is not ControlKind:
            raise FieldTypeError("ControlEvent", "kind", self.kind)
        if type(self.ends) is not tuple or any(type(item) is not LogEnd for item in self.ends):
            raise FieldTypeError("ControlEvent", "ends", self.ends)
        if not isinstance(self.counts, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.counts.items()):
            raise FieldTypeError("ControlEvent", "counts", self.counts)
        if type(self.scheduler_epoch) is not int or not -0x8000000000000000 <= self.scheduler_epoch < 0x8000000000000000:
            raise FieldTypeError("ControlEvent", "scheduler_epoch", self.scheduler_epoch)
        if type(self.scheduler_id) is not str:
            raise FieldTypeError("ControlEvent", "scheduler_id", self.scheduler_id)
        if type(self.settings) is not str:
            raise FieldTypeError("ControlEvent", "settings", self.settings)
        if type(self.reason) is not str:
            raise FieldTypeError("ControlEvent", "reason", self.reason)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("ControlEvent", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("ControlEvent", "writer_id", self.writer_id)
        if type(self.snapshot) is not str:
            raise FieldTypeError("ControlEvent", "snapshot", self.snapshot)
        return {
            "run_id": self.run_id,
            "kind": self.kind,
            "ends": [part.to_avro() for part in self.ends],
            "counts": dict(self.counts),
            "scheduler_epoch": self.scheduler_epoch,
            "scheduler_id": self.scheduler_id,
            "settings": self.settings,
            "reason": self.reason,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
            "snapshot": self.snapshot,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            kind=_CONTROLKIND[raw["kind"]],
            ends=tuple([LogEnd.from_avro(part) for part in raw["ends"]]),
            counts=raw["counts"],
            scheduler_epoch=raw["scheduler_epoch"],
            scheduler_id=WorkerId(raw["scheduler_id"]),
            settings=raw["settings"],
            reason=raw["reason"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
            snapshot=raw["snapshot"],
        )


class ControlEventDraft:
    """The layout of ControlEvent without its lock: it is filled, then becomes the record."""

    __slots__ = ControlEvent.__slots__


def _init_ControlEvent(
    self: Any,
    *,
    run_id: RunId,
    kind: ControlKind,
    ends: tuple[LogEnd, ...] = (),  # noqa: B008  immutable
    counts: Mapping[str, int] = _NEW_MAP,
    scheduler_epoch: int = 0,  # noqa: B008  immutable
    scheduler_id: WorkerId = WorkerId(""),  # noqa: B008  immutable
    settings: str = "",  # noqa: B008  immutable
    reason: str = "",  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
    snapshot: str = "",  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", ControlEventDraft)
    self.run_id = run_id
    self.kind = kind
    self.ends = ends
    self.counts = {} if counts is _NEW_MAP else counts
    self.scheduler_epoch = scheduler_epoch
    self.scheduler_id = scheduler_id
    self.settings = settings
    self.reason = reason
    self.at_us = at_us
    self.writer_id = writer_id
    self.snapshot = snapshot
    self.__class__ = ControlEvent


# What it does is what the generated one does; `replace` and `copy` go through it too.
ControlEvent.__init__ = _init_ControlEvent  # type: ignore[method-assign]
