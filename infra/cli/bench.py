"""`sluice bench`: every measurement is a ratio of two arms paired in one run, or a rate with its
conditions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from infra.cli.output import json_option, show_json, show_table

ALL = "all"
ROOT = Path(__file__).resolve().parents[2]
_LONGEST_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Bench:
    """One measurement."""

    module: str
    """Has `run() -> list[dict]`, each {name, value, unit, goal, conditions}."""
    what: str
    minutes: float
    """About how long it takes on two cores. Unit: min."""


BENCHES = {
    "codec": Bench("benchmarks.codec", "commits encoded and decoded a second", 0.3),
    "assembler": Bench("benchmarks.assembler", "tokens that one assembler takes a second", 0.3),
    "wal": Bench("benchmarks.wal", "commits through the write door beside raw produce", 2),
    "trajectories": Bench(
        "benchmarks.trajectories", "trajectories put, decided and fetched beside raw Kafka", 1
    ),
    "gateway": Bench("benchmarks.gateway", "what the gateway adds to a turn", 1),
    "decode": Bench("benchmarks.decode_ratio", "vLLM with the token log beside vLLM alone", 4),
    "metrics": Bench("benchmarks.metrics_cost", "vLLM with metrics on beside metrics off", 9),
    "episodes": Bench("benchmarks.episodes", "a thousand episodes at once for two minutes", 6),
    "audit": Bench("benchmarks.audit", "the audit of a run of a million commits", 3),
    "lengths": Bench("benchmarks.lengths", "lengths of turns that were cut off and went on", 1),
    "sink": Bench("benchmarks.sink", "commits from topic to table", 2),
    "bottlenecks": Bench("benchmarks.bottlenecks", "the rate predicted of a slow stage", 6),
    "queries": Bench("benchmarks.queries", "what the dashboards ask of a run of 10 M rows", 2),
}
_AT_MOST = frozenset(
    {
        "audit_gib",
        "audit_s",
        "bottleneck_rate_error",
        "commit_p99_ratio",
        "control_plane_gib",
        "episodes_lost",
        "gateway_overhead_p50_ms",
        "query_max_cpu_ms",
        "query_max_ms",
        "query_p50_cpu_ms",
        "query_p50_ms",
        "query_p95_cpu_ms",
        "query_p95_ms",
        "waits_sum_error",
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


def told_minutes(names: Iterable[str]) -> str:
    """Return about how long these measurements take."""
    minutes = sum(BENCHES[name].minutes for name in names)
    return "under a minute" if minutes < 1 else f"about {minutes:.0f} min"


def alone(module: str) -> list[dict[str, Any]]:
    """Return the rows of a measurement, made in a process of its own; whatever that prints goes to
    standard error. Raises SubprocessError when it fails or takes more than an hour.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        told = Path(folder) / "rows.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.alone", module, str(told)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=2, timeout=_LONGEST_S, check=True,
        )  # fmt: skip
        rows: list[dict[str, Any]] = orjson.loads(told.read_bytes())
    return rows


def _list(*, as_json: bool) -> None:
    if as_json:
        show_json(
            [{"name": n, "what": one.what, "minutes": one.minutes} for n, one in BENCHES.items()]
        )
        return
    rows = [(name, one.what, told_minutes([name])) for name, one in BENCHES.items()]
    show_table(("name", "what", "takes"), [*rows, (ALL, "all of them", told_minutes(BENCHES))])


@click.command()
@click.argument("name", required=False)
@json_option
def bench(name: str | None, as_json: bool) -> None:
    """Run one measurement, or `all`; without NAME list them with how long each takes.

    Prints a table, or with --json a list of {name, value, unit, goal, conditions}.
    """
    if name is None:
        _list(as_json=as_json)
        return
    if name != ALL and name not in BENCHES:
        raise click.UsageError(f"no measurement {name!r}; known: {ALL}, {', '.join(BENCHES)}")
    chosen = list(BENCHES) if name == ALL else [name]
    click.echo(f"measuring {', '.join(chosen)}: {told_minutes(chosen)}", err=True)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for one in chosen:
        click.echo(f"measuring {one}, {told_minutes([one])} ...", err=True)
        try:
            rows += alone(BENCHES[one].module)
        except subprocess.SubprocessError as error:
            # One measurement that cannot run must not hide the others.
            failed.append(one)
            click.echo(f"{one} did not finish, see above: {error}", err=True)
    if as_json:
        show_json(rows)
    else:
        show_table(
            ("name", "value", "unit", "goal", "reached", "conditions"), list(map(shown, rows))
        )
    sys.exit(1 if failed else 0)
