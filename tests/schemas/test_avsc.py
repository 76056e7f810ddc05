"""The schemas are documented to the field, use few kinds of types, and say what the Python enums
say.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest

from infra.records_codegen import RECORDS, generate
from infra.schema_release import present, stems
from schemas import enums
from schemas.topics import ALL

_SCALARS = {"string", "long", "double", "boolean", "bytes"}
_PACKED = {"int32-le", "float32-le", "float64-le", "int64-le"}


def _records(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "record":
            yield schema
        for value in schema.values():
            yield from _records(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _records(value)


def _enums() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "enum":
                assert found.setdefault(node["name"], node["symbols"]) == node["symbols"]
                assert node["default"] == "unknown" == node["symbols"][0], node["name"]
                assert node["doc"]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for stem in stems():
        walk(present(stem))
    return found


@pytest.mark.parametrize("stem", stems())
def test_every_field_has_a_doc_a_unit_and_a_default(stem: str) -> None:
    for record in _records(present(stem)):
        assert record["doc"].endswith(".")
        for field in record["fields"]:
            where = f"{record['name']}.{field['name']}"
            assert field["doc"].endswith("."), where
            assert field["sluice.unit"], where
            assert "default" in field, where


@pytest.mark.parametrize("stem", stems())
def test_a_field_is_of_a_kind_that_the_generators_know(stem: str) -> None:
    named = {record["name"] for record in _records(present(stem))} | set(_enums())
    for record in _records(present(stem)):
        for field in record["fields"]:
            where, schema = f"{record['name']}.{field['name']}", field["type"]
            if isinstance(schema, str):
                assert schema in _SCALARS | named, where
            elif isinstance(schema, list):
                assert schema == ["null", "double"], where
                assert field["default"] is None, where
            elif schema["type"] == "long":
                assert schema["logicalType"] == "timestamp-micros", where
                assert field["name"].endswith("_us"), where
            else:
                assert schema["type"] in {"enum", "array", "map"}, where


def test_arrays_of_the_hot_record_are_packed_bytes() -> None:
    fields = {field["name"]: field for field in present("token_commit")["fields"]}
    packed = {name for name, field in fields.items() if field["type"] == "bytes"}
    assert packed == {"token_ids", "logprobs", "spans", "sampling", "timing"}
    assert all(fields[name]["sluice.packed"] in _PACKED for name in packed)
    assert not any(
        isinstance(f["type"], dict) and f["type"]["type"] == "array" for f in fields.values()
    )


def test_the_python_enums_mirror_the_schemas_symbol_by_symbol() -> None:
    ours = {
        name: [member.value for member in enum]
        for name, enum in vars(enums).items()
        if isinstance(enum, type) and issubclass(enum, StrEnum) and enum is not StrEnum
    }
    theirs = _enums()
    assert {name: sorted(symbols) for name, symbols in ours.items()} == {
        name: sorted(symbols) for name, symbols in theirs.items()
    }


def test_every_topic_has_a_schema_of_its_own() -> None:
    assert sorted(topic.schema for topic in ALL) == stems()
    for topic in ALL:
        assert present(topic.schema)["name"] == topic.record.__name__


def test_the_record_modules_are_what_the_generator_writes() -> None:
    on_disk = {str(path.relative_to(RECORDS)): path.read_text() for path in RECORDS.rglob("*.py")}
    assert on_disk == generate(), "run `make records`"
