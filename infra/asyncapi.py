"""The AsyncAPI 3 document: what outside teams may subscribe to, from the topics and their schemas.

Invariants: pure, the same text for the same code; nothing stands here that is not in `topics.py` or
an `.avsc`. Source of the shape: AsyncAPI 3.0.0, Kafka bindings 0.4.0, which allow their listed keys
only, so all else goes into `x-sluice-` extensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from infra.version import VERSION
from schemas.codec import schema_text
from schemas.enums import Role
from schemas.topics import ALL, Topic

ASYNCAPI = "3.0.0"
BINDING = "0.4.0"
AVRO = "application/vnd.apache.avro;version=1.9.0"
_DESCRIPTION = (
    "Every topic of Sluice. Records are Avro behind the Confluent prefix (magic byte 0, then the "
    "schema id in 4 bytes, big-endian). Subjects follow TopicNameStrategy and are held to "
    "FULL_TRANSITIVE: every version reads every other."
)
_TOPIC_KEYS: Mapping[str, Callable[[str], Any]] = {
    "cleanup.policy": lambda text: [text],
    "retention.ms": int,
    "delete.retention.ms": int,
    "max.message.bytes": int,
}
"""Settings that the binding knows, with the type it asks for."""


def document(*, prefix: str = "sluice") -> dict[str, Any]:
    """Return the document of all topics under a prefix, ready for JSON."""
    return {
        "asyncapi": ASYNCAPI,
        "id": "urn:sluice:topics",
        "info": {
            "title": "Sluice topics",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/vnd.apache.avro",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "The Kafka cluster of this installation.",
                "variables": {
                    "bootstrap": {
                        "default": "127.0.0.1:19092",
                        "description": "host:port of any broker.",
                    }
                },
            }
        },
        "channels": {topic.name: _channel(topic, prefix) for topic in ALL},
        "operations": dict(_operations()),
        "components": {"messages": {topic.record.__name__: _message(topic) for topic in ALL}},
    }


def _channel(topic: Topic[Any], prefix: str) -> dict[str, Any]:
    settings = topic.config(replicas=3)
    record = topic.record.__name__
    return {
        "address": topic.full(prefix),
        "title": topic.name,
        "summary": topic.meaning,
        "servers": [{"$ref": "#/servers/kafka"}],
        "messages": {record: {"$ref": f"#/components/messages/{record}"}},
        "bindings": {
            "kafka": {
                "topic": topic.full(prefix),
                "topicConfiguration": {
                    name: convert(settings[name])
                    for name, convert in _TOPIC_KEYS.items()
                    if name in settings
                },
                "bindingVersion": BINDING,
            }
        },
        "x-sluice-subject": topic.subject(prefix),
        "x-sluice-partitioned-by": "group_id" if topic.is_grouped else "key",
        "x-sluice-partitioner": "murmur2",
        "x-sluice-compression": topic.compression.value,
        "x-sluice-settings": {
            name: value for name, value in settings.items() if name not in _TOPIC_KEYS
        },
    }


def _operations() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for topic in ALL:
        for action, roles in (("send", topic.writers), ("receive", topic.readers)):
            found += [
                (f"{role.value}.{action}.{topic.name}", _operation(topic, action, role))
                for role in roles
            ]
    return found


def _operation(topic: Topic[Any], action: str, role: Role) -> dict[str, Any]:
    verb = "writes" if action == "send" else "reads"
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "summary": f"{role.value} {verb} {topic.name}",
        "messages": [{"$ref": f"#/channels/{topic.name}/messages/{topic.record.__name__}"}],
        "x-sluice-role": role.value,
    }


def _message(topic: Topic[Any]) -> dict[str, Any]:
    schema = json.loads(schema_text(topic.schema))
    return {
        "name": topic.record.__name__,
        "title": topic.record.__name__,
        "summary": schema.get("doc", topic.meaning),
        "contentType": "application/vnd.apache.avro",
        "payload": {"schemaFormat": AVRO, "schema": schema},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": "UTF-8 text; see the topic's meaning."},
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "schemaLookupStrategy": "TopicNameStrategy",
                "bindingVersion": BINDING,
            }
        },
    }
