"""Finds task packages by name: `load("arithmetic")` imports `environments.arithmetic.task` and
returns its PACKAGE.

A folder under `environments/` with a `task.py` is a task package; nothing else has to be
registered. Loading is light: a package imports what is heavy inside `warm`, `payload` or `judge`.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from pathlib import Path

from environments.ports import TaskPackage
from schemas.errors import InvariantError, SettingsError

_HERE = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """Return the names of all task packages, sorted."""
    return tuple(sorted(file.parent.name for file in _HERE.glob("*/task.py")))


@cache
def load(name: str) -> TaskPackage:
    """Return a task package by the name of its folder.

    Raises SettingsError for an unknown name (the hint gives the nearest), InvariantError when the
    folder breaks the contract of `environments.ports.TaskPackage`.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(known)}"
        raise SettingsError(f"no task package named {name!r}", hint=hint)
    package = import_module(f"environments.{name}.task").PACKAGE
    if not isinstance(package, TaskPackage) or package.name != name:
        raise InvariantError(
            f"environments/{name}/task.py holds no PACKAGE of that name that is a TaskPackage",
            hint="see docs/write-a-task.md",
        )
    return package
