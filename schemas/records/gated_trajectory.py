"""An admitted trajectory, as the learner consumes it.

Generated from `schemas/avro/gated_trajectory.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId

_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class GatedTrajectory:
    """An admitted trajectory, as the learner consumes it."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    trajectory_frame: bytes
    """The framed Trajectory record, verbatim."""
    trajectory_offset: int
    """Offset of the Trajectory in trajectories.v1. Unit: records."""
    trajectory_us: int
    """Broker time of the Trajectory. Unit: us."""
    decision_offset: int
    """Offset of the decision in gate-decisions.v1. Unit: records."""
    input_offset: int
    """The gate's committed input offset of this partition. Unit: records."""
    weight: float = 1.0
    """Loss weight. Unit: ratio."""
    repeat: int = 1
    """How often it counts. Unit: times."""
    group_mean: float = 0.0
    """Mean reward of the group. Unit: reward."""
    group_deviation: float = 0.0
    """Standard deviation of the group. Unit: reward."""
    group_count: int = 0
    """Members with a reward. Unit: episodes."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("GatedTrajectory", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("GatedTrajectory", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("GatedTrajectory", "group_id", self.group_id)
        if type(self.trajectory_frame) is not bytes:
            raise FieldTypeError("GatedTrajectory", "trajectory_frame", self.trajectory_frame)
        if type(self.trajectory_offset) is not int or not -0x8000000000000000 <= self.trajectory_offset < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "trajectory_offset", self.trajectory_offset)
        if type(self.trajectory_us) is not int or not -0x8000000000000000 <= self.trajectory_us < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "trajectory_us", self.trajectory_us)
        if type(self.decision_offset) is not int or not -0x8000000000000000 <= self.decision_offset < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "decision_offset", self.decision_offset)
        if type(self.input_offset) is not int or not -0x8000000000000000 <= self.input_offset < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "input_offset", self.input_offset)
        if type(self.weight) is not float:
            raise FieldTypeError("GatedTrajectory", "weight", self.weight)
        if type(self.repeat) is not int or not -0x8000000000000000 <= self.repeat < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "repeat", self.repeat)
        if type(self.group_mean) is not float:
            raise FieldTypeError("GatedTrajectory", "group_mean", self.group_mean)
        if type(self.group_deviation) is not float:
            raise FieldTypeError("GatedTrajectory", "group_deviation", self.group_deviation)
        if type(self.group_count) is not int or not -0x8000000000000000 <= self.group_count < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "group_count", self.group_count)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("GatedTrajectory", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("GatedTrajectory", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "trajectory_frame": self.trajectory_frame,
            "trajectory_offset": self.trajectory_offset,
            "trajectory_us": self.trajectory_us,
            "decision_offset": self.decision_offset,
            "input_offset": self.input_offset,
            "weight": self.weight,
            "repeat": self.repeat,
            "group_mean": self.group_mean,
            "group_deviation": self.group_deviation,
            "group_count": self.group_count,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            trajectory_frame=raw["trajectory_frame"],
            trajectory_offset=raw["trajectory_offset"],
            trajectory_us=raw["trajectory_us"],
            decision_offset=raw["decision_offset"],
            input_offset=raw["input_offset"],
            weight=raw["weight"],
            repeat=raw["repeat"],
            group_mean=raw["group_mean"],
            group_deviation=raw["group_deviation"],
            group_count=raw["group_count"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class GatedTrajectoryDraft:
    """The layout of GatedTrajectory without its lock: it is filled, then becomes the record."""

    __slots__ = GatedTrajectory.__slots__


def _init_GatedTrajectory(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    trajectory_frame: bytes,
    trajectory_offset: int,
    trajectory_us: int,
    decision_offset: int,
    input_offset: int,
    weight: float = 1.0,  # noqa: B008  immutable
    repeat: int = 1,  # noqa: B008  immutable
    group_mean: float = 0.0,  # noqa: B008  immutable
    group_deviation: float = 0.0,  # noqa: B008  immutable
    group_count: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", GatedTrajectoryDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.trajectory_frame = trajectory_frame
    self.trajectory_offset = trajectory_offset
    self.trajectory_us = trajectory_us
    self.decision_offset = decision_offset
    self.input_offset = input_offset
    self.weight = weight
    self.repeat = repeat
    self.group_mean = group_mean
    self.group_deviation = group_deviation
    self.group_count = group_count
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = GatedTrajectory


# What it does is what the generated one does; `replace` and `copy` go through it too.
GatedTrajectory.__init__ = _init_GatedTrajectory  # type: ignore[method-assign]
