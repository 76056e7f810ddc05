"""What a worker process is and does.

Generated from `schemas/avro/worker_state.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import Role, WorkerStatus
from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId

_ROLE = {member.value: member for member in Role if member != "unknown"}
_WORKERSTATUS = {member.value: member for member in WorkerStatus if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker process is and does."""

    run_id: RunId
    """The run this record belongs to."""
    worker_id: WorkerId
    """The worker."""
    role: Role
    """Its role."""
    address: str = ""
    """Where it listens, as a URL; empty when it does not."""
    capacity: int = 0
    """Episodes or requests it takes at once. Unit: requests."""
    incarnation: str
    """Unique per process start."""
    status: WorkerStatus
    """State."""
    epoch: int = 0
    """Inference: epoch of the version being served. Unit: epochs."""
    number: int = 0
    """Inference: number of the version being served. Unit: versions."""
    host: str = ""
    """Host name."""
    pid: int = 0
    """Process id."""
    detail: str = ""
    """What it waits for, or why it failed."""
    started_us: int = 0
    """Start of the process. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("WorkerState", "run_id", self.run_id)
        if type(self.worker_id) is not str:
            raise FieldTypeError("WorkerState", "worker_id", self.worker_id)
        if type(self.role) is not Role:
            raise FieldTypeError("WorkerState", "role", self.role)
        if type(self.address) is not str:
            raise FieldTypeError("WorkerState", "address", self.address)
        if type(self.capacity) is not int or not -0x8000000000000000 <= self.capacity < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "capacity", self.capacity)
        if type(self.incarnation) is not str:
            raise FieldTypeError("WorkerState", "incarnation", self.incarnation)
        if type(self.status) is not WorkerStatus:
            raise FieldTypeError("WorkerState", "status", self.status)
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "epoch", self.epoch)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "number", self.number)
        if type(self.host) is not str:
            raise FieldTypeError("WorkerState", "host", self.host)
        if type(self.pid) is not int or not -0x8000000000000000 <= self.pid < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "pid", self.pid)
        if type(self.detail) is not str:
            raise FieldTypeError("WorkerState", "detail", self.detail)
        if type(self.started_us) is not int or not -0x8000000000000000 <= self.started_us < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "started_us", self.started_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("WorkerState", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("WorkerState", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "worker_id": self.worker_id,
            "role": self.role,
            "address": self.address,
            "capacity": self.capacity,
            "incarnation": self.incarnation,
            "status": self.status,
            "epoch": self.epoch,
            "number": self.number,
            "host": self.host,
            "pid": self.pid,
            "detail": self.detail,
            "started_us": self.started_us,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            worker_id=WorkerId(raw["worker_id"]),
            role=_ROLE[raw["role"]],
            address=raw["address"],
            capacity=raw["capacity"],
            incarnation=raw["incarnation"],
            status=_WORKERSTATUS[raw["status"]],
            epoch=raw["epoch"],
            number=raw["number"],
            host=raw["host"],
            pid=raw["pid"],
            detail=raw["detail"],
            started_us=raw["started_us"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class WorkerStateDraft:
    """The layout of WorkerState without its lock: it is filled, then becomes the record."""

    __slots__ = WorkerState.__slots__


def _init_WorkerState(
    self: Any,
    *,
    run_id: RunId,
    worker_id: WorkerId,
    role: Role,
    address: str = "",  # noqa: B008  immutable
    capacity: int = 0,  # noqa: B008  immutable
    incarnation: str,
    status: WorkerStatus,
    epoch: int = 0,  # noqa: B008  immutable
    number: int = 0,  # noqa: B008  immutable
    host: str = "",  # noqa: B008  immutable
    pid: int = 0,  # noqa: B008  immutable
    detail: str = "",  # noqa: B008  immutable
    started_us: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", WorkerStateDraft)
    self.run_id = run_id
    self.worker_id = worker_id
    self.role = role
    self.address = address
    self.capacity = capacity
    self.incarnation = incarnation
    self.status = status
    self.epoch = epoch
    self.number = number
    self.host = host
    self.pid = pid
    self.detail = detail
    self.started_us = started_us
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = WorkerState


# What it does is what the generated one does; `replace` and `copy` go through it too.
WorkerState.__init__ = _init_WorkerState  # type: ignore[method-assign]
