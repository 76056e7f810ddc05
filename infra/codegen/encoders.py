"""Source of the straight-line Avro encoders: types checked in groups, small values from tables, one
join at the end.

A run of fields that mostly hold their defaults is written as one run of constant bytes.
"""

from __future__ import annotations

from infra.codegen.fields import (
    CLOCKS,
    HEADS,
    WireField,
    default_bytes,
    default_code,
    runs_of,
)

_TYPES = {"string": "str", "long": "int", "double": "float", "boolean": "bool", "bytes": "bytes"}


def _is_default(field: WireField) -> str:
    match field.kind:
        case "enum" | "nullable":
            return f"{field.name} is {default_code(field)}"
        case "long":
            return f"{field.name} == -1"
        case _:
            return f"not {field.name}"


def _spell_scalar(kind: str, value: str) -> str:
    match kind:
        case "long":
            return f"(LONGS[{value}] if -64 <= {value} < 8192 else spell({value}))"
        case "double":
            return f"DOUBLE.pack({value})"
        case "boolean":
            return f"FALSE_TRUE[{value}]"
        case "bytes":
            return f"spell(len({value})) + {value}"
        case _:
            return f"spell_text({value})"


def _encode_field(field: WireField) -> tuple[list[str], list[str]]:
    """Return the statements before the join, and the items of the join, of one field."""
    me = field.name
    match field.kind:
        case "long" if me in CLOCKS or me == "crc32c":
            low, high, top = (
                ("0x1000000000000", "0x80000000000000", "TOPS")
                if me in CLOCKS
                else ("0x8000000", "0x200000000", "BYTES")
            )
            return [
                f"if {low} <= {me} < {high}:",
                f"    rest = {me} >> 13",
                f"    {me}_low = LOWS[{me} & 0x1FFF]",
                f"    {me}_next = PAIRS[rest & 0x3FFF]",
                f"    {me}_top = {top}[rest >> 14]",
                "else:",
                f"    {me}_low = spell({me})",
                f'    {me}_next = {me}_top = b""',
            ], [f"{me}_low", f"{me}_next", f"{me}_top"]
        case "long" | "double" | "boolean":
            return [], [_spell_scalar(field.kind, me)]
        case "bytes":
            return [
                f"size = len({me})",
                f"size_{me} = LONGS[size] if size < 8192 else spell(size)",
            ], [
                f"size_{me}",
                me,
            ]
        case "string" if field.is_word:
            return [], [f"(TEXTS.get({me}) or spell_text({me}))"]
        case "string":
            return [
                f"{me}_text = {me}.encode()",
                f"size = len({me}_text)",
                f"size_{me} = LONGS[size] if size < 8192 else spell(size)",
            ], [f"size_{me}", f"{me}_text"]
        case "enum":
            return [], [f"_{field.inner['name'].upper()}_BYTES[{me}]"]
        case "array":
            each = (
                f"encode_{field.inner['name']}(item)"
                if isinstance(field.inner, dict)
                else _spell_scalar(field.inner, "item")
            )
            return [
                f'{me}_block = b"\\x00"',
                f"if {me}:",
                f'    {me}_block = spell(len({me})) + b"".join([{each} for item in {me}]) + b"\\x00"',
            ], [f"{me}_block"]
        case "map":
            each = _spell_scalar(field.inner, "value")
            return [
                f'{me}_block = b"\\x00"',
                f"if {me}:",
                f'    {me}_block = spell(len({me})) + b"".join([spell_text(key) + {each} for key, value in {me}.items()]) + b"\\x00"',
            ], [f"{me}_block"]
        case _:
            spelled = _spell_scalar(field.inner, me)
            return [f'{me}_branch = b"\\x00" if {me} is None else b"\\x02" + {spelled}'], [
                f"{me}_branch"
            ]


def _type_checks(fields: list[WireField]) -> list[str]:
    groups: dict[str, list[str]] = {}
    checks: list[str] = []
    for field in fields:
        match field.kind:
            case "enum":
                checks.append(f"type({field.name}) is {field.inner['name']}")
            case "array":
                groups.setdefault("tuple", []).append(field.name)
                if isinstance(field.inner, str):
                    wanted = _TYPES[field.inner]
                    checks.append(
                        f"(not {field.name} or all([type(item) is {wanted} for item in {field.name}]))"
                    )
                else:
                    wanted = field.inner["name"]
                    checks.append(
                        f"(not {field.name} or all([type(item) is {wanted} for item in {field.name}]))"
                    )
            case "map":
                wanted = _TYPES[field.inner]
                checks.append(
                    f"(not {field.name} or all([type(key) is str and type(value) is {wanted} for key, value in {field.name}.items()]))"
                )
            case "nullable":
                checks.append(
                    f"({field.name} is None or type({field.name}) is {_TYPES[field.inner]})"
                )
            case kind:
                groups.setdefault(_TYPES[kind], []).append(field.name)
    chained = [
        " is ".join([*(f"type({name})" for name in names), wanted])
        for wanted, names in groups.items()
    ]
    return chained + checks


def encoder(record: str, fields: list[WireField], *, part: bool) -> str:
    """Return the source of a record's encoder; a part's answers bytes or raises, a record's may
    answer None.
    """
    runs = runs_of(fields)
    if part:
        out = [
            f"def encode_{record}(record: {record}) -> bytes:",
            '    """Return the Avro bytes of one part; raise TypeError for what it does not take."""',
        ]
    else:
        out = [
            f"def encode(prefix: bytes, record: {record}) -> bytes | None:",
            '    """Return prefix and Avro bytes; None, or an error, when the record needs the slow path."""',
        ]
    out += [f"    {field.name} = record.{field.name}" for field in fields]
    checks = "\n        and ".join(_type_checks(fields))
    refuse = f'raise TypeError("{record}")' if part else "return None"
    out += [f"    if not (\n        {checks}\n    ):", f"        {refuse}"]
    items: list[str] = [] if part else ["prefix"]
    at = HEADS.get(record, 0)
    if at:
        names = ", ".join(field.name for field in fields[:at])
        spelled = ", ".join(item for field in fields[:at] for item in _encode_field(field)[1])
        out += [
            f"    names = ({names})",
            "    head = _HEADS.get(names)",
            "    if head is None:",
            f'        head = b"".join(({spelled}))',
            "        if len(_HEADS) >= _HEADS_MAX:",
            "            _HEADS.clear()",
            "        _HEADS[names] = head",
        ]
        items.append("head")
    while at < len(fields):
        end = runs.get(at)
        if end is None:
            before, more = _encode_field(fields[at])
            out += [f"    {line}" for line in before]
            items += more
            at += 1
            continue
        run = fields[at:end]
        constant = b"".join(default_bytes(field) for field in run)
        out += [
            f"    if {' and '.join(_is_default(field) for field in run)}:",
            f"        run_{at} = {constant!r}",
            "    else:",
        ]
        inner: list[str] = []
        for field in run:
            before, more = _encode_field(field)
            out += [f"        {line}" for line in before]
            inner += more
        out.append(f'        run_{at} = b"".join(({", ".join(inner)},))')
        items.append(f"run_{at}")
        at = end
    out.append(
        '    return b"".join(\n        (\n            '
        + ",\n            ".join(items)
        + ",\n        )\n    )"
    )
    return "\n".join(out) + "\n"
