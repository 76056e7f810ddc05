"""`sluice bench`: every measurement is a ratio of two arms paired in one run, or a rate with its
conditions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from infra.cli.output import json_option, show_json, show_table

# name -> module with `run() -> list[dict]`, each {name, value, unit, goal, conditions}.
BENCHES: dict[str, str] = {
    "codec": "benchmarks.codec",
    "assembler": "benchmarks.assembler",
    "wal": "benchmarks.wal",
    "trajectories": "benchmarks.trajectories",
    "gateway": "benchmarks.gateway",
    "decode": "benchmarks.decode_ratio",
    "episodes": "benchmarks.episodes",
    "audit": "benchmarks.audit",
    "sink": "benchmarks.sink",
}
_AT_MOST = frozenset(
    {
        "audit_gib",
        "audit_s",
        "commit_p99_ratio",
        "control_plane_gib",
        "episodes_lost",
        "gateway_overhead_p50_ms",
    }
)
"""Figures whose goal is an upper bound; of all others it is a lower one."""


def shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row as people read it, with whether its goal is reached."""
    value, goal = float(row["value"]), float(row["goal"])
    at_most = row["name"] in _AT_MOST
    reached = value <= goal if at_most else value >= goal
    sign = "\u2264" if at_most else "\u2265"
    return (
        row["name"],
        _number(value),
        row["unit"],
        f"{sign} {_number(goal)}",
        "yes" if reached else "no",
        row["conditions"],
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


@click.command()
@click.argument("name", default="all")
@json_option
def bench(name: str, as_json: bool) -> None:
    """Run one measurement, or all; prints a table, or with --json a list of {name, value, unit,
    goal, conditions}.
    """
    if name != "all" and name not in BENCHES:
        raise click.UsageError(f"no measurement {name!r}; known: all, {', '.join(BENCHES)}")
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for one in BENCHES if name == "all" else (name,):
        click.echo(f"measuring {one} ...", err=True)
        try:
            rows += importlib.import_module(BENCHES[one]).run()
        except Exception as error:  # noqa: BLE001  one measurement that cannot run must not hide the others
            failed.append(one)
            click.echo(f"{one} did not finish: {error}", err=True)
    if as_json:
        show_json(rows)
    else:
        show_table(
            ("name", "value", "unit", "goal", "reached", "conditions"), list(map(shown, rows))
        )
    sys.exit(1 if failed else 0)
