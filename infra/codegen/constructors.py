"""Source of the quick constructors of records.

The constructor of a frozen dataclass sets each field through `object.__setattr__`, which for a
record of 27 fields costs more than encoding it. This one opens the record first: for its own length
the object has the class of its draft, whose layout is the same and which has no lock.
"""

from __future__ import annotations

_NEW_MAP = "_NEW_MAP"


def constructor(record: str, fields: list[tuple[str, str, str | None]]) -> list[str]:
    """Return the lines of a record's draft and constructor; fields: name, hint and default."""
    out = [
        f"class {record}Draft:",
        f'    """The layout of {record} without its lock: it is filled, then becomes the record."""',
        "",
        f"    __slots__ = {record}.__slots__",
        "",
        "",
        f"def _init_{record}(",
        "    self: Any,",
        "    *,",
    ]
    for name, hint, default in fields:
        if default is None:
            out.append(f"    {name}: {hint},")
        elif default.startswith("field("):
            out.append(f"    {name}: {hint} = {_NEW_MAP},")
        else:
            out.append(f"    {name}: {hint} = {default},  # noqa: B008  immutable")
    out += [
        ") -> None:",
        f'    _open(self, "__class__", {record}Draft)',
    ]
    for name, _, default in fields:
        is_map = default is not None and default.startswith("field(")
        value = f"{{}} if {name} is {_NEW_MAP} else {name}" if is_map else name
        out.append(f"    self.{name} = {value}")
    return [
        *out,
        f"    self.__class__ = {record}",
        "",
        "",
        "# What it does is what the generated one does; `replace` and `copy` go through it too.",
        f"{record}.__init__ = _init_{record}  # type: ignore[method-assign]",
        "",
    ]


def preamble(*, has_map: bool) -> list[str]:
    """Return the names that constructors of a module use."""
    names = ["_open = object.__setattr__"]
    if has_map:
        names.append(f"{_NEW_MAP}: Mapping[str, Any] = {{}}")
    return names
