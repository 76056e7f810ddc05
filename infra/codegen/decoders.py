"""Source of the straight-line Avro decoders.

A decoder fills the record's draft and turns it into the record at the end, as its constructor does. Three guesses make it quick, each checked against the bytes
before it is believed: the head of a writer's records repeats, a run of fields holds its defaults,
and commits of one count and length look alike.
"""

from __future__ import annotations

from infra.codegen.fields import (
    CLOCKS,
    HEADS,
    LAYOUTS,
    WireField,
    default_bytes,
    default_code,
    indent,
    runs_of,
)


def _read_long(target: str) -> list[str]:
    return [
        "n = data[at]",
        "if n < 128:",
        f"    {target} = SMALL[n]",
        "    at += 1",
        "else:",
        "    m = data[at + 1]",
        "    if m < 128:",
        "        n = n & 127 | m << 7",
        f"        {target} = n >> 1 if not n & 1 else ~(n >> 1)",
        "        at += 2",
        "    elif data[at + 2] < 128:",
        "        n = n & 127 | (m & 127) << 7 | data[at + 2] << 14",
        f"        {target} = n >> 1 if not n & 1 else ~(n >> 1)",
        "        at += 3",
        "    else:",
        f"        {target}, at = read_long(data, at)",
    ]


def _read_size() -> list[str]:
    return [
        "n = data[at]",
        "if n < 128 and not n & 1:",
        "    at += 1",
        "    end = at + (n >> 1)",
        "elif data[at + 1] < 128 and not n & 1:",
        "    end = at + 2 + ((n & 127) >> 1 | data[at + 1] << 6)",
        "    at += 2",
        "else:",
        "    n, at = read_length(data, at)",
        "    end = at + n",
    ]


def _decode_scalar(kind: str, target: str, *, word: bool = False) -> list[str]:
    match kind:
        case "long":
            return _read_long(target)
        case "double":
            return [f"({target},) = DOUBLE.unpack_from(data, at)", "at += 8"]
        case "boolean":
            return [f"{target} = _BOOLEAN[data[at]]", "at += 1"]
        case "bytes":
            return [*_read_size(), f"{target} = data[at:end]", "at = end"]
        case _ if word:
            return [
                *_read_size(),
                "body = data[at:end]",
                f"{target} = WORDS.get(body) or read_word(body)",
                "at = end",
            ]
        case _:
            return [*_read_size(), f"{target} = data[at:end].decode()", "at = end"]


def _decode_head(fields: list[WireField]) -> list[str]:
    """Return the code that finds the head by hopping over its lengths and looks it up whole.

    A hop over a longer length lands anywhere; the bytes up to there are then simply not known.
    """
    steps = ["end += 1" if f.kind == "long" else "end += 1 + (data[end] >> 1)" for f in fields]
    hops = ["end = at", "try:", *indent(steps, 4), "except IndexError:", "    end = at"]
    drafts = ", ".join(f"draft.{field.name}" for field in fields)
    return [
        "head = _HEADS_READ.get(data[at : at + _GUESS[0]])",
        "if head is None:",
        *indent(hops, 4),
        "    head = _HEADS_READ.get(data[at:end])",
        "    _GUESS[0] = end - at",
        "if head is not None:",
        f"    {drafts} = head",
        "    at += _GUESS[0]",
        "else:",
        "    begin = at",
        *indent([line for field in fields for line in _decode_field(field)], 4),
        "    _GUESS[0] = at - begin",
        "    if len(_HEADS_READ) >= _HEADS_MAX:",
        "        _HEADS_READ.clear()",
        f"    _HEADS_READ[data[begin:at]] = ({drafts})",
    ]


def _read_clock(name: str, target: str) -> list[str]:
    last, unpack, top = (
        (7, "unpack_time", "HIGHS[top]") if name in CLOCKS else (4, "unpack_crc", "FIFTH[top]")
    )
    return [
        f"if data[at] > 127 and data[at + {last - 1}] > 127 > data[at + {last}]:",
        f"    low, middle, top = {unpack}(data, at)",
        f"    {target} = HALVES[low] + NEXT[middle] + {top}",
        f"    at += {last + 1}",
        "else:",
        f"    {target}, at = read_long(data, at)",
    ]


def _decode_tail() -> list[str]:
    """Return the code for crc32c and at_us at the end of a record, mostly 5 and 8 bytes."""
    return [
        "if len(data) - at == 13 and data[at + 4] < 128:",
        "    low, middle, top, first, second, four = unpack_tail(data, at)",
        "    draft.crc32c = HALVES[low] + NEXT[middle] + FIFTH[top]",
        "    draft.at_us = HALVES[first] + NEXT[second] + HIGHS[four]",
        "    at += 13",
        "else:",
        *indent([*_read_clock("crc32c", "draft.crc32c"), *_read_clock("at_us", "draft.at_us")], 4),
    ]


def _decode_field(field: WireField) -> list[str]:
    target = f"draft.{field.name}"
    match field.kind:
        case "long" if field.name in CLOCKS or field.name == "crc32c":
            return _read_clock(field.name, target)
        case "enum":
            return [f"{target} = _{field.inner['name'].upper()}[data[at]]", "at += 1"]
        case "array":
            if isinstance(field.inner, dict):
                item = [f"item, at = decode_{field.inner['name']}(data, at)"]
            else:
                item = _decode_scalar(field.inner, "item")
            return [
                "if not data[at]:",
                f"    {target} = ()",
                "    at += 1",
                "else:",
                "    n, at = read_length(data, at)",
                "    items = []",
                "    for _ in range(n):",
                *indent(item, 8),
                "        items.append(item)",
                "    # More than one block is legal Avro, but not what we write.",
                "    if data[at]:",
                '        raise ValueError("more than one block")',
                "    at += 1",
                f"    {target} = tuple(items)",
            ]
        case "map":
            return [
                "entries: dict[str, Any] = {}",
                "if not data[at]:",
                "    at += 1",
                "else:",
                "    count, at = read_length(data, at)",
                "    for _ in range(count):",
                *indent(_decode_scalar("string", "key", word=True), 8),
                *indent(_decode_scalar(field.inner, "value"), 8),
                "        entries[key] = value",
                "    if data[at]:",
                '        raise ValueError("more than one block")',
                "    at += 1",
                f"{target} = entries",
            ]
        case "nullable":
            return [
                "if not data[at]:",
                f"    {target} = None",
                "    at += 1",
                "elif data[at] == 2:",
                "    at += 1",
                *indent(_decode_scalar(field.inner, target), 4),
                "else:",
                '    raise ValueError("no such branch")',
            ]
        case kind:
            return _decode_scalar(kind, target, word=field.is_word)


def _rest(
    fields: list[WireField], runs: dict[int, int], at: int
) -> list[WireField | list[WireField]]:
    """Return the fields from `at` on, runs as lists, without crc32c and at_us at the end."""
    rest: list[WireField | list[WireField]] = []
    while at < len(fields) - 2:
        end = runs.get(at, at + 1)
        rest.append(fields[at:end] if end > at + 1 else fields[at])
        at = end
    return rest


def _use_layout(record: str, fields: list[WireField], runs: dict[int, int], at: int) -> list[str]:
    """Return the code that cuts a record that looks like one before at once, from the head on."""
    until, cut = LAYOUTS[record]
    end = next(i for i, field in enumerate(fields) if field.name == until)
    short = [f.name for f, size in zip(fields[at:end], cut, strict=True) if size == "B"]
    long = [f.name for f, size in zip(fields[at:end], cut, strict=True) if size == "H"]
    names = [field.name for field in fields[at:end]]
    checks: list[str] = []
    assign: list[str] = []
    for field, size in zip(fields[at:end], cut, strict=True):
        if field.kind == "enum":
            table = f"_{field.inner['name'].upper()}"
        else:
            table = "SMALL" if size == "B" else "TWO"
        assign.append(f"draft.{field.name} = {table}[{field.name}]")
    for item in _rest(fields, runs, end):
        if isinstance(item, list):
            names.append(f"run_{item[0].name}")
            checks.append(names[-1])
            assign += [f"draft.{field.name} = {default_code(field)}" for field in item]
        else:
            names += [f"size_{item.name}", f"draft.{item.name}"]
            checks.append(names[-2])
    return [
        "left = len(data) - at",
        "layout = _LAYOUTS.get(left)",
        "if layout is not None:",
        "    unpack, expected = layout",
        f"    {', '.join(names)}, low, middle, top, first, second, four = unpack(data, at)",
        f"    if ({', '.join(checks)}) == expected and {' | '.join([*short, 'top'])} < 128 and "
        f"{' == '.join(f'{name} & 0x8080' for name in long)} == 0x80:",
        *indent(assign, 8),
        "        draft.crc32c = HALVES[low] + NEXT[middle] + FIFTH[top]",
        "        draft.at_us = HALVES[first] + NEXT[second] + HIGHS[four]",
        f"        draft.__class__ = {record}",
        "        return draft",
    ]


def _learn_layout(record: str, fields: list[WireField], runs: dict[int, int]) -> list[str]:
    until, cut = LAYOUTS[record]
    end = next(i for i, field in enumerate(fields) if field.name == until)
    pieces = [
        repr(b"".join(default_bytes(field) for field in item))
        if isinstance(item, list)
        else f"draft.{item.name}"
        for item in _rest(fields, runs, end)
    ]
    flags = [str(isinstance(item, list)) for item in _rest(fields, runs, end)]
    return [
        "if len(_LAYOUTS) < _LAYOUTS_MAX and left not in _LAYOUTS:",
        f"    layout = layout_of({cut!r}, left, ({', '.join(pieces)}), ({', '.join(flags)}))",
        "    if layout is not None:",
        "        _LAYOUTS[left] = layout",
    ]


def decoder(record: str, fields: list[WireField], *, part: bool) -> str:
    """Return the source of a record's decoder."""
    runs = runs_of(fields)
    name = f"decode_{record}" if part else "decode"
    out = [
        *(
            [
                f"def {name}(data: bytes, at: int) -> tuple[{record}, int]:",
                '    """Return the part that starts at `at` and the place after it."""',
            ]
            if part
            else [
                f"def {name}(data: bytes, at: int) -> {record}:",
                '    """Return the record from `at` to the end; raise when it needs the slow path."""',
            ]
        ),
        f"    draft: Any = {record}Draft()",
    ]
    at = HEADS.get(record, 0)
    if at:
        out += indent(_decode_head(fields[:at]), 4)
    if record in LAYOUTS:
        out += indent(_use_layout(record, fields, runs, at), 4)
    while at < len(fields):
        if [field.name for field in fields[at:]] == ["crc32c", "at_us"]:
            out += indent(_decode_tail(), 4)
            break
        end = runs.get(at)
        if end is None:
            out += indent(_decode_field(fields[at]), 4)
            at += 1
            continue
        run = fields[at:end]
        constant = b"".join(default_bytes(field) for field in run)
        out += [f"    if data[at : at + {len(constant)}] == {constant!r}:"]
        out += [f"        draft.{field.name} = {default_code(field)}" for field in run]
        out += [f"        at += {len(constant)}", "    else:"]
        for field in run:
            out += indent(_decode_field(field), 8)
        at = end
    if record in LAYOUTS:
        out += indent(_learn_layout(record, fields, runs), 4)
    if part:
        return "\n".join([*out, f"    draft.__class__ = {record}", "    return draft, at"]) + "\n"
    out += [
        "    if at != len(data):",
        '        raise ValueError("not the end")',
        f"    draft.__class__ = {record}",
        "    return draft",
    ]
    return "\n".join(out) + "\n"
