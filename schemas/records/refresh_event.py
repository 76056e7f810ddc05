"""One phase of a worker's change to a policy version.

Generated from `schemas/avro/refresh_event.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import RefreshEventKind
from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId

_REFRESHEVENTKIND = {member.value: member for member in RefreshEventKind if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshEvent:
    """One phase of a worker's change to a policy version."""

    run_id: RunId
    """The run this record belongs to."""
    worker_id: WorkerId
    """The inference worker concerned."""
    incarnation: str = ""
    """Its start, as in WorkerState."""
    kind: RefreshEventKind
    """Prepare, Loaded, Failed or Serving."""
    epoch: int
    """Epoch of the version. Unit: epochs."""
    number: int
    """Number of the version. Unit: versions."""
    digest: str = ""
    """Digest of the version."""
    fetch_us: int = 0
    """Time to fetch and verify. Unit: us."""
    pause_us: int = 0
    """Time the engine stood still. Unit: us."""
    load_us: int = 0
    """Time to load. Unit: us."""
    probe_error: float = -1.0
    """Largest difference of a probe's log-probs to the reference; -1 when not probed. Unit: nats."""
    inflight: int = 0
    """Requests in flight across the change. Unit: requests."""
    detail: str = ""
    """Why it failed, and what to do."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("RefreshEvent", "run_id", self.run_id)
        if type(self.worker_id) is not str:
            raise FieldTypeError("RefreshEvent", "worker_id", self.worker_id)
        if type(self.incarnation) is not str:
            raise FieldTypeError("RefreshEvent", "incarnation", self.incarnation)
        if type(self.kind) is not RefreshEventKind:
            raise FieldTypeError("RefreshEvent", "kind", self.kind)
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "epoch", self.epoch)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "number", self.number)
        if type(self.digest) is not str:
            raise FieldTypeError("RefreshEvent", "digest", self.digest)
        if type(self.fetch_us) is not int or not -0x8000000000000000 <= self.fetch_us < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "fetch_us", self.fetch_us)
        if type(self.pause_us) is not int or not -0x8000000000000000 <= self.pause_us < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "pause_us", self.pause_us)
        if type(self.load_us) is not int or not -0x8000000000000000 <= self.load_us < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "load_us", self.load_us)
        if type(self.probe_error) is not float:
            raise FieldTypeError("RefreshEvent", "probe_error", self.probe_error)
        if type(self.inflight) is not int or not -0x8000000000000000 <= self.inflight < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "inflight", self.inflight)
        if type(self.detail) is not str:
            raise FieldTypeError("RefreshEvent", "detail", self.detail)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("RefreshEvent", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("RefreshEvent", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "worker_id": self.worker_id,
            "incarnation": self.incarnation,
            "kind": self.kind,
            "epoch": self.epoch,
            "number": self.number,
            "digest": self.digest,
            "fetch_us": self.fetch_us,
            "pause_us": self.pause_us,
            "load_us": self.load_us,
            "probe_error": self.probe_error,
            "inflight": self.inflight,
            "detail": self.detail,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            worker_id=WorkerId(raw["worker_id"]),
            incarnation=raw["incarnation"],
            kind=_REFRESHEVENTKIND[raw["kind"]],
            epoch=raw["epoch"],
            number=raw["number"],
            digest=raw["digest"],
            fetch_us=raw["fetch_us"],
            pause_us=raw["pause_us"],
            load_us=raw["load_us"],
            probe_error=raw["probe_error"],
            inflight=raw["inflight"],
            detail=raw["detail"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class RefreshEventDraft:
    """The layout of RefreshEvent without its lock: it is filled, then becomes the record."""

    __slots__ = RefreshEvent.__slots__


def _init_RefreshEvent(
    self: Any,
    *,
    run_id: RunId,
    worker_id: WorkerId,
    incarnation: str = "",  # noqa: B008  immutable
    kind: RefreshEventKind,
    epoch: int,
    number: int,
    digest: str = "",  # noqa: B008  immutable
    fetch_us: int = 0,  # noqa: B008  immutable
    pause_us: int = 0,  # noqa: B008  immutable
    load_us: int = 0,  # noqa: B008  immutable
    probe_error: float = -1.0,  # noqa: B008  immutable
    inflight: int = 0,  # noqa: B008  immutable
    detail: str = "",  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", RefreshEventDraft)
    self.run_id = run_id
    self.worker_id = worker_id
    self.incarnation = incarnation
    self.kind = kind
    self.epoch = epoch
    self.number = number
    self.digest = digest
    self.fetch_us = fetch_us
    self.pause_us = pause_us
    self.load_us = load_us
    self.probe_error = probe_error
    self.inflight = inflight
    self.detail = detail
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = RefreshEvent


# What it does is what the generated one does; `replace` and `copy` go through it too.
RefreshEvent.__init__ = _init_RefreshEvent  # type: ignore[method-assign]
