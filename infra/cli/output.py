"""How commands print: data on stdout, as a table for people or as JSON for programs."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.figures import readable
from infra.run.naming import HOW
from schemas.topics import PARTITIONS_DEFAULT

F = TypeVar("F", bound=Callable[..., Any])
_PIPED_WIDTH = 200

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
runs_option = click.option(
    "--runs",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run folders lie; `last` is the newest there.",
)
overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    callback=lambda _, __, given: _pairs(given),
    help="Override one setting; may be repeated.",
)
partitions_option = click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=PARTITIONS_DEFAULT,
    show_default=True,
    help="Partitions of a topic that does not exist yet.",
)
prefix_option = click.option(
    "--prefix",
    default="sluice",
    show_default=True,
    callback=lambda _, __, given: _prefix(given),
    help="Prefix of the topic names.",
)
bus_options = [
    click.option(
        "--bootstrap",
        default="",
        help="host:port of brokers; default: SLUICE_BOOTSTRAP, else the local platform.",
    ),
    click.option(
        "--registry",
        default="",
        help="URL of the schema registry; default: SLUICE_REGISTRY, else the local platform.",
    ),
    prefix_option,
]


def run_argument(*, default: str = "") -> Callable[[F], F]:
    """Let a command take RUN as `name`, and say in its help what names a run.

    Without a default RUN must be given.
    """

    def decorate(command: F) -> F:
        command.__doc__ = f"{command.__doc__}\n\n    RUN is named by {HOW}."
        if not default:
            return click.argument("name", metavar="RUN")(command)
        command.__doc__ += f" Without it: `{default}`."
        return click.argument("name", metavar="[RUN]", default=default)(command)

    return decorate


def _prefix(given: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", given):
        raise click.BadParameter(f"{given!r} has other than small letters, digits, and . _ -")
    return given


def _pairs(given: Sequence[str]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            raise click.UsageError(f"--set {one}: expected SECTION.KEY=VALUE, as run.seed=3")
    return dict(one.partition("=")[::2] for one in given)


def with_bus(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the bus is."""
    for option in reversed(bus_options):
        command = option(command)
    return command


def plain(value: Any) -> Any:
    """Return what JSON can hold: dataclasses as objects, bytes as hex, enums as their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def show_json(value: Any, *, lines: bool = False) -> None:
    """Print a value as JSON; `lines` prints it on one line."""
    option = 0 if lines else orjson.OPT_INDENT_2
    click.echo(orjson.dumps(plain(value), option=option).decode())


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None
) -> None:
    """Print rows as a table on stdout."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(cell)) for cell in row))
    # Piped output is read by programs and pagers, which fold lines themselves.
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_cell, value))}]"
    return readable(value) if isinstance(value, float) else str(value)


def show_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values on stdout, one a line, values below one another."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {_cell(v)}" for k, v in value.items()) or "none"
        click.echo(f"{name:<{width}}  {_cell(value)}".rstrip())
