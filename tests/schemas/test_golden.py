"""Bytes of each record as they were written under the first released schema: they stay readable for
good.

`python -m tests.schemas.test_golden` writes files for versions that have none; a file is never
rewritten.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from infra.schema_release import released
from schemas.codec import Codec, parse
from schemas.topics import ALL, Topic
from tests.support.random_records import RecordBuilder

GOLDEN = Path(__file__).parent / "golden"
_WRITER_ID = 1000


def _cases() -> list[tuple[Topic[Any], int]]:
    return [(topic, number) for topic in ALL for number in released(topic.schema)]


def _path(topic: Topic[Any], number: int) -> Path:
    return GOLDEN / f"{topic.schema}.v{number}.json"


def _body(schema: dict[str, Any], datum: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parse(json.dumps(schema)), datum, strict=True)
    return buffer.getvalue()


@pytest.mark.parametrize(("topic", "number"), _cases(), ids=lambda v: getattr(v, "name", f"v{v}"))
def test_golden_bytes_are_read_as_what_was_written(topic: Topic[Any], number: int) -> None:
    schema = released(topic.schema)[number]
    for case in json.loads(_path(topic, number).read_text()):
        body, datum = bytes.fromhex(case["body"]), _thawed(case["datum"])
        assert _body(schema, datum) == body
        codec = Codec(
            ids={t.name: index + 1 for index, t in enumerate(ALL)},
            writers={_WRITER_ID + number: json.dumps(schema)},
        )
        frame = b"\x00" + (_WRITER_ID + number).to_bytes(4, "big") + body
        record = codec.decode(topic, frame)
        read = record.to_avro()
        assert {name: read[name] for name in datum} == datum
        if number == max(released(topic.schema)):
            assert codec.encode(topic, record)[5:] == body or len(read) != len(datum)


def _frozen(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return [_frozen(item) for item in value] if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, list) else value


def _write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for topic, number in _cases():
        if not _path(topic, number).exists():
            schema = released(topic.schema)[number]
            data = [RecordBuilder(seed, size_max=70).datum(schema) for seed in range(3)]
            cases = [{"datum": _frozen(d), "body": _body(schema, d).hex()} for d in data]
            _path(topic, number).write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    _write()
