"""The manifest of a model folder: every file with its size and sha256, and one digest over all.

A policy version is named by this digest (design section 11). The text is canonical: the same files
give the same bytes, so the digest says nothing but what the folder holds. Pure: whoever hashes the
files does so in its own shell.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import Boundary, TransientError

MANIFEST_NAME = "manifest.json"
"""Its file in the folder of a version; it does not list itself."""

_FORMAT = "sluice-manifest-1"
_HEX = frozenset(string.hexdigits.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What identifies the content of one file."""

    bytes: int
    """Size. Unit: bytes."""
    sha256: str
    """64 lower-case hex digits."""


def render_manifest(files: Mapping[str, FileFacts]) -> str:
    """Return the canonical text: JSON, keys sorted, no spaces, one newline at the end.

    files: name relative to the folder, parts joined by `/`. Raises ValueError for a name that could
    leave the folder, for a digest that is none, and for no files at all.
    """
    if not files:
        raise ValueError("a manifest lists at least one file")
    for name, facts in files.items():
        _check(name, facts)
    listed = {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in files.items()}
    whole = {"format": _FORMAT, "files": listed}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n"


def parse_manifest(text: str) -> dict[str, FileFacts]:
    """Return the files of a manifest text; raise TransientError (store) when it is no manifest."""
    try:
        whole = json.loads(text)
        files = {
            str(name): FileFacts(bytes=int(facts["bytes"]), sha256=str(facts["sha256"]))
            for name, facts in whole["files"].items()
        }
        if whole["format"] != _FORMAT or render_manifest(files) != text:
            raise ValueError("not the canonical text of this format")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TransientError(
            f"the manifest cannot be read: {error}",
            boundary=Boundary.STORE,
            hint="the version was not written whole; take another version",
        ) from error
    return files


def manifest_digest(text: str) -> str:
    """Return the digest of the version: sha256 over the canonical text, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_total(files: Mapping[str, FileFacts]) -> int:
    """Return the size of all files. Unit: bytes."""
    return sum(facts.bytes for facts in files.values())


def differences(
    expected: Mapping[str, FileFacts], found: Mapping[str, FileFacts | None]
) -> list[str]:
    """Say for each expected file how the found one differs; empty when all agree.

    found: None, or no entry, where there is no such file. Files beyond the expected ones are not
    looked at.
    """
    wrong: list[str] = []
    for name, facts in sorted(expected.items()):
        there = found.get(name)
        if there is None:
            wrong.append(f"{name} is missing")
        elif there.bytes != facts.bytes:
            wrong.append(f"{name} has {there.bytes} bytes instead of {facts.bytes}")
        elif there.sha256 != facts.sha256:
            wrong.append(
                f"{name} has the sha256 {there.sha256[:12]}... instead of {facts.sha256[:12]}..."
            )
    return wrong


def _check(name: str, facts: FileFacts) -> None:
    parts = name.split("/")
    if "\\" in name or any(part in ("", ".", "..") for part in parts) or name == MANIFEST_NAME:
        raise ValueError(f"not a file name inside a model folder: {name!r}")
    if facts.bytes < 0 or len(facts.sha256) != 64 or not set(facts.sha256) <= _HEX:
        raise ValueError(f"not the facts of a file: {name!r} {facts}")
