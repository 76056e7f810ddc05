"""One unit of work offered to the run, with its ordinal in the task stream.

Generated from `schemas/avro/task.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import Purpose
from schemas.errors import FieldTypeError
from schemas.ids import GroupId, RunId, TaskId, WorkerId

_PURPOSE = {member.value: member for member in Purpose if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One unit of work offered to the run, with its ordinal in the task stream."""

    run_id: RunId
    """The run this record belongs to."""
    task_id: TaskId
    """The task."""
    group_id: GroupId
    """The group of rollouts that share its baseline."""
    ordinal: int
    """Place in the task stream, from 0. Unit: tasks."""
    purpose: Purpose
    """train, evaluate or canary."""
    stream: str = ""
    """Name of the mixture component it was drawn from."""
    environment: str
    """Environment package that runs it."""
    environment_digest: str = ""
    """sha256 of the environment package and its settings."""
    verifier_digest: str = ""
    """sha256 of the rubric and its settings."""
    payload: str = ""
    """What the environment needs to build the task, as JSON; holds no answer that a guest may not see."""
    group_size: int = 1
    """Rollouts to issue. Unit: episodes."""
    tokens_max: int = 0
    """Budget of action tokens over the episode. Unit: tokens."""
    turn_tokens_max: int = 0
    """Budget of action tokens in one turn. Unit: tokens."""
    turns_max: int = 0
    """Budget of turns. Unit: turns."""
    seconds_max: float = 0.0
    """Budget of wall clock. Unit: s."""
    temperature: float = 1.0
    """Sampling temperature. Unit: ratio."""
    top_p: float = 1.0
    """Nucleus share. Unit: ratio."""
    top_k: int = 0
    """Top-k; 0 is off. Unit: tokens."""
    seed: int = 0
    """The task's own random seed; never a sampling seed."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("Task", "run_id", self.run_id)
        if type(self.task_id) is not str:
            raise FieldTypeError("Task", "task_id", self.task_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("Task", "group_id", self.group_id)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("Task", "ordinal", self.ordinal)
        if type(self.purpose) is not Purpose:
            raise FieldTypeError("Task", "purpose", self.purpose)
        if type(self.stream) is not str:
            raise FieldTypeError("Task", "stream", self.stream)
        if type(self.environment) is not str:
            raise FieldTypeError("Task", "environment", self.environment)
        if type(self.environment_digest) is not str:
            raise FieldTypeError("Task", "environment_digest", self.environment_digest)
        if type(self.verifier_digest) is not str:
            raise FieldTypeError("Task", "verifier_digest", self.verifier_digest)
        if type(self.payload) is not str:
            raise FieldTypeError("Task", "payload", self.payload)
        if type(self.group_size) is not int or not -0x8000000000000000 <= self.group_size < 0x8000000000000000:
            raise FieldTypeError("Task", "group_size", self.group_size)
        if type(self.tokens_max) is not int or not -0x8000000000000000 <= self.tokens_max < 0x8000000000000000:
            raise FieldTypeError("Task", "tokens_max", self.tokens_max)
        if type(self.turn_tokens_max) is not int or not -0x8000000000000000 <= self.turn_tokens_max < 0x8000000000000000:
            raise FieldTypeError("Task", "turn_tokens_max", self.turn_tokens_max)
        if type(self.turns_max) is not int or not -0x8000000000000000 <= self.turns_max < 0x8000000000000000:
            raise FieldTypeError("Task", "turns_max", self.turns_max)
        if type(self.seconds_max) is not float:
            raise FieldTypeError("Task", "seconds_max", self.seconds_max)
        if type(self.temperature) is not float:
            raise FieldTypeError("Task", "temperature", self.temperature)
        if type(self.top_p) is not float:
            raise FieldTypeError("Task", "top_p", self.top_p)
        if type(self.top_k) is not int or not -0x8000000000000000 <= self.top_k < 0x8000000000000000:
            raise FieldTypeError("Task", "top_k", self.top_k)
        if type(self.seed) is not int or not -0x8000000000000000 <= self.seed < 0x8000000000000000:
            raise FieldTypeError("Task", "seed", self.seed)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("Task", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("Task", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "task_id": self.task_id,
            "group_id": self.group_id,
            "ordinal": self.ordinal,
            "purpose": self.purpose,
            "stream": self.stream,
            "environment": self.environment,
            "environment_digest": self.environment_digest,
            "verifier_digest": self.verifier_digest,
            "payload": self.payload,
            "group_size": self.group_size,
            "tokens_max": self.tokens_max,
            "turn_tokens_max": self.turn_tokens_max,
            "turns_max": self.turns_max,
            "seconds_max": self.seconds_max,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            task_id=TaskId(raw["task_id"]),
            group_id=GroupId(raw["group_id"]),
            ordinal=raw["ordinal"],
            purpose=_PURPOSE[raw["purpose"]],
            stream=raw["stream"],
            environment=raw["environment"],
            environment_digest=raw["environment_digest"],
            verifier_digest=raw["verifier_digest"],
            payload=raw["payload"],
            group_size=raw["group_size"],
            tokens_max=raw["tokens_max"],
            turn_tokens_max=raw["turn_tokens_max"],
            turns_max=raw["turns_max"],
            seconds_max=raw["seconds_max"],
            temperature=raw["temperature"],
            top_p=raw["top_p"],
            top_k=raw["top_k"],
            seed=raw["seed"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class TaskDraft:
    """The layout of Task without its lock: it is filled, then becomes the record."""

    __slots__ = Task.__slots__


def _init_Task(
    self: Any,
    *,
    run_id: RunId,
    task_id: TaskId,
    group_id: GroupId,
    ordinal: int,
    purpose: Purpose,
    stream: str = "",  # noqa: B008  immutable
    environment: str,
    environment_digest: str = "",  # noqa: B008  immutable
    verifier_digest: str = "",  # noqa: B008  immutable
    payload: str = "",  # noqa: B008  immutable
    group_size: int = 1,  # noqa: B008  immutable
    tokens_max: int = 0,  # noqa: B008  immutable
    turn_tokens_max: int = 0,  # noqa: B008  immutable
    turns_max: int = 0,  # noqa: B008  immutable
    seconds_max: float = 0.0,  # noqa: B008  immutable
    temperature: float = 1.0,  # noqa: B008  immutable
    top_p: float = 1.0,  # noqa: B008  immutable
    top_k: int = 0,  # noqa: B008  immutable
    seed: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", TaskDraft)
    self.run_id = run_id
    self.task_id = task_id
    self.group_id = group_id
    self.ordinal = ordinal
    self.purpose = purpose
    self.stream = stream
    self.environment = environment
    self.environment_digest = environment_digest
    self.verifier_digest = verifier_digest
    self.payload = payload
    self.group_size = group_size
    self.tokens_max = tokens_max
    self.turn_tokens_max = turn_tokens_max
    self.turns_max = turns_max
    self.seconds_max = seconds_max
    self.temperature = temperature
    self.top_p = top_p
    self.top_k = top_k
    self.seed = seed
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = Task


# What it does is what the generated one does; `replace` and `copy` go through it too.
Task.__init__ = _init_Task  # type: ignore[method-assign]
