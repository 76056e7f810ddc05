"""The tree as the architecture tests see it: our packages, their modules, their syntax."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "schemas",
    "producers",
    "consumers",
    "environments",
    "inference",
    "verifier",
    "stream_jobs",
    "learner",
    "infra",
)
GENERATED = ROOT / "schemas" / "records"


def modules(*folders: str) -> Iterator[Path]:
    """Every Python file of ours below the named top-level folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(), filename=str(path))


def shown(path: Path) -> str:
    """A path as a person would name it."""
    return str(path.relative_to(ROOT))
