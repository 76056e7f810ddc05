"""One part of a heavy field, at most 512 KiB.

Generated from `schemas/avro/payload_chunk.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import PayloadContent
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId

_PAYLOADCONTENT = {member.value: member for member in PayloadContent if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadChunk:
    """One part of a heavy field, at most 512 KiB."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    content: PayloadContent
    """What the joined parts hold."""
    part: int
    """Place of this part, from 0. Unit: parts."""
    parts: int
    """Parts in all. Unit: parts."""
    body: bytes = b""
    """The bytes. Unit: bytes."""
    crc32c: int
    """CRC-32C of body."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("PayloadChunk", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("PayloadChunk", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("PayloadChunk", "group_id", self.group_id)
        if type(self.content) is not PayloadContent:
            raise FieldTypeError("PayloadChunk", "content", self.content)
        if type(self.part) is not int or not -0x8000000000000000 <= self.part < 0x8000000000000000:
            raise FieldTypeError("PayloadChunk", "part", self.part)
        if type(self.parts) is not int or not -0x8000000000000000 <= self.parts < 0x8000000000000000:
            raise FieldTypeError("PayloadChunk", "parts", self.parts)
        if type(self.body) is not bytes:
            raise FieldTypeError("PayloadChunk", "body", self.body)
        if type(self.crc32c) is not int or not -0x8000000000000000 <= self.crc32c < 0x8000000000000000:
            raise FieldTypeError("PayloadChunk", "crc32c", self.crc32c)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("PayloadChunk", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("PayloadChunk", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "content": self.content,
            "part": self.part,
            "parts": self.parts,
            "body": self.body,
            "crc32c": self.crc32c,
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
            content=_PAYLOADCONTENT[raw["content"]],
            part=raw["part"],
            parts=raw["parts"],
            body=raw["body"],
            crc32c=raw["crc32c"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class PayloadChunkDraft:
    """The layout of PayloadChunk without its lock: it is filled, then becomes the record."""

    __slots__ = PayloadChunk.__slots__


def _init_PayloadChunk(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    content: PayloadContent,
    part: int,
    parts: int,
    body: bytes = b"",  # noqa: B008  immutable
    crc32c: int,
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", PayloadChunkDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.content = content
    self.part = part
    self.parts = parts
    self.body = body
    self.crc32c = crc32c
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = PayloadChunk


# What it does is what the generated one does; `replace` and `copy` go through it too.
PayloadChunk.__init__ = _init_PayloadChunk  # type: ignore[method-assign]
