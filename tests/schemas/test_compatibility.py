"""Every version of a schema ever released reads every other, and the check for it can fail."""

from __future__ import annotations

import copy
import io
import itertools
import json
from typing import Any

import fastavro
import pytest

from infra.schema_release import faults, present, released, stems
from schemas.codec import parse
from tests.support.random_records import RecordBuilder


def _versions(stem: str) -> list[dict[str, Any]]:
    return [*released(stem).values(), present(stem)]


def _next(stem: str) -> dict[str, Any]:
    schema = copy.deepcopy(present(stem))
    schema["fields"].append({"name": "later", "type": "string", "default": "", "doc": "Later."})
    enum = next((f["type"] for f in schema["fields"] if _is_enum(f["type"])), None)
    if enum is not None:
        enum["symbols"].append("later")
    return schema


def _is_enum(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "enum"


def _read(datum: dict[str, Any], writer: dict[str, Any], reader: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parse_of(writer), datum, strict=True)
    buffer.seek(0)
    return fastavro.schemaless_reader(buffer, parse_of(writer), parse_of(reader))


def parse_of(schema: dict[str, Any]) -> Any:
    """Return the parsed form of a schema given as a dict."""
    return parse(json.dumps(schema))


def _expected(datum: Any, writer: dict[str, Any], reader: dict[str, Any]) -> dict[str, Any]:
    written = {field["name"]: field["type"] for field in writer["fields"]}
    out = {}
    for field in reader["fields"]:
        name = field["name"]
        if name not in written:
            out[name] = field["default"]
        elif _is_enum(field["type"]) and datum[name] not in field["type"]["symbols"]:
            out[name] = field["type"]["default"]
        else:
            out[name] = datum[name]
    return out


@pytest.mark.parametrize("stem", stems())
def test_every_version_reads_every_other(stem: str) -> None:
    versions = [*_versions(stem), _next(stem)]
    for writer, reader in itertools.permutations(versions, 2):
        assert faults(writer, reader) == []
        for seed in range(3):
            datum = RecordBuilder(seed).datum(writer)
            assert repr(_read(datum, writer, reader)) == repr(_expected(datum, writer, reader))


@pytest.mark.parametrize("stem", stems())
def test_a_first_version_is_released(stem: str) -> None:
    assert min(released(stem)) == 1


def _without_default(schema: dict[str, Any]) -> None:
    schema["fields"].append({"name": "later", "type": "string", "doc": "Later."})


def _other_type(schema: dict[str, Any]) -> None:
    next(f for f in schema["fields"] if f["name"] == "at_us")["type"] = "double"


def _symbol_moved(schema: dict[str, Any]) -> None:
    next(f["type"] for f in schema["fields"] if _is_enum(f["type"]))["symbols"].reverse()


def _renamed(schema: dict[str, Any]) -> None:
    schema["name"] = "Other"


@pytest.mark.parametrize("break_it", [_without_default, _other_type, _symbol_moved, _renamed])
def test_a_breaking_change_is_named(break_it: Any) -> None:
    schema = copy.deepcopy(present("token_commit"))
    break_it(schema)
    assert faults(present("token_commit"), schema)
    assert faults(schema, present("token_commit"))
