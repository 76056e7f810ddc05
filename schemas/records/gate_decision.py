"""The decision on one group; the first in log order is the decision.

Generated from `schemas/avro/gate_decision.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.errors import FieldTypeError
from schemas.ids import GroupId, RunId, TaskId, WorkerId
from schemas.records.parts import MemberDecision

_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """The decision on one group; the first in log order is the decision."""

    run_id: RunId
    """The run this record belongs to."""
    group_id: GroupId
    """The group."""
    task_id: TaskId = TaskId("")
    """Its task."""
    ordinal: int = 0
    """Ordinal of the task. Unit: tasks."""
    members: tuple[MemberDecision, ...] = ()
    """One entry per member with a Trajectory."""
    abandoned: tuple[str, ...] = ()
    """Members that were abandoned."""
    group_mean: float = 0.0
    """Mean reward over members with a reward. Unit: reward."""
    group_deviation: float = 0.0
    """Population standard deviation of the same. Unit: reward."""
    group_count: int = 0
    """Members with a reward. Unit: episodes."""
    learner_epoch: int = 0
    """Learner epoch known then. Unit: epochs."""
    learner_ordinal: int = 0
    """Newest ordinal known then. Unit: updates."""
    draining: bool = False
    """Decided after Draining."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("GateDecision", "run_id", self.run_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("GateDecision", "group_id", self.group_id)
        if type(self.task_id) is not str:
            raise FieldTypeError("GateDecision", "task_id", self.task_id)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("GateDecision", "ordinal", self.ordinal)
        if type(self.members) is not tuple or any(type(item) is not MemberDecision for item in self.members):
            raise FieldTypeError("GateDecision", "members", self.members)
        if type(self.abandoned) is not tuple or any(type(item) is not str for item in self.abandoned):
            raise FieldTypeError("GateDecision", "abandoned", self.abandoned)
        if type(self.group_mean) is not float:
            raise FieldTypeError("GateDecision", "group_mean", self.group_mean)
        if type(self.group_deviation) is not float:
            raise FieldTypeError("GateDecision", "group_deviation", self.group_deviation)
        if type(self.group_count) is not int or not -0x8000000000000000 <= self.group_count < 0x8000000000000000:
            raise FieldTypeError("GateDecision", "group_count", self.group_count)
        if type(self.learner_epoch) is not int or not -0x8000000000000000 <= self.learner_epoch < 0x8000000000000000:
            raise FieldTypeError("GateDecision", "learner_epoch", self.learner_epoch)
        if type(self.learner_ordinal) is not int or not -0x8000000000000000 <= self.learner_ordinal < 0x8000000000000000:
            raise FieldTypeError("GateDecision", "learner_ordinal", self.learner_ordinal)
        if type(self.draining) is not bool:
            raise FieldTypeError("GateDecision", "draining", self.draining)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("GateDecision", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("GateDecision", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "group_id": self.group_id,
            "task_id": self.task_id,
            "ordinal": self.ordinal,
            "members": [part.to_avro() for part in self.members],
            "abandoned": list(self.abandoned),
            "group_mean": self.group_mean,
            "group_deviation": self.group_deviation,
            "group_count": self.group_count,
            "learner_epoch": self.learner_epoch,
            "learner_ordinal": self.learner_ordinal,
            "draining": self.draining,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            group_id=GroupId(raw["group_id"]),
            task_id=TaskId(raw["task_id"]),
            ordinal=raw["ordinal"],
            members=tuple([MemberDecision.from_avro(part) for part in raw["members"]]),
            abandoned=tuple(raw["abandoned"]),
            group_mean=raw["group_mean"],
            group_deviation=raw["group_deviation"],
            group_count=raw["group_count"],
            learner_epoch=raw["learner_epoch"],
            learner_ordinal=raw["learner_ordinal"],
            draining=raw["draining"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class GateDecisionDraft:
    """The layout of GateDecision without its lock: it is filled, then becomes the record."""

    __slots__ = GateDecision.__slots__


def _init_GateDecision(
    self: Any,
    *,
    run_id: RunId,
    group_id: GroupId,
    task_id: TaskId = TaskId(""),  # noqa: B008  immutable
    ordinal: int = 0,  # noqa: B008  immutable
    members: tuple[MemberDecision, ...] = (),  # noqa: B008  immutable
    abandoned: tuple[str, ...] = (),  # noqa: B008  immutable
    group_mean: float = 0.0,  # noqa: B008  immutable
    group_deviation: float = 0.0,  # noqa: B008  immutable
    group_count: int = 0,  # noqa: B008  immutable
    learner_epoch: int = 0,  # noqa: B008  immutable
    learner_ordinal: int = 0,  # noqa: B008  immutable
    draining: bool = False,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", GateDecisionDraft)
    self.run_id = run_id
    self.group_id = group_id
    self.task_id = task_id
    self.ordinal = ordinal
    self.members = members
    self.abandoned = abandoned
    self.group_mean = group_mean
    self.group_deviation = group_deviation
    self.group_count = group_count
    self.learner_epoch = learner_epoch
    self.learner_ordinal = learner_ordinal
    self.draining = draining
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = GateDecision


# What it does is what the generated one does; `replace` and `copy` go through it too.
GateDecision.__init__ = _init_GateDecision  # type: ignore[method-assign]
