"""Random records of every type, built from the schemas, to compare two ways of doing one thing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from schemas.codec import schema_text
from schemas.topics import Topic

_TEXTS = ("", "a", "episode.12.3", "Grüße, 世界 \U0001f680", "x" * 63, "y" * 64, "z" * 9000)
_LONGS = (0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**20, 2**31, 2**35, -(2**40), 2**62, -(2**63))
_TIMES = (0, 5_000_000, 1_764_442_000_000_000, 2**55 - 1)
_CRCS = (0, 1, 2**27, 0xDEADBEEF, 2**32 - 1)
_DOUBLES = (0.0, -0.0, 1.0, -1.5e300, 5e-324, float("inf"))


class RecordBuilder:
    """Builds records of random fields, often at a default or at the border of an encoding."""

    def __init__(self, seed: int, *, size_max: int = 9000) -> None:
        """Draw everything from this seed; no text, array or bytes is longer than `size_max`."""
        self._random = Random(seed)
        self._size_max = size_max

    def record(self, topic: Topic[Any]) -> Any:
        """Return a random record of the topic's type."""
        return topic.record.from_avro(self.datum(json.loads(schema_text(topic.schema))))

    def datum(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a random Avro datum of a record schema."""
        return self._fields(schema, _named(schema), rare=self._random.random())

    def _fields(
        self, schema: dict[str, Any], named: dict[str, Any], *, rare: float
    ) -> dict[str, Any]:
        out = {}
        for field in schema["fields"]:
            name, default = field["name"], field["default"]
            # `unknown` is what an older reader sees for a newer symbol; nobody writes it.
            if self._random.random() < rare and default != "unknown":
                out[name] = default.encode() if field["type"] == "bytes" else default
            else:
                out[name] = self._value(name, field["type"], named)
        return out

    def _value(  # noqa: C901  (one line per Avro type)
        self, name: str, schema: Any, named: dict[str, Any]
    ) -> Any:
        choose = self._random.choice
        if isinstance(schema, list):
            return choose((None, choose(_DOUBLES)))
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        match schema if isinstance(schema, str) else schema["type"]:
            case "string":
                return choose(_TEXTS)[: self._size_max]
            case "long":
                if name == "crc32c":
                    return choose(_CRCS)
                return choose(_TIMES if name.endswith("_us") else _LONGS)
            case "double":
                return choose(_DOUBLES)
            case "boolean":
                return choose((False, True))
            case "bytes":
                size = choose((0, 1, 32, 64, 256, 256, 256, 9000))
                return self._random.randbytes(min(size, self._size_max))
            case "enum":
                return choose(schema["symbols"][1:])
            case "array":
                size = min(choose((0, 1, 3, 70)), self._size_max // 20)
                return [self._value("", schema["items"], named) for _ in range(size)]
            case "map":
                size = choose((0, 1, 3))
                return {f"key {i}": self._value("", schema["values"], named) for i in range(size)}
            case _:
                return self._fields(schema, named, rare=self._random.random())


def _named(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") in ("enum", "record"):
                found[node["name"]] = node
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema)
    return found
