"""The codec's fast path says exactly what fastavro says, and every fault is named by the
slow one.
"""

from __future__ import annotations

import dataclasses
import io
from random import Random
from typing import Any

import fastavro
import pytest

from schemas.codec import Codec, frame_id, parsed
from schemas.enums import TokenKind
from schemas.errors import FieldTypeError, PoisonRecordError
from schemas.records.wire.by_schema import DECODERS, ENCODERS
from schemas.topics import ALL, METRICS, TOKENS, Topic
from tests.support.random_records import RecordBuilder

CODEC = Codec.local()
ROUNDS = 12


def _by_fastavro(topic: Topic[Any], data: bytes) -> Any:
    buffer = io.BytesIO(data[5:])
    raw = fastavro.schemaless_reader(buffer, parsed(topic.schema), None)
    if buffer.read(1):
        raise ValueError("trailing bytes")
    return topic.record.from_avro(raw)


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_every_record_is_written_and_read_as_fastavro_does(topic: Topic[Any]) -> None:
    for seed in range(ROUNDS):
        record = RecordBuilder(seed).record(topic)
        data = CODEC.encode(topic, record)
        assert data == CODEC.encode_slowly(topic, record)
        assert CODEC.decode(topic, data) == record == _by_fastavro(topic, data)


def _as_written(record: Any) -> Any:
    real = {"at_us": 1_764_442_000_123_456, "writer_id": "worker-0", "crc32c": 0xDEADBEEF}
    fields = {field.name for field in dataclasses.fields(record)}
    return dataclasses.replace(record, **{name: real[name] for name in real if name in fields})


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_the_fast_path_takes_the_records_that_we_write(topic: Topic[Any]) -> None:
    for seed in range(ROUNDS):
        record = _as_written(RecordBuilder(seed).record(topic))
        data = ENCODERS[topic.schema](b"", record)
        assert data is not None
        assert DECODERS[topic.schema](data, 0) == record


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_damaged_bytes_are_poison_or_what_fastavro_reads(topic: Topic[Any]) -> None:
    random = Random(7)
    for seed in range(ROUNDS // 2):
        whole = CODEC.encode(topic, RecordBuilder(seed).record(topic))
        for _ in range(10):
            data = _damage(whole, random)
            try:
                read = CODEC.decode(topic, data)
            except PoisonRecordError:
                read = None
            try:
                expected = CODEC.decode_slowly(topic, data)
            except PoisonRecordError:
                expected = None
            assert repr(read) == repr(expected)


def _damage(data: bytes, random: Random) -> bytes:
    at = random.randrange(5, len(data))
    match random.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data + b"\x00"
        case 2:
            return data[:at] + random.randbytes(1) + data[at:]
        case _:
            return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def test_a_decoded_record_is_frozen_and_of_its_own_type() -> None:
    record = RecordBuilder(1).record(TOKENS)
    read = CODEC.decode(TOKENS, CODEC.encode(TOKENS, record))
    assert type(read) is TOKENS.record
    assert hash(read) == hash(record)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.seq = 3  # type: ignore[misc]


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_a_value_of_a_wrong_type_or_range_is_refused_by_field_name(topic: Topic[Any]) -> None:
    record = RecordBuilder(3).record(topic)
    for field in dataclasses.fields(record):
        for wrong in (
            object(),
            2**63,
            bytearray(b"x"),
            True,
            1.0,
            "text",
            b"bytes",
            {1: 2},
            (object(),),
        ):
            value = getattr(record, field.name)
            if type(wrong) is type(value) and wrong not in (2**63, {1: 2}):
                continue
            changed = dataclasses.replace(record, **{field.name: wrong})
            fault = _fault_of(changed)
            if fault is None:
                assert CODEC.encode(topic, changed) == CODEC.encode_slowly(topic, changed)
            else:
                with pytest.raises(FieldTypeError, match=rf"\.{field.name} "):
                    CODEC.encode(topic, changed)


def _fault_of(record: Any) -> str | None:
    try:
        record.to_avro()
    except FieldTypeError as error:
        return str(error)
    return None


def test_true_is_no_number_even_where_one_was_written_before() -> None:
    record = dataclasses.replace(RecordBuilder(3).record(TOKENS), attempt=1, fence_number=1)
    CODEC.encode(TOKENS, record)
    with pytest.raises(FieldTypeError, match="attempt"):
        CODEC.encode(TOKENS, dataclasses.replace(record, attempt=True))


def test_a_lone_surrogate_is_refused_as_a_text() -> None:
    record = dataclasses.replace(RecordBuilder(3).record(METRICS), name="\ud800")
    with pytest.raises(FieldTypeError):
        CODEC.encode(METRICS, record)


def test_a_symbol_of_a_newer_writer_is_poison_and_not_a_guess() -> None:
    record = dataclasses.replace(RecordBuilder(3).record(TOKENS), kind=TokenKind.UNKNOWN)
    data = CODEC.encode_slowly(TOKENS, record)
    with pytest.raises(PoisonRecordError, match="unknown"):
        CODEC.decode(TOKENS, data)


def test_a_frame_of_an_unknown_schema_is_poison() -> None:
    data = CODEC.encode(TOKENS, RecordBuilder(3).record(TOKENS))
    assert frame_id(data) == 3
    with pytest.raises(PoisonRecordError, match="schema id 99"):
        CODEC.decode(TOKENS, b"\x00" + (99).to_bytes(4, "big") + data[5:])
    with pytest.raises(PoisonRecordError, match="frame"):
        CODEC.decode(TOKENS, b"\x01abcd")
    with pytest.raises(PoisonRecordError):
        CODEC.decode(TOKENS, b"")
