"""One immutable policy version.

Generated from `schemas/avro/policy_version.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.errors import FieldTypeError
from schemas.ids import RunId, WorkerId

_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One immutable policy version."""

    run_id: RunId
    """The run this record belongs to."""
    epoch: int
    """Epoch. Unit: epochs."""
    number: int
    """Number. Unit: versions."""
    ordinal: int
    """Optimiser updates from the run's start. Unit: updates."""
    parent_epoch: int = 0
    """Epoch of the parent; 0 for the starting weights. Unit: epochs."""
    parent_number: int = 0
    """Number of the parent. Unit: versions."""
    digest: str
    """sha256 of the manifest."""
    location: str
    """Folder or URL of the version."""
    manifest: str = ""
    """The manifest: file names, sizes and sha256, as JSON."""
    bytes_total: int = 0
    """Size of the version. Unit: bytes."""
    tokenizer_digest: str = ""
    """Tokenizer."""
    template_digest: str = ""
    """Prompt template."""
    precision: str = ""
    """Number format of the weights."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("PolicyVersion", "run_id", self.run_id)
        if type(self.epoch) is not int or not -0x8000000000000000 <= self.epoch < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "epoch", self.epoch)
        if type(self.number) is not int or not -0x8000000000000000 <= self.number < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "number", self.number)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "ordinal", self.ordinal)
        if type(self.parent_epoch) is not int or not -0x8000000000000000 <= self.parent_epoch < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "parent_epoch", self.parent_epoch)
        if type(self.parent_number) is not int or not -0x8000000000000000 <= self.parent_number < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "parent_number", self.parent_number)
        if type(self.digest) is not str:
            raise FieldTypeError("PolicyVersion", "digest", self.digest)
        if type(self.location) is not str:
            raise FieldTypeError("PolicyVersion", "location", self.location)
        if type(self.manifest) is not str:
            raise FieldTypeError("PolicyVersion", "manifest", self.manifest)
        if type(self.bytes_total) is not int or not -0x8000000000000000 <= self.bytes_total < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "bytes_total", self.bytes_total)
        if type(self.tokenizer_digest) is not str:
            raise FieldTypeError("PolicyVersion", "tokenizer_digest", self.tokenizer_digest)
        if type(self.template_digest) is not str:
            raise FieldTypeError("PolicyVersion", "template_digest", self.template_digest)
        if type(self.precision) is not str:
            raise FieldTypeError("PolicyVersion", "precision", self.precision)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("PolicyVersion", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("PolicyVersion", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "epoch": self.epoch,
            "number": self.number,
            "ordinal": self.ordinal,
            "parent_epoch": self.parent_epoch,
            "parent_number": self.parent_number,
            "digest": self.digest,
            "location": self.location,
            "manifest": self.manifest,
            "bytes_total": self.bytes_total,
            "tokenizer_digest": self.tokenizer_digest,
            "template_digest": self.template_digest,
            "precision": self.precision,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            epoch=raw["epoch"],
            number=raw["number"],
            ordinal=raw["ordinal"],
            parent_epoch=raw["parent_epoch"],
            parent_number=raw["parent_number"],
            digest=raw["digest"],
            location=raw["location"],
            manifest=raw["manifest"],
            bytes_total=raw["bytes_total"],
            tokenizer_digest=raw["tokenizer_digest"],
            template_digest=raw["template_digest"],
            precision=raw["precision"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class PolicyVersionDraft:
    """The layout of PolicyVersion without its lock: it is filled, then becomes the record."""

    __slots__ = PolicyVersion.__slots__


def _init_PolicyVersion(
    self: Any,
    *,
    run_id: RunId,
    epoch: int,
    number: int,
    ordinal: int,
    parent_epoch: int = 0,  # noqa: B008  immutable
    parent_number: int = 0,  # noqa: B008  immutable
    digest: str,
    location: str,
    manifest: str = "",  # noqa: B008  immutable
    bytes_total: int = 0,  # noqa: B008  immutable
    tokenizer_digest: str = "",  # noqa: B008  immutable
    template_digest: str = "",  # noqa: B008  immutable
    precision: str = "",  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", PolicyVersionDraft)
    self.run_id = run_id
    self.epoch = epoch
    self.number = number
    self.ordinal = ordinal
    self.parent_epoch = parent_epoch
    self.parent_number = parent_number
    self.digest = digest
    self.location = location
    self.manifest = manifest
    self.bytes_total = bytes_total
    self.tokenizer_digest = tokenizer_digest
    self.template_digest = template_digest
    self.precision = precision
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = PolicyVersion


# What it does is what the generated one does; `replace` and `copy` go through it too.
PolicyVersion.__init__ = _init_PolicyVersion  # type: ignore[method-assign]
