"""A record that a consumer could not take, kept with its evidence.

Generated from `schemas/avro/dead_letter.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import LetterKind
from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId

_LETTERKIND = {member.value: member for member in LetterKind if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that a consumer could not take, kept with its evidence."""

    run_id: RunId = RunId("")
    """The consumer's run; empty when it serves none."""
    origin_topic: str
    """Logical name of the topic it came from."""
    origin_partition: int
    """Partition it came from."""
    origin_offset: int
    """Offset it came from. Unit: records."""
    origin_key: bytes = b""
    """Key as read."""
    part: int = 0
    """Place of this part, from 0. Unit: parts."""
    parts: int = 1
    """Parts in all. Unit: parts."""
    raw: bytes = b""
    """The raw bytes of this part."""
    schema_id: int = -1
    """Schema id in its frame; -1 when unreadable."""
    error_class: str
    """Class of the error."""
    error: str = ""
    """What, where and what to do."""
    consumer: str
    """Role that gave up on it."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""
    kind: LetterKind = LetterKind.LETTER
    """A letter, or how far a retry of the record at its origin has come."""
    retry_id: str = ""
    """Retry: which one; the first begun of an origin is the one that may write."""
    copy_topic: str = ""
    """Retry: logical name of the topic that the copy goes to."""
    copy_partition: int = -1
    """Retry: its partition."""
    copy_offset: int = -1
    """Retry begun: end of that partition just before, at or above which the copy lies; retried: where it stands. Unit: records."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("DeadLetter", "run_id", self.run_id)
        if type(self.origin_topic) is not str:
            raise FieldTypeError("DeadLetter", "origin_topic", self.origin_topic)
        if type(self.origin_partition) is not int or not -0x8000000000000000 <= self.origin_partition < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "origin_partition", self.origin_partition)
        if type(self.origin_offset) is not int or not -0x8000000000000000 <= self.origin_offset < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "origin_offset", self.origin_offset)
        if type(self.origin_key) is not bytes:
            raise FieldTypeError("DeadLetter", "origin_key", self.origin_key)
        if type(self.part) is not int or not -0x8000000000000000 <= self.part < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "part", self.part)
        if type(self.parts) is not int or not -0x8000000000000000 <= self.parts < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "parts", self.parts)
        if type(self.raw) is not bytes:
            raise FieldTypeError("DeadLetter", "raw", self.raw)
        if type(self.schema_id) is not int or not -0x8000000000000000 <= self.schema_id < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "schema_id", self.schema_id)
        if type(self.error_class) is not str:
            raise FieldTypeError("DeadLetter", "error_class", self.error_class)
        if type(self.error) is not str:
            raise FieldTypeError("DeadLetter", "error", self.error)
        if type(self.consumer) is not str:
            raise FieldTypeError("DeadLetter", "consumer", self.consumer)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("DeadLetter", "writer_id", self.writer_id)
        if type(self.kind) is not LetterKind:
            raise FieldTypeError("DeadLetter", "kind", self.kind)
        if type(self.retry_id) is not str:
            raise FieldTypeError("DeadLetter", "retry_id", self.retry_id)
        if type(self.copy_topic) is not str:
            raise FieldTypeError("DeadLetter", "copy_topic", self.copy_topic)
        if type(self.copy_partition) is not int or not -0x8000000000000000 <= self.copy_partition < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "copy_partition", self.copy_partition)
        if type(self.copy_offset) is not int or not -0x8000000000000000 <= self.copy_offset < 0x8000000000000000:
            raise FieldTypeError("DeadLetter", "copy_offset", self.copy_offset)
        return {
            "run_id": self.run_id,
            "origin_topic": self.origin_topic,
            "origin_partition": self.origin_partition,
            "origin_offset": self.origin_offset,
            "origin_key": self.origin_key,
            "part": self.part,
            "parts": self.parts,
            "raw": self.raw,
            "schema_id": self.schema_id,
            "error_class": self.error_class,
            "error": self.error,
            "consumer": self.consumer,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
            "kind": self.kind,
            "retry_id": self.retry_id,
            "copy_topic": self.copy_topic,
            "copy_partition": self.copy_partition,
            "copy_offset": self.copy_offset,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            origin_topic=raw["origin_topic"],
            origin_partition=raw["origin_partition"],
            origin_offset=raw["origin_offset"],
            origin_key=raw["origin_key"],
            part=raw["part"],
            parts=raw["parts"],
            raw=raw["raw"],
            schema_id=raw["schema_id"],
            error_class=raw["error_class"],
            error=raw["error"],
            consumer=raw["consumer"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
            kind=_LETTERKIND[raw["kind"]],
            retry_id=raw["retry_id"],
            copy_topic=raw["copy_topic"],
            copy_partition=raw["copy_partition"],
            copy_offset=raw["copy_offset"],
        )


class DeadLetterDraft:
    """The layout of DeadLetter without its lock: it is filled, then becomes the record."""

    __slots__ = DeadLetter.__slots__


def _init_DeadLetter(
    self: Any,
    *,
    run_id: RunId = RunId(""),  # noqa: B008  immutable
    origin_topic: str,
    origin_partition: int,
    origin_offset: int,
    origin_key: bytes = b"",  # noqa: B008  immutable
    part: int = 0,  # noqa: B008  immutable
    parts: int = 1,  # noqa: B008  immutable
    raw: bytes = b"",  # noqa: B008  immutable
    schema_id: int = -1,  # noqa: B008  immutable
    error_class: str,
    error: str = "",  # noqa: B008  immutable
    consumer: str,
    at_us: int,
    writer_id: WorkerId,
    kind: LetterKind = LetterKind.LETTER,  # noqa: B008  immutable
    retry_id: str = "",  # noqa: B008  immutable
    copy_topic: str = "",  # noqa: B008  immutable
    copy_partition: int = -1,  # noqa: B008  immutable
    copy_offset: int = -1,  # noqa: B008  immutable
) -> None:
    _open(self, "__class__", DeadLetterDraft)
    self.run_id = run_id
    self.origin_topic = origin_topic
    self.origin_partition = origin_partition
    self.origin_offset = origin_offset
    self.origin_key = origin_key
    self.part = part
    self.parts = parts
    self.raw = raw
    self.schema_id = schema_id
    self.error_class = error_class
    self.error = error
    self.consumer = consumer
    self.at_us = at_us
    self.writer_id = writer_id
    self.kind = kind
    self.retry_id = retry_id
    self.copy_topic = copy_topic
    self.copy_partition = copy_partition
    self.copy_offset = copy_offset
    self.__class__ = DeadLetter


# What it does is what the generated one does; `replace` and `copy` go through it too.
DeadLetter.__init__ = _init_DeadLetter  # type: ignore[method-assign]
