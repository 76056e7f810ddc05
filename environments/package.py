"""What every task package shares: its folder, its digests and the reading of its payload."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import digests
from environments.ports import Defaults, Json, Rubric
from schemas.errors import SettingsError

_HERE = Path(__file__).resolve().parent
_SHARED = ("package.py", "transcripts.py")
"""What every rubric reads with: how a payload is taken apart, and which reply or number is the
last.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The part of `TaskPackage` that follows from the folder; a package adds the rest."""

    name: str
    path: Path
    """Folder of the package."""
    defaults: Defaults
    rubric: Rubric
    judged_by: Sequence[str] = ("rubric.py",)
    """Files that decide a verdict."""

    def digest(self, config: Json | None = None) -> str:
        """Return the sha256 over the package's files and the configuration of its tasks."""
        return digests.of_folder(self.path, config)

    def verifier_digest(self) -> str:
        """Return the sha256 over what decides a verdict."""
        own = digests.of_files([self.path / name for name in self.judged_by], self.path)
        shared = digests.of_files([_HERE / name for name in _SHARED], _HERE)
        return hashlib.sha256(f"{own}\0{shared}".encode()).hexdigest()

    def warm(self) -> None:
        """Need nothing heavy; a package that does says so."""


def settings_of(name: str, config: Json | None, known: Json) -> dict[str, Any]:
    """Return `known` with the given values over it; raise SettingsError for a key it does not
    know.
    """
    given = dict(config or {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise SettingsError(
            f"task package {name!r} knows no setting {unknown[0]!r}",
            hint=f"known settings: {', '.join(sorted(known)) or 'none'}",
        )
    for key, value in given.items():
        if type(value) is not type(known[key]):
            raise SettingsError(
                f"setting {key!r} of task package {name!r} cannot be {value!r}",
                hint=f"its default is {known[key]!r}",
            )
    return {**known, **given}


def payload_of(text: str, *required: str) -> dict[str, Any]:
    """Read a payload; raise ValueError when it is no JSON object with the required keys."""
    payload = json.loads(text)
    missing = [key for key in required if key not in payload] if isinstance(payload, dict) else []
    if not isinstance(payload, dict) or missing:
        raise ValueError(f"payload lacks {', '.join(missing) or 'an object'}: {text[:200]!r}")
    return payload


def seed_of(*parts: int | str) -> int:
    """Return a 31-bit seed for a stream, far from those of its neighbours."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def chance(*parts: int | str) -> random.Random:
    """Return a random source that depends on the parts alone."""
    return random.Random(seed_of(*parts))
