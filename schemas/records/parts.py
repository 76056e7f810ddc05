"""Records that stand inside others.

Generated from `schemas/avro/*.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import DropReason, GateOutcome
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId

_DROPREASON = {member.value: member for member in DropReason if member != "unknown"}
_GATEOUTCOME = {member.value: member for member in GateOutcome if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRef:
    """Where one payload chunk stands and how to check it."""

    partition: int
    """Partition of payloads.v1."""
    offset: int
    """Offset in that partition. Unit: records."""
    length: int
    """Body length. Unit: bytes."""
    crc32c: int
    """CRC-32C of the body."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.partition) is not int or not -0x8000000000000000 <= self.partition < 0x8000000000000000:
            raise FieldTypeError("ChunkRef", "partition", self.partition)
        if type(self.offset) is not int or not -0x8000000000000000 <= self.offset < 0x8000000000000000:
            raise FieldTypeError("ChunkRef", "offset", self.offset)
        if type(self.length) is not int or not -0x8000000000000000 <= self.length < 0x8000000000000000:
            raise FieldTypeError("ChunkRef", "length", self.length)
        if type(self.crc32c) is not int or not -0x8000000000000000 <= self.crc32c < 0x8000000000000000:
            raise FieldTypeError("ChunkRef", "crc32c", self.crc32c)
        return {
            "partition": self.partition,
            "offset": self.offset,
            "length": self.length,
            "crc32c": self.crc32c,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            partition=raw["partition"],
            offset=raw["offset"],
            length=raw["length"],
            crc32c=raw["crc32c"],
        )


class ChunkRefDraft:
    """The layout of ChunkRef without its lock: it is filled, then becomes the record."""

    __slots__ = ChunkRef.__slots__


def _init_ChunkRef(
    self: Any,
    *,
    partition: int,
    offset: int,
    length: int,
    crc32c: int,
) -> None:
    _open(self, "__class__", ChunkRefDraft)
    self.partition = partition
    self.offset = offset
    self.length = length
    self.crc32c = crc32c
    self.__class__ = ChunkRef


# What it does is what the generated one does; `replace` and `copy` go through it too.
ChunkRef.__init__ = _init_ChunkRef  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """An end or floor offset of one partition."""

    topic: str
    """Logical topic name, without the prefix."""
    topic_id: str = ""
    """The broker's id of the topic."""
    partition: int
    """Partition number."""
    offset: int
    """Next offset. Unit: records."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.topic) is not str:
            raise FieldTypeError("LogEnd", "topic", self.topic)
        if type(self.topic_id) is not str:
            raise FieldTypeError("LogEnd", "topic_id", self.topic_id)
        if type(self.partition) is not int or not -0x8000000000000000 <= self.partition < 0x8000000000000000:
            raise FieldTypeError("LogEnd", "partition", self.partition)
        if type(self.offset) is not int or not -0x8000000000000000 <= self.offset < 0x8000000000000000:
            raise FieldTypeError("LogEnd", "offset", self.offset)
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "offset": self.offset,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            topic=raw["topic"],
            topic_id=raw["topic_id"],
            partition=raw["partition"],
            offset=raw["offset"],
        )


class LogEndDraft:
    """The layout of LogEnd without its lock: it is filled, then becomes the record."""

    __slots__ = LogEnd.__slots__


def _init_LogEnd(
    self: Any,
    *,
    topic: str,
    topic_id: str = "",  # noqa: B008  immutable
    partition: int,
    offset: int,
) -> None:
    _open(self, "__class__", LogEndDraft)
    self.topic = topic
    self.topic_id = topic_id
    self.partition = partition
    self.offset = offset
    self.__class__ = LogEnd


# What it does is what the generated one does; `replace` and `copy` go through it too.
LogEnd.__init__ = _init_LogEnd  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDecision:
    """The gate's decision on one member of a group."""

    episode_id: EpisodeId
    """The member."""
    trajectory_offset: int
    """Offset of its counting Trajectory in trajectories.v1. Unit: records."""
    outcome: GateOutcome
    """Admit or drop."""
    reason: DropReason = DropReason.NONE
    """Why it was dropped; none when admitted."""
    weight: float = 1.0
    """Loss weight, 1 at lag 0. Unit: ratio."""
    repeat: int = 1
    """How often the member counts in its group. Unit: times."""
    lag_steps: int = 0
    """Lag of its oldest action token at this moment, in optimiser updates. Unit: updates."""
    age_ms: int = 0
    """Broker time of the Trajectory against the gate's clock. Unit: ms."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.episode_id) is not str:
            raise FieldTypeError("MemberDecision", "episode_id", self.episode_id)
        if type(self.trajectory_offset) is not int or not -0x8000000000000000 <= self.trajectory_offset < 0x8000000000000000:
            raise FieldTypeError("MemberDecision", "trajectory_offset", self.trajectory_offset)
        if type(self.outcome) is not GateOutcome:
            raise FieldTypeError("MemberDecision", "outcome", self.outcome)
        if type(self.reason) is not DropReason:
            raise FieldTypeError("MemberDecision", "reason", self.reason)
        if type(self.weight) is not float:
            raise FieldTypeError("MemberDecision", "weight", self.weight)
        if type(self.repeat) is not int or not -0x8000000000000000 <= self.repeat < 0x8000000000000000:
            raise FieldTypeError("MemberDecision", "repeat", self.repeat)
        if type(self.lag_steps) is not int or not -0x8000000000000000 <= self.lag_steps < 0x8000000000000000:
            raise FieldTypeError("MemberDecision", "lag_steps", self.lag_steps)
        if type(self.age_ms) is not int or not -0x8000000000000000 <= self.age_ms < 0x8000000000000000:
            raise FieldTypeError("MemberDecision", "age_ms", self.age_ms)
        return {
            "episode_id": self.episode_id,
            "trajectory_offset": self.trajectory_offset,
            "outcome": self.outcome,
            "reason": self.reason,
            "weight": self.weight,
            "repeat": self.repeat,
            "lag_steps": self.lag_steps,
            "age_ms": self.age_ms,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            episode_id=EpisodeId(raw["episode_id"]),
            trajectory_offset=raw["trajectory_offset"],
            outcome=_GATEOUTCOME[raw["outcome"]],
            reason=_DROPREASON[raw["reason"]],
            weight=raw["weight"],
            repeat=raw["repeat"],
            lag_steps=raw["lag_steps"],
            age_ms=raw["age_ms"],
        )


class MemberDecisionDraft:
    """The layout of MemberDecision without its lock: it is filled, then becomes the record."""

    __slots__ = MemberDecision.__slots__


def _init_MemberDecision(
    self: Any,
    *,
    episode_id: EpisodeId,
    trajectory_offset: int,
    outcome: GateOutcome,
    reason: DropReason = DropReason.NONE,  # noqa: B008  immutable
    weight: float = 1.0,  # noqa: B008  immutable
    repeat: int = 1,  # noqa: B008  immutable
    lag_steps: int = 0,  # noqa: B008  immutable
    age_ms: int = 0,  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", MemberDecisionDraft)
    self.episode_id = episode_id
    self.trajectory_offset = trajectory_offset
    self.outcome = outcome
    self.reason = reason
    self.weight = weight
    self.repeat = repeat
    self.lag_steps = lag_steps
    self.age_ms = age_ms
    self.__class__ = MemberDecision


# What it does is what the generated one does; `replace` and `copy` go through it too.
MemberDecision.__init__ = _init_MemberDecision  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpan:
    """A run of action tokens sampled under one policy version."""

    start: int
    """Index of the first token in the episode, inclusive. Unit: tokens."""
    end: int
    """Index after the last token. Unit: tokens."""
    epoch: int
    """Epoch of the policy version. Unit: epochs."""
    number: int
    """Number of the policy version. Unit: versions."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.start) is not int or not -0x8000000000000000 <= self.start < 0x8000000000000000:
            raise FieldTypeError("PolicySpan", "start", self.start)
        if type(self.end) is not int or not -0x8000000000000000 <= self.end < 0x8000000000000000:
            raise FieldTypeError("PolicySpan", "end", self.end)
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("PolicySpan", "epoch", self.epoch)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("PolicySpan", "number", self.number)
        return {
            "start": self.start,
            "end": self.end,
            "epoch": self.epoch,
            "number": self.number,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            start=raw["start"],
            end=raw["end"],
            epoch=raw["epoch"],
            number=raw["number"],
        )


class PolicySpanDraft:
    """The layout of PolicySpan without its lock: it is filled, then becomes the record."""

    __slots__ = PolicySpan.__slots__


def _init_PolicySpan(
    self: Any,
    *,
    start: int,
    end: int,
    epoch: int,
    number: int,
) -> None:
    _open(self, "__class__", PolicySpanDraft)
    self.start = start
    self.end = end
    self.epoch = epoch
    self.number = number
    self.__class__ = PolicySpan


# What it does is what the generated one does; `replace` and `copy` go through it too.
PolicySpan.__init__ = _init_PolicySpan  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedMember:
    """One gated trajectory that the learner discarded."""

    episode_id: EpisodeId
    """The trajectory's episode."""
    partition: int
    """Partition in gated.v1."""
    offset: int
    """Offset in gated.v1. Unit: records."""
    reason: DropReason
    """Why."""
    lag_steps: int = 0
    """Lag at that moment. Unit: updates."""
    age_ms: int = 0
    """Age at that moment. Unit: ms."""
    action_tokens: int = 0
    """Action tokens lost. Unit: tokens."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.episode_id) is not str:
            raise FieldTypeError("SkippedMember", "episode_id", self.episode_id)
        if type(self.partition) is not int or not -0x8000000000000000 <= self.partition < 0x8000000000000000:
            raise FieldTypeError("SkippedMember", "partition", self.partition)
        if type(self.offset) is not int or not -0x8000000000000000 <= self.offset < 0x8000000000000000:
            raise FieldTypeError("SkippedMember", "offset", self.offset)
        if type(self.reason) is not DropReason:
            raise FieldTypeError("SkippedMember", "reason", self.reason)
        if type(self.lag_steps) is not int or not -0x8000000000000000 <= self.lag_steps < 0x8000000000000000:
            raise FieldTypeError("SkippedMember", "lag_steps", self.lag_steps)
        if type(self.age_ms) is not int or not -0x8000000000000000 <= self.age_ms < 0x8000000000000000:
            raise FieldTypeError("SkippedMember", "age_ms", self.age_ms)
        if type(self.action_tokens) is not int or not -0x8000000000000000 <= self.action_tokens < 0x8000000000000000:
            raise FieldTypeError("SkippedMember", "action_tokens", self.action_tokens)
        return {
            "episode_id": self.episode_id,
            "partition": self.partition,
            "offset": self.offset,
            "reason": self.reason,
            "lag_steps": self.lag_steps,
            "age_ms": self.age_ms,
            "action_tokens": self.action_tokens,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            episode_id=EpisodeId(raw["episode_id"]),
            partition=raw["partition"],
            offset=raw["offset"],
            reason=_DROPREASON[raw["reason"]],
            lag_steps=raw["lag_steps"],
            age_ms=raw["age_ms"],
            action_tokens=raw["action_tokens"],
        )


class SkippedMemberDraft:
    """The layout of SkippedMember without its lock: it is filled, then becomes the record."""

    __slots__ = SkippedMember.__slots__


def _init_SkippedMember(
    self: Any,
    *,
    episode_id: EpisodeId,
    partition: int,
    offset: int,
    reason: DropReason,
    lag_steps: int = 0,  # noqa: B008  immutable
    age_ms: int = 0,  # noqa: B008  immutable
    action_tokens: int = 0,  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", SkippedMemberDraft)
    self.episode_id = episode_id
    self.partition = partition
    self.offset = offset
    self.reason = reason
    self.lag_steps = lag_steps
    self.age_ms = age_ms
    self.action_tokens = action_tokens
    self.__class__ = SkippedMember


# What it does is what the generated one does; `replace` and `copy` go through it too.
SkippedMember.__init__ = _init_SkippedMember  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRef:
    """A step or checkpoint named by another record."""

    epoch: int
    """Epoch. Unit: epochs."""
    number: int
    """Version number. Unit: versions."""
    ordinal: int = 0
    """Optimiser updates since the run's start. Unit: updates."""
    offset: int = -1
    """Offset in learner-steps.v1; -1 when the record is missing. Unit: records."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("StepRef", "epoch", self.epoch)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("StepRef", "number", self.number)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("StepRef", "ordinal", self.ordinal)
        if type(self.offset) is not int or not -0x8000000000000000 <= self.offset < 0x8000000000000000:
            raise FieldTypeError("StepRef", "offset", self.offset)
        return {
            "epoch": self.epoch,
            "number": self.number,
            "ordinal": self.ordinal,
            "offset": self.offset,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            epoch=raw["epoch"],
            number=raw["number"],
            ordinal=raw["ordinal"],
            offset=raw["offset"],
        )


class StepRefDraft:
    """The layout of StepRef without its lock: it is filled, then becomes the record."""

    __slots__ = StepRef.__slots__


def _init_StepRef(
    self: Any,
    *,
    epoch: int,
    number: int,
    ordinal: int = 0,  # noqa: B008  immutable
    offset: int = -1,  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", StepRefDraft)
    self.epoch = epoch
    self.number = number
    self.ordinal = ordinal
    self.offset = offset
    self.__class__ = StepRef


# What it does is what the generated one does; `replace` and `copy` go through it too.
StepRef.__init__ = _init_StepRef  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMember:
    """One trajectory consumed by a Step."""

    episode_id: EpisodeId
    """The trajectory's episode."""
    group_id: GroupId = GroupId("")
    """Its group."""
    partition: int
    """Partition in gated.v1."""
    offset: int
    """Offset in gated.v1. Unit: records."""
    trajectory_offset: int = 0
    """Offset of the Trajectory in trajectories.v1. Unit: records."""
    environment: str = ""
    """Environment package of the task."""
    lag_steps: int = 0
    """Lag of the oldest action token when consumed. Unit: updates."""
    lag_s: float = 0.0
    """The same lag in seconds between the versions' publications. Unit: s."""
    kl: float = 0.0
    """Mean KL estimate of behaviour and current policy over its action tokens. Unit: nats."""
    age_ms: int = 0
    """Age of the Trajectory when consumed. Unit: ms."""
    first_token_age_ms: int = 0
    """Age of its first token when consumed. Unit: ms."""
    action_tokens: int = 0
    """Action tokens of the counting line. Unit: tokens."""
    kept_tokens: int = 0
    """Tokens inside the band. Unit: tokens."""
    masked_low: int = 0
    """Tokens rejected below the band. Unit: tokens."""
    masked_high: int = 0
    """Tokens rejected above the band. Unit: tokens."""
    masked_other: Mapping[str, int] = field(default_factory=dict)
    """Tokens masked for other reasons. Unit: tokens."""
    reward: float = 0.0
    """Reward used. Unit: reward."""
    advantage: float = 0.0
    """Advantage used. Unit: reward."""
    weight: float = 1.0
    """Loss weight used. Unit: ratio."""
    repeat: int = 1
    """How often it counted. Unit: times."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.episode_id) is not str:
            raise FieldTypeError("TrainedMember", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("TrainedMember", "group_id", self.group_id)
        if type(self.partition) is not int or not -0x8000000000000000 <= self.partition < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "partition", self.partition)
        if type(self.offset) is not int or not -0x8000000000000000 <= self.offset < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "offset", self.offset)
        if type(self.trajectory_offset) is not int or not -0x8000000000000000 <= self.trajectory_offset < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "trajectory_offset", self.trajectory_offset)
        if type(self.environment) is not str:
            raise FieldTypeError("TrainedMember", "environment", self.environment)
        if type(self.lag_steps) is not int or not -0x8000000000000000 <= self.lag_steps < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "lag_steps", self.lag_steps)
        if type(self.lag_s) is not float:
            raise FieldTypeError("TrainedMember", "lag_s", self.lag_s)
        if type(self.kl) is not float:
            raise FieldTypeError("TrainedMember", "kl", self.kl)
        if type(self.age_ms) is not int or not -0x8000000000000000 <= self.age_ms < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "age_ms", self.age_ms)
        if type(self.first_token_age_ms) is not int or not -0x8000000000000000 <= self.first_token_age_ms < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "first_token_age_ms", self.first_token_age_ms)
        if type(self.action_tokens) is not int or not -0x8000000000000000 <= self.action_tokens < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "action_tokens", self.action_tokens)
        if type(self.kept_tokens) is not int or not -0x8000000000000000 <= self.kept_tokens < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "kept_tokens", self.kept_tokens)
        if type(self.masked_low) is not int or not -0x8000000000000000 <= self.masked_low < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "masked_low", self.masked_low)
        if type(self.masked_high) is not int or not -0x8000000000000000 <= self.masked_high < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "masked_high", self.masked_high)
        if not isinstance(self.masked_other, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.masked_other.items()):
            raise FieldTypeError("TrainedMember", "masked_other", self.masked_other)
        if type(self.reward) is not float:
            raise FieldTypeError("TrainedMember", "reward", self.reward)
        if type(self.advantage) is not float:
            raise FieldTypeError("TrainedMember", "advantage", self.advantage)
        if type(self.weight) is not float:
            raise FieldTypeError("TrainedMember", "weight", self.weight)
        if type(self.repeat) is not int or not -0x8000000000000000 <= self.repeat < 0x8000000000000000:
            raise FieldTypeError("TrainedMember", "repeat", self.repeat)
        return {
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "partition": self.partition,
            "offset": self.offset,
            "trajectory_offset": self.trajectory_offset,
            "environment": self.environment,
            "lag_steps": self.lag_steps,
            "lag_s": self.lag_s,
            "kl": self.kl,
            "age_ms": self.age_ms,
            "first_token_age_ms": self.first_token_age_ms,
            "action_tokens": self.action_tokens,
            "kept_tokens": self.kept_tokens,
            "masked_low": self.masked_low,
            "masked_high": self.masked_high,
            "masked_other": dict(self.masked_other),
            "reward": self.reward,
            "advantage": self.advantage,
            "weight": self.weight,
            "repeat": self.repeat,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            partition=raw["partition"],
            offset=raw["offset"],
            trajectory_offset=raw["trajectory_offset"],
            environment=raw["environment"],
            lag_steps=raw["lag_steps"],
            lag_s=raw["lag_s"],
            kl=raw["kl"],
            age_ms=raw["age_ms"],
            first_token_age_ms=raw["first_token_age_ms"],
            action_tokens=raw["action_tokens"],
            kept_tokens=raw["kept_tokens"],
            masked_low=raw["masked_low"],
            masked_high=raw["masked_high"],
            masked_other=raw["masked_other"],
            reward=raw["reward"],
            advantage=raw["advantage"],
            weight=raw["weight"],
            repeat=raw["repeat"],
        )


class TrainedMemberDraft:
    """The layout of TrainedMember without its lock: it is filled, then becomes the record."""

    __slots__ = TrainedMember.__slots__


def _init_TrainedMember(
    self: Any,
    *,
    episode_id: EpisodeId,
    group_id: GroupId = GroupId(""),  # noqa: B008  immutable
    partition: int,
    offset: int,
    trajectory_offset: int = 0,  # noqa: B008  immutable
    environment: str = "",  # noqa: B008  immutable
    lag_steps: int = 0,  # noqa: B008  immutable
    lag_s: float = 0.0,  # noqa: B008  immutable
    kl: float = 0.0,  # noqa: B008  immutable
    age_ms: int = 0,  # noqa: B008  immutable
    first_token_age_ms: int = 0,  # noqa: B008  immutable
    action_tokens: int = 0,  # noqa: B008  immutable
    kept_tokens: int = 0,  # noqa: B008  immutable
    masked_low: int = 0,  # noqa: B008  immutable
    masked_high: int = 0,  # noqa: B008  immutable
    masked_other: Mapping[str, int] = _NEW_MAP,
    reward: float = 0.0,  # noqa: B008  immutable
    advantage: float = 0.0,  # noqa: B008  immutable
    weight: float = 1.0,  # noqa: B008  immutable
    repeat: int = 1,  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", TrainedMemberDraft)
    self.episode_id = episode_id
    self.group_id = group_id
    self.partition = partition
    self.offset = offset
    self.trajectory_offset = trajectory_offset
    self.environment = environment
    self.lag_steps = lag_steps
    self.lag_s = lag_s
    self.kl = kl
    self.age_ms = age_ms
    self.first_token_age_ms = first_token_age_ms
    self.action_tokens = action_tokens
    self.kept_tokens = kept_tokens
    self.masked_low = masked_low
    self.masked_high = masked_high
    self.masked_other = {} if masked_other is _NEW_MAP else masked_other
    self.reward = reward
    self.advantage = advantage
    self.weight = weight
    self.repeat = repeat
    self.__class__ = TrainedMember


# What it does is what the generated one does; `replace` and `copy` go through it too.
TrainedMember.__init__ = _init_TrainedMember  # type: ignore[method-assign]
