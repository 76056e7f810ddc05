"""One event in the life of an episode, or a scheduler's fence.

Generated from `schemas/avro/episode_event.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import AbandonReason, EpisodeEventKind, Purpose, StopCause
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, TaskId, WorkerId

_ABANDONREASON = {member.value: member for member in AbandonReason if member != "unknown"}
_EPISODEEVENTKIND = {member.value: member for member in EpisodeEventKind if member != "unknown"}
_PURPOSE = {member.value: member for member in Purpose if member != "unknown"}
_STOPCAUSE = {member.value: member for member in StopCause if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEvent:
    """One event in the life of an episode, or a scheduler's fence."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout; empty in a SchedulerFence."""
    group_id: GroupId
    """Its group; decides the partition."""
    kind: EpisodeEventKind
    """Which event."""
    task_id: TaskId = TaskId("")
    """Its task."""
    ordinal: int = 0
    """Ordinal of the task. Unit: tasks."""
    member: int = 0
    """Place within the group, from 0. Unit: episodes."""
    purpose: Purpose = Purpose.TRAIN
    """Purpose of the task."""
    attempt: int = 0
    """Attempt that the event concerns; 0 where none does. Unit: attempts."""
    scheduler_epoch: int = 0
    """Epoch of the scheduler that wrote it; 0 from an environment. Unit: epochs."""
    scheduler_id: WorkerId = WorkerId("")
    """That scheduler."""
    group_size: int = 0
    """Issued: rollouts in the group. Unit: episodes."""
    policy_ordinal: int = 0
    """Issued: newest surviving ordinal known then. Unit: updates."""
    worker_id: WorkerId = WorkerId("")
    """Leased: the environment worker that holds the lease."""
    lease_ms: int = 0
    """Leased: length of the lease. Unit: ms."""
    tokens_floor: int = 0
    """Leased: end offset of tokens read just before the first lease. Unit: records."""
    tool_events_floor: int = 0
    """Leased: the same of tool-events. Unit: records."""
    task_frame: bytes = b""
    """Leased: the framed Task record as it stands on tasks.v1."""
    after_failures: Mapping[str, int] = field(default_factory=dict)
    """Leased: failures so far by class. Unit: times."""
    abandon_reason: AbandonReason = AbandonReason.NONE
    """Abandoned: why."""
    stop_cause: StopCause = StopCause.NONE
    """Ended: why the attempt stopped."""
    detail: str = ""
    """Human sentence with the evidence."""
    wal_position: int = -1
    """Offset of the last acknowledged WAL record it rests on; -1 when none. Unit: records."""
    tool_position: int = -1
    """Offset of the last acknowledged tool record; -1 when none. Unit: records."""
    fence_number: int = 0
    """Fence number the environment last named. Unit: fences."""
    last_seq: int = -1
    """Ended: seq of the last commit; -1 when none. Unit: commits."""
    token_count: int = 0
    """Ended: tokens on the main line. Unit: tokens."""
    turns: int = 0
    """Ended: turns taken. Unit: turns."""
    tool_calls: int = 0
    """Ended: tool calls made. Unit: calls."""
    at_gateway: bool = False
    """Progress: the episode waits at the gateway."""
    until_us: int = 0
    """Progress: the worker announces a call that lasts until then; 0 when none. Unit: us."""
    snapshot_id: str = ""
    """Paused: environment snapshot; empty when it is rebuilt by replay."""
    reset_us: int = 0
    """Ended: time to build the environment. Unit: us."""
    step_us: int = 0
    """Ended: time in environment steps. Unit: us."""
    queue_us: int = 0
    """Ended: time from lease to start. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""
    incarnation: str = ""
    """Leased: the one process under worker_id that the lease is for, as in WorkerState; empty: any, as in records before this field. Progress, Paused, Ended: the process that writes; empty: not told."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("EpisodeEvent", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("EpisodeEvent", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("EpisodeEvent", "group_id", self.group_id)
        if type(self.kind) is not EpisodeEventKind:
            raise FieldTypeError("EpisodeEvent", "kind", self.kind)
        if type(self.task_id) is not str:
            raise FieldTypeError("EpisodeEvent", "task_id", self.task_id)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "ordinal", self.ordinal)
        if type(self.member) is not int or not -0x8000000000000000 <= self.member < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "member", self.member)
        if type(self.purpose) is not Purpose:
            raise FieldTypeError("EpisodeEvent", "purpose", self.purpose)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "attempt", self.attempt)
        if type(self.scheduler_epoch) is not int or not -0x8000000000000000 <= self.scheduler_epoch < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "scheduler_epoch", self.scheduler_epoch)
        if type(self.scheduler_id) is not str:
            raise FieldTypeError("EpisodeEvent", "scheduler_id", self.scheduler_id)
        if type(self.group_size) is not int or not -0x8000000000000000 <= self.group_size < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "group_size", self.group_size)
        if type(self.policy_ordinal) is not int or not -0x8000000000000000 <= self.policy_ordinal < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "policy_ordinal", self.policy_ordinal)
        if type(self.worker_id) is not str:
            raise FieldTypeError("EpisodeEvent", "worker_id", self.worker_id)
        if type(self.lease_ms) is not int or not -0x8000000000000000 <= self.lease_ms < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "lease_ms", self.lease_ms)
        if type(self.tokens_floor) is not int or not -0x8000000000000000 <= self.tokens_floor < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "tokens_floor", self.tokens_floor)
        if type(self.tool_events_floor) is not int or not -0x8000000000000000 <= self.tool_events_floor < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "tool_events_floor", self.tool_events_floor)
        if type(self.task_frame) is not bytes:
            raise FieldTypeError("EpisodeEvent", "task_frame", self.task_frame)
        if not isinstance(self.after_failures, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.after_failures.items()):
            raise FieldTypeError("EpisodeEvent", "after_failures", self.after_failures)
        if type(self.abandon_reason) is not AbandonReason:
            raise FieldTypeError("EpisodeEvent", "abandon_reason", self.abandon_reason)
        if type(self.stop_cause) is not StopCause:
            raise FieldTypeError("EpisodeEvent", "stop_cause", self.stop_cause)
        if type(self.detail) is not str:
            raise FieldTypeError("EpisodeEvent", "detail", self.detail)
        if type(self.wal_position) is not int or not -0x8000000000000000 <= self.wal_position < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "wal_position", self.wal_position)
        if type(self.tool_position) is not int or not -0x8000000000000000 <= self.tool_position < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "tool_position", self.tool_position)
        if type(self.fence_number) is not int or not -0x8000000000000000 <= self.fence_number < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "fence_number", self.fence_number)
        if type(self.last_seq) is not int or not -0x8000000000000000 <= self.last_seq < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "last_seq", self.last_seq)
        if type(self.token_count) is not int or not -0x8000000000000000 <= self.token_count < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "token_count", self.token_count)
        if type(self.turns) is not int or not -0x8000000000000000 <= self.turns < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "turns", self.turns)
        if type(self.tool_calls) is not int or not -0x8000000000000000 <= self.tool_calls < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "tool_calls", self.tool_calls)
        if type(self.at_gateway) is not bool:
            raise FieldTypeError("EpisodeEvent", "at_gateway", self.at_gateway)
        if type(self.until_us) is not int or not -0x8000000000000000 <= self.until_us < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "until_us", self.until_us)
        if type(self.snapshot_id) is not str:
            raise FieldTypeError("EpisodeEvent", "snapshot_id", self.snapshot_id)
        if type(self.reset_us) is not int or not -0x8000000000000000 <= self.reset_us < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "reset_us", self.reset_us)
        if type(self.step_us) is not int or not -0x8000000000000000 <= self.step_us < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "step_us", self.step_us)
        if type(self.queue_us) is not int or not -0x8000000000000000 <= self.queue_us < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "queue_us", self.queue_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("EpisodeEvent", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("EpisodeEvent", "writer_id", self.writer_id)
        if type(self.incarnation) is not str:
            raise FieldTypeError("EpisodeEvent", "incarnation", self.incarnation)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "kind": self.kind,
            "task_id": self.task_id,
            "ordinal": self.ordinal,
            "member": self.member,
            "purpose": self.purpose,
            "attempt": self.attempt,
            "scheduler_epoch": self.scheduler_epoch,
            "scheduler_id": self.scheduler_id,
            "group_size": self.group_size,
            "policy_ordinal": self.policy_ordinal,
            "worker_id": self.worker_id,
            "lease_ms": self.lease_ms,
            "tokens_floor": self.tokens_floor,
            "tool_events_floor": self.tool_events_floor,
            "task_frame": self.task_frame,
            "after_failures": dict(self.after_failures),
            "abandon_reason": self.abandon_reason,
            "stop_cause": self.stop_cause,
            "detail": self.detail,
            "wal_position": self.wal_position,
            "tool_position": self.tool_position,
            "fence_number": self.fence_number,
            "last_seq": self.last_seq,
            "token_count": self.token_count,
            "turns": self.turns,
            "tool_calls": self.tool_calls,
            "at_gateway": self.at_gateway,
            "until_us": self.until_us,
            "snapshot_id": self.snapshot_id,
            "reset_us": self.reset_us,
            "step_us": self.step_us,
            "queue_us": self.queue_us,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
            "incarnation": self.incarnation,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            kind=_EPISODEEVENTKIND[raw["kind"]],
            task_id=TaskId(raw["task_id"]),
            ordinal=raw["ordinal"],
            member=raw["member"],
            purpose=_PURPOSE[raw["purpose"]],
            attempt=raw["attempt"],
            scheduler_epoch=raw["scheduler_epoch"],
            scheduler_id=WorkerId(raw["scheduler_id"]),
            group_size=raw["group_size"],
            policy_ordinal=raw["policy_ordinal"],
            worker_id=WorkerId(raw["worker_id"]),
            lease_ms=raw["lease_ms"],
            tokens_floor=raw["tokens_floor"],
            tool_events_floor=raw["tool_events_floor"],
            task_frame=raw["task_frame"],
            after_failures=raw["after_failures"],
            abandon_reason=_ABANDONREASON[raw["abandon_reason"]],
            stop_cause=_STOPCAUSE[raw["stop_cause"]],
            detail=raw["detail"],
            wal_position=raw["wal_position"],
            tool_position=raw["tool_position"],
            fence_number=raw["fence_number"],
            last_seq=raw["last_seq"],
            token_count=raw["token_count"],
            turns=raw["turns"],
            tool_calls=raw["tool_calls"],
            at_gateway=raw["at_gateway"],
            until_us=raw["until_us"],
            snapshot_id=raw["snapshot_id"],
            reset_us=raw["reset_us"],
            step_us=raw["step_us"],
            queue_us=raw["queue_us"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
            incarnation=raw["incarnation"],
        )


class EpisodeEventDraft:
    """The layout of EpisodeEvent without its lock: it is filled, then becomes the record."""

    __slots__ = EpisodeEvent.__slots__


def _init_EpisodeEvent(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    kind: EpisodeEventKind,
    task_id: TaskId = TaskId(""),  # noqa: B008  immutable
    ordinal: int = 0,  # noqa: B008  immutable
    member: int = 0,  # noqa: B008  immutable
    purpose: Purpose = Purpose.TRAIN,  # noqa: B008  immutable
    attempt: int = 0,  # noqa: B008  immutable
    scheduler_epoch: int = 0,  # noqa: B008  immutable
    scheduler_id: WorkerId = WorkerId(""),  # noqa: B008  immutable
    group_size: int = 0,  # noqa: B008  immutable
    policy_ordinal: int = 0,  # noqa: B008  immutable
    worker_id: WorkerId = WorkerId(""),  # noqa: B008  immutable
    lease_ms: int = 0,  # noqa: B008  immutable
    tokens_floor: int = 0,  # noqa: B008  immutable
    tool_events_floor: int = 0,  # noqa: B008  immutable
    task_frame: bytes = b"",  # noqa: B008  immutable
    after_failures: Mapping[str, int] = _NEW_MAP,
    abandon_reason: AbandonReason = AbandonReason.NONE,  # noqa: B008  immutable
    stop_cause: StopCause = StopCause.NONE,  # noqa: B008  immutable
    detail: str = "",  # noqa: B008  immutable
    wal_position: int = -1,  # noqa: B008  immutable
    tool_position: int = -1,  # noqa: B008  immutable
    fence_number: int = 0,  # noqa: B008  immutable
    last_seq: int = -1,  # noqa: B008  immutable
    token_count: int = 0,  # noqa: B008  immutable
    turns: int = 0,  # noqa: B008  immutable
    tool_calls: int = 0,  # noqa: B008  immutable
    at_gateway: bool = False,  # noqa: B008  immutable
    until_us: int = 0,  # noqa: B008  immutable
    snapshot_id: str = "",  # noqa: B008  immutable
    reset_us: int = 0,  # noqa: B008  immutable
    step_us: int = 0,  # noqa: B008  immutable
    queue_us: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
    incarnation: str = "",  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", EpisodeEventDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.kind = kind
    self.task_id = task_id
    self.ordinal = ordinal
    self.member = member
    self.purpose = purpose
    self.attempt = attempt
    self.scheduler_epoch = scheduler_epoch
    self.scheduler_id = scheduler_id
    self.group_size = group_size
    self.policy_ordinal = policy_ordinal
    self.worker_id = worker_id
    self.lease_ms = lease_ms
    self.tokens_floor = tokens_floor
    self.tool_events_floor = tool_events_floor
    self.task_frame = task_frame
    self.after_failures = {} if after_failures is _NEW_MAP else after_failures
    self.abandon_reason = abandon_reason
    self.stop_cause = stop_cause
    self.detail = detail
    self.wal_position = wal_position
    self.tool_position = tool_position
    self.fence_number = fence_number
    self.last_seq = last_seq
    self.token_count = token_count
    self.turns = turns
    self.tool_calls = tool_calls
    self.at_gateway = at_gateway
    self.until_us = until_us
    self.snapshot_id = snapshot_id
    self.reset_us = reset_us
    self.step_us = step_us
    self.queue_us = queue_us
    self.at_us = at_us
    self.writer_id = writer_id
    self.incarnation = incarnation
    self.__class__ = EpisodeEvent


# What it does is what the generated one does; `replace` and `copy` go through it too.
EpisodeEvent.__init__ = _init_EpisodeEvent  # type: ignore[method-assign]
