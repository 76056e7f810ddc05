"""Write `schemas/records/*.py` from `schemas/avro/*.avsc`, the source of truth.

Run it with `make records`; `tests/schemas` fails when the generated files differ from what it would
write.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.codegen import modules
from infra.codegen.constructors import constructor, preamble
from infra.codegen.fields import wire_field

ROOT = Path(__file__).resolve().parent.parent
AVRO = ROOT / "schemas" / "avro"
RECORDS = ROOT / "schemas" / "records"
_HEADER = '"""{doc}\n\nGenerated from `schemas/avro/{source}` by `make records`; edit the schema, not this file.\n"""\n'
_SCALARS = {"string": "str", "long": "int", "double": "float", "boolean": "bool", "bytes": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCode:
    """The pieces of Python that one Avro field becomes."""

    name: str
    hint: str
    default: str | None
    doc: str
    check: str
    encode: str
    decode: str
    ids: frozenset[str]
    enums: frozenset[str]
    parts: frozenset[str]


def _kind(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return "nullable"
    return str(schema["type"])


def _scalar_check(kind: str, value: str) -> str:
    match kind:
        case "long":
            return f"type({value}) is not int or not -0x8000000000000000 <= {value} < 0x8000000000000000"
        case "double":
            return f"type({value}) is not float"
        case "boolean":
            return f"type({value}) is not bool"
        case "bytes":
            return f"type({value}) is not bytes"
        case _:
            return f"type({value}) is not str"


def field_code(field: dict[str, Any], named: dict[str, Any]) -> FieldCode:
    """Return the code of one field; `named` holds the named types met so far in the file."""
    name, schema = field["name"], field["type"]
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    me, raw = f"self.{name}", f'raw["{name}"]'
    ids: set[str] = set()
    enums: set[str] = set()
    parts: set[str] = set()
    kind, default = _kind(schema), field["default"]
    encode, decode, text_default = me, raw, repr(default)
    match kind:
        case "enum":
            hint = schema["name"]
            enums.add(hint)
            check = f"type({me}) is not {hint}"
            decode = f"{_table(hint)}[{raw}]"
            text_default = f"{hint}.{str(default).upper()}"
        case "array":
            items = schema["items"]
            items = named.get(items, items) if isinstance(items, str) else items
            text_default = "()"
            if isinstance(items, dict):
                part = items["name"]
                parts.add(part)
                hint = f"tuple[{part}, ...]"
                check = f"type({me}) is not tuple or any(type(item) is not {part} for item in {me})"
                encode = f"[part.to_avro() for part in {me}]"
                decode = f"tuple([{part}.from_avro(part) for part in {raw}])"
            else:
                hint = f"tuple[{_SCALARS[items]}, ...]"
                check = f"type({me}) is not tuple or any({_scalar_check(items, 'item')} for item in {me})"
                encode = f"list({me})"
                decode = f"tuple({raw})"
        case "map":
            hint, check = _map_code(schema["values"], me)
            encode = f"dict({me})"
            text_default = "field(default_factory=dict)"
        case "nullable":
            inner = schema[1]
            hint = f"{_SCALARS[inner]} | None"
            check = f"{me} is not None and ({_scalar_check(inner, me)})"
        case _:
            hint = field.get("sluice.id") or _SCALARS[kind]
            if "sluice.id" in field:
                ids.add(hint)
                decode = f"{hint}({raw})"
                text_default = f"{hint}({default!r})" if default else f'{hint}("")'
            elif kind == "string":
                text_default = json.dumps(default)
            elif kind == "bytes":
                text_default = 'b""'
            check = _scalar_check(kind, me)
    unit = field["sluice.unit"]
    doc = field["doc"] if unit == "none" else f"{field['doc']} Unit: {unit}."
    return FieldCode(
        name=name,
        hint=hint,
        default=None if field.get("sluice.required") else text_default,
        doc=doc,
        check=check,
        encode=encode,
        decode=decode,
        ids=frozenset(ids),
        enums=frozenset(enums),
        parts=frozenset(parts),
    )


def _map_code(values: str, me: str) -> tuple[str, str]:
    bad = _scalar_check(values, "value")
    check = (
        f"not isinstance({me}, Mapping) or "
        f"any(type(key) is not str or {bad} for key, value in {me}.items())"
    )
    return f"Mapping[str, {_SCALARS[values]}]", check


def _table(enum: str) -> str:
    return f"_{enum.upper()}"


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema.get("type") in ("enum", "record"):
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
        for inner in ("items", "type"):
            if isinstance(schema.get(inner), dict | list):
                _collect(schema[inner], named)


def _class_code(schema: dict[str, Any], fields: list[FieldCode]) -> str:
    name = schema["name"]
    lines = [
        "@dataclass(frozen=True, slots=True, kw_only=True)",
        f"class {name}:",
        f'    """{schema["doc"]}"""',
        "",
    ]
    for code in fields:
        lines.append(
            f"    {code.name}: {code.hint}" + ("" if code.default is None else f" = {code.default}")
        )
        lines.append(f'    """{code.doc}"""')
    lines += [
        "",
        "    def to_avro(self) -> dict[str, Any]:",
        '        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""',
    ]
    for code in fields:
        lines += [
            f"        if {code.check}:",
            f'            raise FieldTypeError("{name}", "{code.name}", self.{code.name})',
        ]
    lines.append("        return {")
    lines += [f'            "{code.name}": {code.encode},' for code in fields]
    lines += [
        "        }",
        "",
        "    @classmethod",
        "    def from_avro(cls, raw: dict[str, Any]) -> Self:",
    ]
    lines += [
        '        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""',
        "        return cls(",
    ]
    lines += [f"            {code.name}={code.decode}," for code in fields]
    lines += ["        )", ""]
    return "\n".join(
        [*lines, "", *constructor(name, [(c.name, c.hint, c.default) for c in fields])]
    )


def _module(
    doc: str, source: str, classes: list[str], codes: list[FieldCode], *, local: frozenset[str]
) -> str:
    ids = sorted({i for code in codes for i in code.ids})
    enums = sorted({e for code in codes for e in code.enums})
    parts = sorted({p for code in codes for p in code.parts} - local)
    has_map = any(code.hint.startswith("Mapping") for code in codes)
    needs_field = any(code.default and "field(" in code.default for code in codes)
    out = [_HEADER.format(doc=doc, source=source), "from __future__ import annotations", ""]
    if has_map:
        out.append("from collections.abc import Mapping")
    out.append("from dataclasses import dataclass" + (", field" if needs_field else ""))
    out += ["from typing import Any, Self", ""]
    if enums:
        out.append(f"from schemas.enums import {', '.join(enums)}")
    out.append("from schemas.errors import FieldTypeError")
    if ids:
        out.append(f"from schemas.ids import {', '.join(ids)}")
    if parts:
        out.append(f"from schemas.records.parts import {', '.join(parts)}")
    out.append("")
    # An older reader sees a newer symbol as `unknown`, which no table holds: the record is poison
    # here, not a guess.
    out += [
        f'{_table(e)} = {{member.value: member for member in {e} if member != "unknown"}}'
        for e in enums
    ]
    out += preamble(has_map=needs_field)
    return "\n".join(out) + "\n\n" + "\n\n".join(classes)


def generate() -> dict[str, str]:
    """Return file name to Python source for every generated module."""
    parts: dict[str, dict[str, Any]] = {}
    files: dict[str, str] = {}
    for path in sorted(AVRO.glob("*.avsc")):
        schema = json.loads(path.read_text())
        named: dict[str, Any] = {}
        _collect(schema, named)
        for name, inner in named.items():
            is_part = inner["type"] == "record" and name != schema["name"]
            if is_part and parts.setdefault(name, inner) != inner:
                raise SystemExit(f"{path.name}: part {name} differs from its copy elsewhere")
        codes = [field_code(field, named) for field in schema["fields"]]
        files[f"{path.stem}.py"] = _module(
            schema["doc"], path.name, [_class_code(schema, codes)], codes, local=frozenset()
        )
    part_codes = {
        name: [field_code(f, {}) for f in schema["fields"]]
        for name, schema in sorted(parts.items())
    }
    classes = [_class_code(parts[name], codes) for name, codes in part_codes.items()]
    flat = [code for codes in part_codes.values() for code in codes]
    files["parts.py"] = _module(
        "Records that stand inside others.", "*.avsc", classes, flat, local=frozenset(parts)
    )
    files["__init__.py"] = (
        '"""Record types generated from `schemas/avro/*.avsc`, one module per record."""\n'
    )
    return files | {f"wire/{name}": text for name, text in _wire(parts).items()}


def _wire(parts: dict[str, dict[str, Any]]) -> dict[str, str]:
    files: dict[str, str] = {
        "__init__.py": '"""Generated Avro encoders and decoders, the fast path of `schemas/codec.py`."""\n'
    }
    stems: list[str] = []
    for path in sorted(AVRO.glob("*.avsc")):
        schema = json.loads(path.read_text())
        named: dict[str, Any] = {}
        _collect(schema, named)
        fields = [wire_field(field, named) for field in schema["fields"]]
        files[f"{path.stem}.py"] = modules.module(
            path.name, [(schema["name"], fields)], where=path.stem, parts=False
        )
        stems.append(path.stem)
    files["parts.py"] = modules.module(
        "*.avsc",
        [
            (
                name,
                [wire_field(field, _named_in(schema)) for field in schema["fields"]],
            )
            for name, schema in sorted(parts.items())
        ],
        where="parts",
        parts=True,
    )
    files["by_schema.py"] = modules.index(stems)
    return files


def _named_in(schema: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    _collect(schema, named)
    return named


def main() -> None:
    """Write the generated modules."""
    (RECORDS / "wire").mkdir(parents=True, exist_ok=True)
    for name, text in generate().items():
        (RECORDS / name).write_text(text)
    sys.stderr.write(f"wrote {len(generate())} files under {RECORDS.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
