"""One event of the learner; one partition per run orders them all.

Generated from `schemas/avro/learner_event.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import LearnerEventKind
from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId
from schemas.records.parts import ChunkRef, LogEnd, SkippedMember, StepRef, TrainedMember

_LEARNEREVENTKIND = {member.value: member for member in LearnerEventKind if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerEvent:
    """One event of the learner; one partition per run orders them all."""

    run_id: RunId
    """The run this record belongs to."""
    kind: LearnerEventKind
    """Which event."""
    epoch: int
    """Learner epoch. Unit: epochs."""
    learner_id: WorkerId
    """The learner that wrote it."""
    number: int = 0
    """Version number after the event. Unit: versions."""
    ordinal: int = 0
    """Optimiser updates since the run's start along the lineage. Unit: updates."""
    parent_epoch: int = 0
    """Epoch of the parent version. Unit: epochs."""
    parent_number: int = 0
    """Number of the parent version. Unit: versions."""
    policy_digest: str = ""
    """Digest of the version."""
    trained: tuple[TrainedMember, ...] = ()
    """Step: what was consumed."""
    skipped: tuple[SkippedMember, ...] = ()
    """Skipped: what was discarded."""
    repeats: int = 0
    """Repeated gated records seen since the last Step. Unit: records."""
    positions: tuple[LogEnd, ...] = ()
    """Step and Checkpointed: next offset per partition of gated.v1."""
    adopted: tuple[StepRef, ...] = ()
    """Restored: Steps and Checkpointed records of the lineage that it adopts."""
    restored: tuple[StepRef, ...] = ()
    """Restored: the checkpoint it starts from; empty for the starting weights."""
    checkpoint_id: str = ""
    """Checkpointed and Restored: folder name."""
    settled_cursor: int = -1
    """Highest contiguous settled ordinal. Unit: tasks."""
    id_lists: tuple[ChunkRef, ...] = ()
    """Chunks of payloads.v1 with lists too long for this record."""
    loss_name: str = ""
    """Loss used."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Loss values of the step. Unit: nats."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Named quantities of the step, each with its unit in the name."""
    phases_us: Mapping[str, int] = field(default_factory=dict)
    """Time per phase of the step; the phases sum to the step. Unit: us."""
    action_tokens: int = 0
    """Action tokens in the step. Unit: tokens."""
    kept_tokens: int = 0
    """Tokens with a non-zero coefficient allowed. Unit: tokens."""
    rejected_low: int = 0
    """Tokens rejected below the band. Unit: tokens."""
    rejected_high: int = 0
    """Tokens rejected above the band. Unit: tokens."""
    canary: str = ""
    """Restored: result of the canary."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Closed: the counts of EndOfStream that were compared. Unit: records."""
    detail: str = ""
    """Human sentence."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("LearnerEvent", "run_id", self.run_id)
        if type(self.kind) is not LearnerEventKind:
            raise FieldTypeError("LearnerEvent", "kind", self.kind)
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "epoch", self.epoch)
        if type(self.learner_id) is not str:
            raise FieldTypeError("LearnerEvent", "learner_id", self.learner_id)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "number", self.number)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "ordinal", self.ordinal)
        if type(self.parent_epoch) is not int or not -0x8000000000000000 <= self.parent_epoch < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "parent_epoch", self.parent_epoch)
        if type(self.parent_number) is not int or not -0x8000000000000000 <= self.parent_number < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "parent_number", self.parent_number)
        if type(self.policy_digest) is not str:
            raise FieldTypeError("LearnerEvent", "policy_digest", self.policy_digest)
        if type(self.trained) is not tuple or any(type(item) is not TrainedMember for item in self.trained):
            raise FieldTypeError("LearnerEvent", "trained", self.trained)
        if type(self.skipped) is not tuple or any(type(item) is not SkippedMember for item in self.skipped):
            raise FieldTypeError("LearnerEvent", "skipped", self.skipped)
        if type(self.repeats) is not int or not -0x8000000000000000 <= self.repeats < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "repeats", self.repeats)
        if type(self.positions) is not tuple or any(type(item) is not LogEnd for item in self.positions):
            raise FieldTypeError("LearnerEvent", "positions", self.positions)
        if type(self.adopted) is not tuple or any(type(item) is not StepRef for item in self.adopted):
            raise FieldTypeError("LearnerEvent", "adopted", self.adopted)
        if type(self.restored) is not tuple or any(type(item) is not StepRef for item in self.restored):
            raise FieldTypeError("LearnerEvent", "restored", self.restored)
        if type(self.checkpoint_id) is not str:
            raise FieldTypeError("LearnerEvent", "checkpoint_id", self.checkpoint_id)
        if type(self.settled_cursor) is not int or not -0x8000000000000000 <= self.settled_cursor < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "settled_cursor", self.settled_cursor)
        if type(self.id_lists) is not tuple or any(type(item) is not ChunkRef for item in self.id_lists):
            raise FieldTypeError("LearnerEvent", "id_lists", self.id_lists)
        if type(self.loss_name) is not str:
            raise FieldTypeError("LearnerEvent", "loss_name", self.loss_name)
        if not isinstance(self.losses, Mapping) or any(type(key) is not str or type(value) is not float for key, value in self.losses.items()):
            raise FieldTypeError("LearnerEvent", "losses", self.losses)
        if not isinstance(self.metrics, Mapping) or any(type(key) is not str or type(value) is not float for key, value in self.metrics.items()):
            raise FieldTypeError("LearnerEvent", "metrics", self.metrics)
        if not isinstance(self.phases_us, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.phases_us.items()):
            raise FieldTypeError("LearnerEvent", "phases_us", self.phases_us)
        if type(self.action_tokens) is not int or not -0x8000000000000000 <= self.action_tokens < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "action_tokens", self.action_tokens)
        if type(self.kept_tokens) is not int or not -0x8000000000000000 <= self.kept_tokens < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "kept_tokens", self.kept_tokens)
        if type(self.rejected_low) is not int or not -0x8000000000000000 <= self.rejected_low < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "rejected_low", self.rejected_low)
        if type(self.rejected_high) is not int or not -0x8000000000000000 <= self.rejected_high < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "rejected_high", self.rejected_high)
        if type(self.canary) is not str:
            raise FieldTypeError("LearnerEvent", "canary", self.canary)
        if not isinstance(self.counts, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.counts.items()):
            raise FieldTypeError("LearnerEvent", "counts", self.counts)
        if type(self.detail) is not str:
            raise FieldTypeError("LearnerEvent", "detail", self.detail)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("LearnerEvent", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("LearnerEvent", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "kind": self.kind,
            "epoch": self.epoch,
            "learner_id": self.learner_id,
            "number": self.number,
            "ordinal": self.ordinal,
            "parent_epoch": self.parent_epoch,
            "parent_number": self.parent_number,
            "policy_digest": self.policy_digest,
            "trained": [part.to_avro() for part in self.trained],
            "skipped": [part.to_avro() for part in self.skipped],
            "repeats": self.repeats,
            "positions": [part.to_avro() for part in self.positions],
            "adopted": [part.to_avro() for part in self.adopted],
            "restored": [part.to_avro() for part in self.restored],
            "checkpoint_id": self.checkpoint_id,
            "settled_cursor": self.settled_cursor,
            "id_lists": [part.to_avro() for part in self.id_lists],
            "loss_name": self.loss_name,
            "losses": dict(self.losses),
            "metrics": dict(self.metrics),
            "phases_us": dict(self.phases_us),
            "action_tokens": self.action_tokens,
            "kept_tokens": self.kept_tokens,
            "rejected_low": self.rejected_low,
            "rejected_high": self.rejected_high,
            "canary": self.canary,
            "counts": dict(self.counts),
            "detail": self.detail,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            kind=_LEARNEREVENTKIND[raw["kind"]],
            epoch=raw["epoch"],
            learner_id=WorkerId(raw["learner_id"]),
            number=raw["number"],
            ordinal=raw["ordinal"],
            parent_epoch=raw["parent_epoch"],
            parent_number=raw["parent_number"],
            policy_digest=raw["policy_digest"],
            trained=tuple([TrainedMember.from_avro(part) for part in raw["trained"]]),
            skipped=tuple([SkippedMember.from_avro(part) for part in raw["skipped"]]),
            repeats=raw["repeats"],
            positions=tuple([LogEnd.from_avro(part) for part in raw["positions"]]),
            adopted=tuple([StepRef.from_avro(part) for part in raw["adopted"]]),
            restored=tuple([StepRef.from_avro(part) for part in raw["restored"]]),
            checkpoint_id=raw["checkpoint_id"],
            settled_cursor=raw["settled_cursor"],
            id_lists=tuple([ChunkRef.from_avro(part) for part in raw["id_lists"]]),
            loss_name=raw["loss_name"],
            losses=raw["losses"],
            metrics=raw["metrics"],
            phases_us=raw["phases_us"],
            action_tokens=raw["action_tokens"],
            kept_tokens=raw["kept_tokens"],
            rejected_low=raw["rejected_low"],
            rejected_high=raw["rejected_high"],
            canary=raw["canary"],
            counts=raw["counts"],
            detail=raw["detail"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class LearnerEventDraft:
    """The layout of LearnerEvent without its lock: it is filled, then becomes the record."""

    __slots__ = LearnerEvent.__slots__


def _init_LearnerEvent(
    self: Any,
    *,
    run_id: RunId,
    kind: LearnerEventKind,
    epoch: int,
    learner_id: WorkerId,
    number: int = 0,  # noqa: B008  immutable
    ordinal: int = 0,  # noqa: B008  immutable
    parent_epoch: int = 0,  # noqa: B008  immutable
    parent_number: int = 0,  # noqa: B008  immutable
    policy_digest: str = "",  # noqa: B008  immutable
    trained: tuple[TrainedMember, ...] = (),  # noqa: B008  immutable
    skipped: tuple[SkippedMember, ...] = (),  # noqa: B008  immutable
    repeats: int = 0,  # noqa: B008  immutable
    positions: tuple[LogEnd, ...] = (),  # noqa: B008  immutable
    adopted: tuple[StepRef, ...] = (),  # noqa: B008  immutable
    restored: tuple[StepRef, ...] = (),  # noqa: B008  immutable
    checkpoint_id: str = "",  # noqa: B008  immutable
    settled_cursor: int = -1,  # noqa: B008  immutable
    id_lists: tuple[ChunkRef, ...] = (),  # noqa: B008  immutable
    loss_name: str = "",  # noqa: B008  immutable
    losses: Mapping[str, float] = _NEW_MAP,
    metrics: Mapping[str, float] = _NEW_MAP,
    phases_us: Mapping[str, int] = _NEW_MAP,
    action_tokens: int = 0,  # noqa: B008  immutable
    kept_tokens: int = 0,  # noqa: B008  immutable
    rejected_low: int = 0,  # noqa: B008  immutable
    rejected_high: int = 0,  # noqa: B008  immutable
    canary: str = "",  # noqa: B008  immutable
    counts: Mapping[str, int] = _NEW_MAP,
    detail: str = "",  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", LearnerEventDraft)
    self.run_id = run_id
    self.kind = kind
    self.epoch = epoch
    self.learner_id = learner_id
    self.number = number
    self.ordinal = ordinal
    self.parent_epoch = parent_epoch
    self.parent_number = parent_number
    self.policy_digest = policy_digest
    self.trained = trained
    self.skipped = skipped
    self.repeats = repeats
    self.positions = positions
    self.adopted = adopted
    self.restored = restored
    self.checkpoint_id = checkpoint_id
    self.settled_cursor = settled_cursor
    self.id_lists = id_lists
    self.loss_name = loss_name
    self.losses = {} if losses is _NEW_MAP else losses
    self.metrics = {} if metrics is _NEW_MAP else metrics
    self.phases_us = {} if phases_us is _NEW_MAP else phases_us
    self.action_tokens = action_tokens
    self.kept_tokens = kept_tokens
    self.rejected_low = rejected_low
    self.rejected_high = rejected_high
    self.canary = canary
    self.counts = {} if counts is _NEW_MAP else counts
    self.detail = detail
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = LearnerEvent


# What it does is what the generated one does; `replace` and `copy` go through it too.
LearnerEvent.__init__ = _init_LearnerEvent  # type: ignore[method-assign]
