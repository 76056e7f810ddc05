"""Compatibility of record schemas, and the release of a new version of one.

A schema that differs from its newest version under `schemas/avro/history/` is released by `python
-m infra.schema_release`, which refuses a change that breaks FULL_TRANSITIVE: every version must
read every other, in both directions (design section 4).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

AVRO = Path(__file__).resolve().parent.parent / "schemas" / "avro"
HISTORY = AVRO / "history"


def released(stem: str) -> dict[int, dict[str, Any]]:
    """Return every released version of a record's schema by its number."""
    found = {}
    for path in HISTORY.glob(f"{stem}.v*.avsc"):
        number = int(path.name.removeprefix(f"{stem}.v").removesuffix(".avsc"))
        found[number] = json.loads(path.read_text())
    return dict(sorted(found.items()))


def stems() -> list[str]:
    """Return the file stem of every record's schema."""
    return sorted(path.stem for path in AVRO.glob("*.avsc"))


def present(stem: str) -> dict[str, Any]:
    """Return the schema as it is now."""
    schema: dict[str, Any] = json.loads((AVRO / f"{stem}.avsc").read_text())
    return schema


def faults(old: Any, new: Any, *, at: str = "") -> list[str]:
    """Say what keeps two schemas from reading each other's records; empty when nothing does.

    Records may gain or lose fields that have defaults, and enums with a default may gain symbols;
    nothing else changes.
    """
    if isinstance(old, str) and isinstance(new, str):
        return [] if old == new else [f"{at}: {old} became {new}"]
    if isinstance(old, list) and isinstance(new, list):
        return [] if old == new else [f"{at}: union {old} became {new}"]
    if not (isinstance(old, dict) and isinstance(new, dict)) or old["type"] != new["type"]:
        return [f"{at}: the kind of type changed"]
    match old["type"]:
        case "record":
            return _record_faults(old, new, at=at or old["name"])
        case "enum":
            return _enum_faults(old, new, at=at)
        case "array":
            return faults(old["items"], new["items"], at=f"{at}[]")
        case "map":
            return faults(old["values"], new["values"], at=f"{at}{{}}")
        case kind:
            return [] if kind == new["type"] else [f"{at}: {kind} became {new['type']}"]


def _record_faults(old: dict[str, Any], new: dict[str, Any], *, at: str) -> list[str]:
    found = [] if old["name"] == new["name"] else [f"{at}: renamed to {new['name']}"]
    before = {field["name"]: field for field in old["fields"]}
    after = {field["name"]: field for field in new["fields"]}
    for name in sorted(before.keys() | after.keys()):
        if name in before and name in after:
            found += faults(before[name]["type"], after[name]["type"], at=f"{at}.{name}")
        elif "default" not in (before.get(name) or after[name]):
            found.append(f"{at}.{name}: on one side only, and without a default")
    return found


def _enum_faults(old: dict[str, Any], new: dict[str, Any], *, at: str) -> list[str]:
    found = []
    if old["name"] != new["name"]:
        found.append(f"{at}: enum {old['name']} became {new['name']}")
    shared = min(len(old["symbols"]), len(new["symbols"]))
    # Our fast path reads a symbol by its place, so symbols are only ever appended.
    if old["symbols"][:shared] != new["symbols"][:shared]:
        found.append(f"{at}: symbols moved, were renamed or were taken out")
    if old.get("default") != new.get("default") or "default" not in old:
        found.append(f"{at}: an enum needs one and the same default")
    return found


def main() -> int:
    """Release every schema that changed; return 1 and write nothing when one breaks
    compatibility.
    """
    broken = [
        f"{stem} v{number}: {fault}"
        for stem in stems()
        for number, old in released(stem).items()
        for fault in faults(old, present(stem))
    ]
    if broken:
        sys.stderr.write("\n".join(["not compatible with what was released:", *broken]) + "\n")
        return 1
    HISTORY.mkdir(exist_ok=True)
    for stem in stems():
        versions = released(stem)
        if not versions or present(stem) != versions[max(versions)]:
            target = HISTORY / f"{stem}.v{max(versions, default=0) + 1}.avsc"
            target.write_bytes((AVRO / f"{stem}.avsc").read_bytes())
            sys.stderr.write(f"released {target.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
