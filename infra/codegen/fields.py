"""The fields of an Avro record as the generators of wire code see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WORDS = frozenset(
    {
        "digests",
        "environment",
        "incarnation",
        "location",
        "loss_name",
        "name",
        "stream",
        "tool",
        "topic",
        "topic_id",
        "unit",
    }
)


_RUN_MIN = 3


CLOCKS = frozenset({"at_us"})


# Fields at the head of a record that stay the same over many records of one writer: they are
# spelled and read once, then looked up as a whole.
LAYOUTS = {"TokenCommit": ("token_ids", "BBBBHH")}
"""Record to the field from which on commits of one count and length mostly look alike, and how the
bytes between head and that field are mostly cut: B is a long or enum of one byte, H a long of two.
"""


HEADS = {"TokenCommit": 8, "ToolEvent": 3, "EpisodeEvent": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireField:
    """One Avro field, as the generator sees it."""

    name: str
    kind: str
    """string, long, double, boolean, bytes, enum, array, map or nullable."""
    inner: Any
    """The enum or part schema, or the scalar kind inside an array, map or union."""
    default: Any
    is_word: bool
    is_required: bool

    @property
    def is_rare(self) -> bool:
        """Whether the field mostly holds its default, as far as its type and default tell."""
        if self.is_required:
            return False
        match self.kind:
            case "enum" | "map" | "array" | "nullable":
                return True
            case "string":
                return bool(self.default == "")
            case "long":
                return bool(self.default == -1)
            case _:
                return False


def wire_field(field: dict[str, Any], named: dict[str, Any]) -> WireField:
    """Return the view of one field; `named` holds the named types of the file."""
    schema = field["type"]
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind, inner = schema, None
    if isinstance(schema, list):
        kind, inner = "nullable", schema[1]
    elif isinstance(schema, dict):
        kind = schema["type"]
        inner = {"enum": schema, "array": schema.get("items"), "map": schema.get("values")}.get(
            kind
        )
        inner = named.get(inner, inner) if isinstance(inner, str) else inner
    name = field["name"]
    return WireField(
        name=name,
        kind=str(kind),
        inner=inner,
        default=field["default"],
        is_word="sluice.id" in field or name in _WORDS or name.endswith("digest"),
        is_required=bool(field.get("sluice.required")),
    )


def runs_of(fields: list[WireField]) -> dict[int, int]:
    """Return start index to end index (exclusive) of each run of fields that mostly hold their
    defaults.
    """
    runs: dict[int, int] = {}
    at = 0
    while at < len(fields):
        end = at
        while end < len(fields) and fields[end].is_rare:
            end += 1
        if end - at >= _RUN_MIN:
            runs[at] = end
        at = max(end, at + 1)
    return runs


def default_bytes(field: WireField) -> bytes:
    match field.kind:
        case "enum":
            return bytes((2 * field.inner["symbols"].index(field.default),))
        case "long":
            return b"\x01"
        case _:
            return b"\x00"


def default_code(field: WireField) -> str:
    match field.kind:
        case "enum":
            return f"_{field.inner['name'].upper()}_{str(field.default).upper()}"
        case "array":
            return "()"
        case "map":
            return "{}"
        case "nullable":
            return "None"
        case _:
            return repr(field.default)


def indent(lines: list[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]
