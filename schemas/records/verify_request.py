"""An ended attempt to judge.

Generated from `schemas/avro/verify_request.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import Purpose, StopCause
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, TaskId, WorkerId

_PURPOSE = {member.value: member for member in Purpose if member != "unknown"}
_STOPCAUSE = {member.value: member for member in StopCause if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """An ended attempt to judge."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    task_id: TaskId
    """The task."""
    attempt: int
    """Attempt to judge. Unit: attempts."""
    purpose: Purpose = Purpose.TRAIN
    """Purpose of the task."""
    environment: str
    """Environment package whose rubric judges."""
    environment_digest: str = ""
    """Digest the episode ran under."""
    verifier_digest: str = ""
    """Digest the verdict must carry."""
    stop_cause: StopCause = StopCause.NONE
    """Why the attempt stopped."""
    task_frame: bytes = b""
    """The framed Task record."""
    transcript: str = ""
    """Messages of the episode as JSON, at most 128 KiB."""
    artifact: str = ""
    """What the environment hands to the rubric, as JSON."""
    wal_position: int = -1
    """WAL end position of the attempt. Unit: records."""
    deadline_us: int = 0
    """When the verdict must stand. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("VerifyRequest", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("VerifyRequest", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("VerifyRequest", "group_id", self.group_id)
        if type(self.task_id) is not str:
            raise FieldTypeError("VerifyRequest", "task_id", self.task_id)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("VerifyRequest", "attempt", self.attempt)
        if type(self.purpose) is not Purpose:
            raise FieldTypeError("VerifyRequest", "purpose", self.purpose)
        if type(self.environment) is not str:
            raise FieldTypeError("VerifyRequest", "environment", self.environment)
        if type(self.environment_digest) is not str:
            raise FieldTypeError("VerifyRequest", "environment_digest", self.environment_digest)
        if type(self.verifier_digest) is not str:
            raise FieldTypeError("VerifyRequest", "verifier_digest", self.verifier_digest)
        if type(self.stop_cause) is not StopCause:
            raise FieldTypeError("VerifyRequest", "stop_cause", self.stop_cause)
        if type(self.task_frame) is not bytes:
            raise FieldTypeError("VerifyRequest", "task_frame", self.task_frame)
        if type(self.transcript) is not str:
            raise FieldTypeError("VerifyRequest", "transcript", self.transcript)
        if type(self.artifact) is not str:
            raise FieldTypeError("VerifyRequest", "artifact", self.artifact)
        if type(self.wal_position) is not int or not -0x8000000000000000 <= self.wal_position < 0x8000000000000000:
            raise FieldTypeError("VerifyRequest", "wal_position", self.wal_position)
        if type(self.deadline_us) is not int or not -0x8000000000000000 <= self.deadline_us < 0x8000000000000000:
            raise FieldTypeError("VerifyRequest", "deadline_us", self.deadline_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("VerifyRequest", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("VerifyRequest", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "task_id": self.task_id,
            "attempt": self.attempt,
            "purpose": self.purpose,
            "environment": self.environment,
            "environment_digest": self.environment_digest,
            "verifier_digest": self.verifier_digest,
            "stop_cause": self.stop_cause,
            "task_frame": self.task_frame,
            "transcript": self.transcript,
            "artifact": self.artifact,
            "wal_position": self.wal_position,
            "deadline_us": self.deadline_us,
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
            task_id=TaskId(raw["task_id"]),
            attempt=raw["attempt"],
            purpose=_PURPOSE[raw["purpose"]],
            environment=raw["environment"],
            environment_digest=raw["environment_digest"],
            verifier_digest=raw["verifier_digest"],
            stop_cause=_STOPCAUSE[raw["stop_cause"]],
            task_frame=raw["task_frame"],
            transcript=raw["transcript"],
            artifact=raw["artifact"],
            wal_position=raw["wal_position"],
            deadline_us=raw["deadline_us"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class VerifyRequestDraft:
    """The layout of VerifyRequest without its lock: it is filled, then becomes the record."""

    __slots__ = VerifyRequest.__slots__


def _init_VerifyRequest(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    task_id: TaskId,
    attempt: int,
    purpose: Purpose = Purpose.TRAIN,  # noqa: B008  immutable
    environment: str,
    environment_digest: str = "",  # noqa: B008  immutable
    verifier_digest: str = "",  # noqa: B008  immutable
    stop_cause: StopCause = StopCause.NONE,  # noqa: B008  immutable
    task_frame: bytes = b"",  # noqa: B008  immutable
    transcript: str = "",  # noqa: B008  immutable
    artifact: str = "",  # noqa: B008  immutable
    wal_position: int = -1,  # noqa: B008  immutable
    deadline_us: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", VerifyRequestDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.task_id = task_id
    self.attempt = attempt
    self.purpose = purpose
    self.environment = environment
    self.environment_digest = environment_digest
    self.verifier_digest = verifier_digest
    self.stop_cause = stop_cause
    self.task_frame = task_frame
    self.transcript = transcript
    self.artifact = artifact
    self.wal_position = wal_position
    self.deadline_us = deadline_us
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = VerifyRequest


# What it does is what the generated one does; `replace` and `copy` go through it too.
VerifyRequest.__init__ = _init_VerifyRequest  # type: ignore[method-assign]
