"""The tree as the architecture tests see it: our packages, their modules, their syntax."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules ask of one module."""

    has_docstring: bool
    statements: int
    """Statements at the top."""
    functions: tuple[tuple[str, int], ...]
    """Name and lines of every function."""
    texts: tuple[tuple[int, str], ...]
    """Line and value of every text constant."""
    imported: frozenset[str]
    """Top-level packages that it imports, wherever."""


@cache
def facts(path: Path) -> Facts:
    """Parse a module once and say what the rules ask of it."""
    tree = ast.parse(path.read_text(), filename=str(path))
    functions: list[tuple[str, int]] = []
    texts: list[tuple[int, str]] = []
    imported: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
            case ast.Constant(value=str(text)):
                texts.append((node.lineno, text))
            case ast.ImportFrom(module=str(name)):
                imported.add(name.partition(".")[0])
            case ast.Import():
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            case _:
                pass
    return Facts(
        has_docstring=ast.get_docstring(tree) is not None,
        statements=len(tree.body),
        functions=tuple(functions),
        texts=tuple(texts),
        imported=frozenset(imported),
    )


def shown(path: Path) -> str:
    """A path as a person would name it."""
    return str(path.relative_to(ROOT))
