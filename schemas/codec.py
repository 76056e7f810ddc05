"""Records to bytes and back: Confluent frame (magic 0, schema id, Avro body), strict in both
directions.

Types and ranges are checked by the generated `to_avro`; trailing bytes, unknown schema ids and enum
symbols that a newer writer added are refused here as PoisonRecordError. The one piece of I/O in
`schemas`: reading its own `avro/` once.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from schemas.errors import Boundary, FieldTypeError, PoisonRecordError, SettingsError
from schemas.records.wire.by_schema import DECODERS, ENCODERS
from schemas.topics import ALL, Record, Topic

R = TypeVar("R", bound=Record)
_AVRO = Path(__file__).resolve().parent / "avro"
_FRAME = 5
_FAULTS = (
    EOFError,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    SchemaParseException,
    SchemaResolutionError,
)


@cache
def schema_text(stem: str) -> str:
    """Return the text of `schemas/avro/<stem>.avsc`, as it is registered."""
    return (_AVRO / f"{stem}.avsc").read_text()


def _without_logical_types(node: Any) -> Any:
    # Timestamps stay whole microseconds here; datetime objects would cost more than the rest of the
    # record.
    if isinstance(node, dict):
        return {
            key: _without_logical_types(value)
            for key, value in node.items()
            if key != "logicalType"
        }
    if isinstance(node, list):
        return [_without_logical_types(value) for value in node]
    return node


def parse(text: str) -> Any:
    """Return the parsed form of a schema for reading and writing; parse each schema once, never per
    record.
    """
    return fastavro.parse_schema(_without_logical_types(json.loads(text)))


@cache
def parsed(stem: str) -> Any:
    """Return the parsed schema of `schemas/avro/<stem>.avsc`."""
    return parse(schema_text(stem))


class Codec:
    """Encodes and decodes the records of all topics under schema ids resolved beforehand."""

    def __init__(self, *, ids: Mapping[str, int], writers: Mapping[int, str] | None = None) -> None:
        """Take the schema id of each topic's record by logical topic name, and the text of every
        known id.

        `writers` names older and newer registered schemas; the ids in `ids` need not be repeated
        there. Raises SettingsError when a topic has no id.
        """
        missing = [topic.name for topic in ALL if topic.name not in ids]
        if missing:
            raise SettingsError(
                f"no schema id for {', '.join(missing)}", hint="run `sluice topics create`"
            )
        prefixes = {name: b"\x00" + number.to_bytes(4, "big") for name, number in ids.items()}
        self._encoders = {t.name: (prefixes[t.name], ENCODERS[t.schema]) for t in ALL}
        self._decoders = {t.name: (prefixes[t.name], DECODERS[t.schema]) for t in ALL}
        self._own = {number: name for name, number in ids.items()}
        self._writers = {
            number: parse(text)
            for number, text in (writers or {}).items()
            if number not in self._own
        }
        self._ids = dict(ids)

    @classmethod
    def local(cls) -> Codec:
        """Return a codec with fixed ids 1, 2, ... in the order of `topics.ALL`, for tests and tools
        without a registry.
        """
        return cls(ids={topic.name: index + 1 for index, topic in enumerate(ALL)})

    def knows(self, schema_id: int) -> bool:
        """Whether records of this schema id can be read."""
        return schema_id in self._own or schema_id in self._writers

    def frame(self, topic: Topic[Any]) -> bytes:
        """Return the first bytes of every record that this codec writes to a topic."""
        return self._encoders[topic.name][0]

    def encode(self, topic: Topic[R], record: R) -> bytes:
        """Return the framed bytes; raise FieldTypeError for a value that the schema does
        not allow.
        """
        prefix, fast = self._encoders[topic.name]
        try:
            data = fast(prefix, record)
        except (AttributeError, OverflowError, TypeError, UnicodeEncodeError, ValueError):
            data = None
        # What the fast path does not take is either a fault, which `to_avro` names, or rare.
        return self.encode_slowly(topic, record) if data is None else data

    def encode_slowly(self, topic: Topic[R], record: R) -> bytes:
        """Return the same bytes by way of fastavro: the reference that `encode` is tested
        against.
        """
        buffer = io.BytesIO()
        buffer.write(self._encoders[topic.name][0])
        datum = record.to_avro()
        try:
            fastavro.schemaless_writer(buffer, parsed(topic.schema), datum, strict=True)
        except UnicodeEncodeError as error:
            raise FieldTypeError(
                topic.name, "a text", error.object[error.start : error.end]
            ) from error
        return buffer.getvalue()

    def decode(self, topic: Topic[R], data: bytes) -> R:
        """Return the record of framed bytes; raise PoisonRecordError when it cannot be
        read whole.
        """
        prefix, fast = self._decoders[topic.name]
        try:
            if data.startswith(prefix):
                # Generated for this topic's record.
                return fast(data, _FRAME)  # type: ignore[no-any-return]
        except (IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error):
            # Damaged, or legal Avro that we do not write: the reference decides and says which.
            pass
        return self.decode_slowly(topic, data)

    def decode_slowly(self, topic: Topic[R], data: bytes) -> R:
        """Return the same record by way of fastavro: other writers' schemas, and every fault by
        name.
        """
        schema_id = frame_id(data)
        buffer = io.BytesIO(data)
        buffer.seek(_FRAME)
        own = parsed(topic.schema)
        try:
            if schema_id == self._ids[topic.name]:
                raw = fastavro.schemaless_reader(buffer, own, None)
            elif schema_id in self._writers:
                raw = fastavro.schemaless_reader(buffer, self._writers[schema_id], own)
            else:
                raise _poison(
                    topic,
                    f"schema id {schema_id} is not known",
                    "register it, or start this reader anew",
                )
            if buffer.tell() != len(data):
                raise _poison(
                    topic,
                    f"{len(data) - buffer.tell()} bytes follow the record",
                    "the frame is damaged",
                )
            # A record schema always yields a dict.
            return topic.record.from_avro(raw)  # type: ignore[arg-type]
        except KeyError as error:
            raise _poison(
                topic, f"symbol {error} is not known here", "a newer reader is needed"
            ) from error
        except _FAULTS as error:
            raise _poison(
                topic,
                f"body cannot be decoded: {error}",
                "the bytes are damaged or of another schema",
            ) from error


def _poison(topic: Topic[Any], what: str, hint: str) -> PoisonRecordError:
    return PoisonRecordError(f"{topic.name}: {what}", boundary=Boundary.BUS, hint=hint)


def frame_id(data: bytes) -> int:
    """Return the schema id of a Confluent frame; raise PoisonRecordError when there is no such
    frame.
    """
    if len(data) < _FRAME or data[0] != 0:
        raise PoisonRecordError(
            "no Confluent frame (magic 0 and a 4-byte schema id)",
            boundary=Boundary.BUS,
            hint="its writer does not use our codec",
        )
    return int.from_bytes(data[1:_FRAME], "big")


__all__ = ["Codec", "FieldTypeError", "frame_id", "parse", "parsed", "schema_text"]
