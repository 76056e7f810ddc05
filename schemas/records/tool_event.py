"""One record of the tool log: Fence, Intent, Result or Unknown (design section 6).

Generated from `schemas/avro/tool_event.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import ToolEventKind, ToolExit
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId

_TOOLEVENTKIND = {member.value: member for member in ToolEventKind if member != "unknown"}
_TOOLEXIT = {member.value: member for member in ToolExit if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """One record of the tool log: Fence, Intent, Result or Unknown (design section 6)."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    kind: ToolEventKind
    """Which record."""
    attempt: int
    """Attempt that wrote it. Unit: attempts."""
    writer_id: WorkerId
    """The worker that wrote the record."""
    incarnation: str
    """Start of the writing process."""
    branch: int = 0
    """Branch of the call. Unit: branches."""
    turn: int = 0
    """Turn of the call. Unit: turns."""
    call: int = 0
    """Place of the call within the turn. Unit: calls."""
    call_key: str = ""
    """Idempotency key: episode, branch, turn, call."""
    tool: str = ""
    """Tool name."""
    arguments: str = ""
    """Intent: arguments as JSON, at most 64 KiB."""
    idempotent: bool = False
    """The tool declares that running it twice does no harm."""
    external: bool = False
    """The tool has effects outside its sandbox."""
    deadline_us: int = 0
    """Intent: when the call must have ended. Unit: us."""
    wal_position: int = -1
    """Offset of the WAL record whose acknowledgement it rests on. Unit: records."""
    intent_offset: int = -1
    """Result and Unknown: offset of the Intent. Unit: records."""
    output: str = ""
    """Result: output as the model sees it, at most 64 KiB."""
    output_digest: str = ""
    """sha256 of the raw output."""
    truncation: str = ""
    """Rule by which the output was shortened; empty when whole."""
    exit_class: ToolExit = ToolExit.NONE
    """Result: how the call ended."""
    status_raw: str = ""
    """Raw status of the tool."""
    replayed: bool = False
    """The call ran again after a crash."""
    duration_us: int = 0
    """Time in the tool. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("ToolEvent", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("ToolEvent", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("ToolEvent", "group_id", self.group_id)
        if type(self.kind) is not ToolEventKind:
            raise FieldTypeError("ToolEvent", "kind", self.kind)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "attempt", self.attempt)
        if type(self.writer_id) is not str:
            raise FieldTypeError("ToolEvent", "writer_id", self.writer_id)
        if type(self.incarnation) is not str:
            raise FieldTypeError("ToolEvent", "incarnation", self.incarnation)
        if type(self.branch) is not int or not -0x8000000000000000 <= self.branch < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "branch", self.branch)
        if type(self.turn) is not int or not -0x8000000000000000 <= self.turn < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "turn", self.turn)
        if type(self.call) is not int or not -0x8000000000000000 <= self.call < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "call", self.call)
        if type(self.call_key) is not str:
            raise FieldTypeError("ToolEvent", "call_key", self.call_key)
        if type(self.tool) is not str:
            raise FieldTypeError("ToolEvent", "tool", self.tool)
        if type(self.arguments) is not str:
            raise FieldTypeError("ToolEvent", "arguments", self.arguments)
        if type(self.idempotent) is not bool:
            raise FieldTypeError("ToolEvent", "idempotent", self.idempotent)
        if type(self.external) is not bool:
            raise FieldTypeError("ToolEvent", "external", self.external)
        if type(self.deadline_us) is not int or not -0x8000000000000000 <= self.deadline_us < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "deadline_us", self.deadline_us)
        if type(self.wal_position) is not int or not -0x8000000000000000 <= self.wal_position < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "wal_position", self.wal_position)
        if type(self.intent_offset) is not int or not -0x8000000000000000 <= self.intent_offset < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "intent_offset", self.intent_offset)
        if type(self.output) is not str:
            raise FieldTypeError("ToolEvent", "output", self.output)
        if type(self.output_digest) is not str:
            raise FieldTypeError("ToolEvent", "output_digest", self.output_digest)
        if type(self.truncation) is not str:
            raise FieldTypeError("ToolEvent", "truncation", self.truncation)
        if type(self.exit_class) is not ToolExit:
            raise FieldTypeError("ToolEvent", "exit_class", self.exit_class)
        if type(self.status_raw) is not str:
            raise FieldTypeError("ToolEvent", "status_raw", self.status_raw)
        if type(self.replayed) is not bool:
            raise FieldTypeError("ToolEvent", "replayed", self.replayed)
        if type(self.duration_us) is not int or not -0x8000000000000000 <= self.duration_us < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "duration_us", self.duration_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("ToolEvent", "at_us", self.at_us)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "kind": self.kind,
            "attempt": self.attempt,
            "writer_id": self.writer_id,
            "incarnation": self.incarnation,
            "branch": self.branch,
            "turn": self.turn,
            "call": self.call,
            "call_key": self.call_key,
            "tool": self.tool,
            "arguments": self.arguments,
            "idempotent": self.idempotent,
            "external": self.external,
            "deadline_us": self.deadline_us,
            "wal_position": self.wal_position,
            "intent_offset": self.intent_offset,
            "output": self.output,
            "output_digest": self.output_digest,
            "truncation": self.truncation,
            "exit_class": self.exit_class,
            "status_raw": self.status_raw,
            "replayed": self.replayed,
            "duration_us": self.duration_us,
            "at_us": self.at_us,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            kind=_TOOLEVENTKIND[raw["kind"]],
            attempt=raw["attempt"],
            writer_id=WorkerId(raw["writer_id"]),
            incarnation=raw["incarnation"],
            branch=raw["branch"],
            turn=raw["turn"],
            call=raw["call"],
            call_key=raw["call_key"],
            tool=raw["tool"],
            arguments=raw["arguments"],
            idempotent=raw["idempotent"],
            external=raw["external"],
            deadline_us=raw["deadline_us"],
            wal_position=raw["wal_position"],
            intent_offset=raw["intent_offset"],
            output=raw["output"],
            output_digest=raw["output_digest"],
            truncation=raw["truncation"],
            exit_class=_TOOLEXIT[raw["exit_class"]],
            status_raw=raw["status_raw"],
            replayed=raw["replayed"],
            duration_us=raw["duration_us"],
            at_us=raw["at_us"],
        )


class ToolEventDraft:
    """The layout of ToolEvent without its lock: it is filled, then becomes the record."""

    __slots__ = ToolEvent.__slots__


def _init_ToolEvent(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    kind: ToolEventKind,
    attempt: int,
    writer_id: WorkerId,
    incarnation: str,
    branch: int = 0,  # noqa: B008  immutable
    turn: int = 0,  # noqa: B008  immutable
    call: int = 0,  # noqa: B008  immutable
    call_key: str = "",  # noqa: B008  immutable
    tool: str = "",  # noqa: B008  immutable
    arguments: str = "",  # noqa: B008  immutable
    idempotent: bool = False,  # noqa: B008  immutable
    external: bool = False,  # noqa: B008  immutable
    deadline_us: int = 0,  # noqa: B008  immutable
    wal_position: int = -1,  # noqa: B008  immutable
    intent_offset: int = -1,  # noqa: B008  immutable
    output: str = "",  # noqa: B008  immutable
    output_digest: str = "",  # noqa: B008  immutable
    truncation: str = "",  # noqa: B008  immutable
    exit_class: ToolExit = ToolExit.NONE,  # noqa: B008  immutable
    status_raw: str = "",  # noqa: B008  immutable
    replayed: bool = False,  # noqa: B008  immutable
    duration_us: int = 0,  # noqa: B008  immutable
    at_us: int,
) -> None:
    _open(self, "__class__", ToolEventDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.kind = kind
    self.attempt = attempt
    self.writer_id = writer_id
    self.incarnation = incarnation
    self.branch = branch
    self.turn = turn
    self.call = call
    self.call_key = call_key
    self.tool = tool
    self.arguments = arguments
    self.idempotent = idempotent
    self.external = external
    self.deadline_us = deadline_us
    self.wal_position = wal_position
    self.intent_offset = intent_offset
    self.output = output
    self.output_digest = output_digest
    self.truncation = truncation
    self.exit_class = exit_class
    self.status_raw = status_raw
    self.replayed = replayed
    self.duration_us = duration_us
    self.at_us = at_us
    self.__class__ = ToolEvent


# What it does is what the generated one does; `replace` and `copy` go through it too.
ToolEvent.__init__ = _init_ToolEvent  # type: ignore[method-assign]
