"""The AsyncAPI document says what the topics say, in the shape that AsyncAPI 3 asks for."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from infra.asyncapi import document
from schemas.topics import ALL

_REF = {
    "type": "object",
    "required": ["$ref"],
    "properties": {"$ref": {"type": "string", "pattern": "^#/"}},
    "additionalProperties": False,
}
_OURS: dict[str, Any] = {"^x-": {}}
SHAPE: dict[str, Any] = {
    "type": "object",
    "required": ["asyncapi", "info"],
    "additionalProperties": False,
    "properties": {
        "asyncapi": {"const": "3.0.0"},
        "id": {"type": "string"},
        "info": {"type": "object", "required": ["title", "version"]},
        "defaultContentType": {"type": "string"},
        "servers": {
            "additionalProperties": {"type": "object", "required": ["host", "protocol"]},
        },
        "channels": {
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "patternProperties": _OURS,
                "properties": {
                    "address": {"type": ["string", "null"]},
                    "title": {"type": "string"},
                    "summary": {"type": "string"},
                    "servers": {"type": "array", "items": _REF},
                    "messages": {"type": "object", "additionalProperties": _REF},
                    "bindings": {
                        "properties": {
                            "kafka": {
                                "additionalProperties": False,
                                "properties": {
                                    "topic": {"type": "string"},
                                    "partitions": {"type": "integer"},
                                    "replicas": {"type": "integer"},
                                    "bindingVersion": {"const": "0.4.0"},
                                    "topicConfiguration": {
                                        "additionalProperties": False,
                                        "properties": {
                                            "cleanup.policy": {
                                                "type": "array",
                                                "items": {"enum": ["compact", "delete"]},
                                            },
                                            "retention.ms": {"type": "integer", "minimum": -1},
                                            "retention.bytes": {"type": "integer"},
                                            "delete.retention.ms": {"type": "integer"},
                                            "max.message.bytes": {"type": "integer"},
                                        },
                                    },
                                },
                            }
                        }
                    },
                },
            }
        },
        "operations": {
            "additionalProperties": {
                "type": "object",
                "required": ["action", "channel"],
                "additionalProperties": False,
                "patternProperties": _OURS,
                "properties": {
                    "action": {"enum": ["send", "receive"]},
                    "channel": _REF,
                    "summary": {"type": "string"},
                    "messages": {"type": "array", "items": _REF},
                },
            }
        },
        "components": {
            "properties": {
                "messages": {
                    "patternProperties": {
                        r"^[\w\d.\-_]+$": {
                            "required": ["payload"],
                            "properties": {
                                "payload": {"required": ["schemaFormat", "schema"]},
                                "bindings": {
                                    "properties": {
                                        "kafka": {
                                            "additionalProperties": False,
                                            "properties": {
                                                "key": {"type": "object"},
                                                "schemaIdLocation": {"enum": ["header", "payload"]},
                                                "schemaIdPayloadEncoding": {"type": "string"},
                                                "schemaLookupStrategy": {"type": "string"},
                                                "bindingVersion": {"const": "0.4.0"},
                                            },
                                        }
                                    }
                                },
                            },
                        }
                    },
                    "additionalProperties": False,
                }
            }
        },
    },
}


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for child in node.values() for ref in references(child)]
    if isinstance(node, list):
        return [ref for child in node for ref in references(child)]
    return []


def test_the_document_has_the_shape_of_asyncapi_3_with_kafka_bindings() -> None:
    jsonschema.validate(document(), SHAPE)


def test_the_shape_refuses_a_key_that_the_binding_does_not_know() -> None:
    wrong = document()
    wrong["channels"]["tokens.v1"]["bindings"]["kafka"]["segment.bytes"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SHAPE)


def test_every_reference_leads_somewhere() -> None:
    whole = document()
    found = references(whole)
    assert found
    for reference in found:
        node: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_every_topic_stands_in_it_with_its_writers_readers_and_schema() -> None:
    whole = json.loads(json.dumps(document(prefix="team")))
    assert list(whole["channels"]) == [topic.name for topic in ALL]
    for topic in ALL:
        channel = whole["channels"][topic.name]
        assert channel["address"] == f"team.{topic.name}"
        assert channel["x-sluice-subject"] == topic.subject("team")
        message = whole["components"]["messages"][topic.record.__name__]
        fields = {field["name"] for field in message["payload"]["schema"]["fields"]}
        assert fields == set(topic.record.__dataclass_fields__)
        operations = {
            (one["action"], one["x-sluice-role"])
            for one in whole["operations"].values()
            if one["channel"]["$ref"] == f"#/channels/{topic.name}"
        }
        assert operations == {("send", role.value) for role in topic.writers} | {
            ("receive", role.value) for role in topic.readers
        }
