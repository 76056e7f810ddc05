"""How long the dashboards wait: every statement of the live page, of `sluice top` and every canned
query, on tables that hold a long run; beside them what `sluice report` asks once.

The tables are those of the embedded engine, filled with rows inside it (`benchmarks.long_tables`),
their minutes made by the sink's own statements, asked as the sink asks them: one thread, the limits
of `sink.*`. Every statement runs once to be warm and then `times` times. A statement's figure is
the median of its times, p95 is over the dashboards' statements; those of the report are added up.
`python -m benchmarks.queries rows=10000000
[keep=FOLDER] [times=5]` prints every statement; KEEP is left behind, and not filled again.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import median, quantile, row
from benchmarks.long_tables import RUN, fills
from infra.run.findings import LIMIT_S, QUESTIONS

ROOT = Path(__file__).resolve().parents[1]
GOALS_MS = {10_000_000: 300.0, 100_000_000: 2_000.0}
"""Rows of the run to what p95 over statements may be."""
_DEADLINE_S = 3_600.0
_MERGES_S = 300.0
_SLOWEST = 5
_REPORT = "report "
"""How the names of a report's questions begin."""
_CUTS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "p50": lambda values: quantile(values, 0.5),
    "p95": lambda values: quantile(values, 0.95),
    "max": max,
}
_PAGE = ROOT / "infra" / "dashboard" / "static" / "dashboard.js"
_CONSTANT = re.compile(r"^const ([A-Z_]+) = (?:`([^`]*)`|(\d+));$", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:async )?function (\w+)", re.MULTILINE)
_ASKED = re.compile(r"\bask\(\s*(?:`([^`]*)`|\"([^\"]*)\")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A statement and the values of its parameters."""

    name: str
    text: str
    values: Mapping[str, str]


def statements(*, updates: int, minutes: int) -> list[Asked]:
    """Return everything that is asked of a run which made so many updates in so many minutes."""
    return [*_of_page(updates=updates, minutes=minutes), *_of_top(), *_canned(), *_of_report()]


def _of_page(*, updates: int, minutes: int) -> Iterator[Asked]:
    """Yield what the live page asks of the whole run."""
    text = _PAGE.read_text()
    constants = {name: said or number for name, said, number in _CONSTANT.findall(text)}
    points = int(constants["POINTS_MAX"])
    values = {
        "run": str(RUN), "since": "0",
        "per": str(max(1, -(-updates // points))), "perminute": str(max(1, -(-minutes // points))),
    }  # fmt: skip
    for place, found in enumerate(_ASKED.finditer(text), start=1):
        statement = found[1] or found[2]
        for name, said in constants.items():
            statement = statement.replace(f"${{{name}}}", said)
        owner = [one[1] for one in _FUNCTION.finditer(text, 0, found.start())][-1]
        yield Asked(name=f"page {owner} {place}", text=statement, values=_used(statement, values))


def _of_top() -> Iterator[Asked]:
    from infra.cli.top import look

    heard: list[str] = []

    def listen(statement: str) -> Sequence[Mapping[str, Any]]:
        heard.append(statement)
        return []

    look(listen)
    for place, statement in enumerate(heard, start=1):
        source = re.findall(r"\bFROM (\w+)", statement)[0]
        values = _used(statement, {"run_id": str(RUN)})
        yield Asked(name=f"top {source} {place}", text=statement, values=values)


def _canned() -> Iterator[Asked]:
    from infra.tables.canned import by_hand
    from infra.tables.questions import QUESTIONS as CANNED

    values = {"run_id": str(RUN), "quantity": "commit_latency_ms"}
    for one in CANNED:
        yield Asked(name=f"canned {one.name}", text=by_hand(one), values=_used(one.sql, values))


def _of_report() -> Iterator[Asked]:
    for name, statement in QUESTIONS.items():
        yield Asked(name=f"{_REPORT}{name}", text=statement, values={"run_id": str(RUN)})


def _used(statement: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if f"{{{name}:" in statement}


def run(*, rows: int = 10_000_000, times: int = 5) -> list[dict[str, Any]]:
    """Measure; the goal is that of 10 M or 100 M rows, whichever is nearer."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        return table(measured(Path(folder), rows=rows, times=times))


def measured(folder: Path, *, rows: int, times: int) -> dict[str, Any]:
    """Fill the tables of a folder, unless they are, and ask; in a process of its own, since the
    embedded engine must not be open where processes are started.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.queries", "inside", str(folder), str(rows), str(times)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, timeout=_DEADLINE_S, check=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def table(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table from what was told of each statement."""
    dashboards: dict[str, Any] = {}
    report: dict[str, Any] = {}
    for name, taken in told["times_ms"].items():
        (report if name.startswith(_REPORT) else dashboards)[name] = taken
    waited = {name: median(times) for name, (times, _) in dashboards.items()}
    used = {name: median(times) for name, (_, times) in dashboards.items()}
    ranked = sorted(used, key=lambda name: -used[name])
    slowest = ", ".join(f"{name} {used[name]:.0f} ms" for name in ranked[:_SLOWEST])
    nearest = min(GOALS_MS, key=lambda rows: abs(rows - told["rows"]))
    goal = GOALS_MS[nearest]
    said = (
        f"{platform.machine()}, {os.cpu_count()} cores, one thread, load {told['load']:.1f}; "
        f"{told['rows']:,} rows, {told['commits']:,} of them commits, {told['updates']:,} updates, "
        f"{told['bytes'] / 2**30:.2f} GiB in {told['parts']} parts; {len(used)} statements, "
        f"the median of {told['times']} warm times of each; most processor: {slowest}"
    )
    together = sum(median(times) for times, _ in report.values())
    return [
        row(f"query_{name}{kind}_ms", round(cut(list(one.values())), 1), unit="ms", goal=goal,
            conditions=said)
        for kind, one in (("", waited), ("_cpu", used))
        for name, cut in _CUTS.items()
    ] + [
        row("report_questions_ms", round(together, 1), unit="ms", goal=LIMIT_S * 1000,
            conditions=f"the {len(report)} questions of a report together, on the same tables")
    ]  # fmt: skip


async def _measure(folder: Path, rows: int, times: int) -> dict[str, Any]:
    from infra.run.worker import table_definitions
    from stream_jobs.core.sink_statements import parse_migrations
    from stream_jobs.sink import make_engine
    from stream_jobs.sink_settings import SinkSettings
    from stream_jobs.sink_store import Store

    store = await Store.open(lambda: make_engine(SinkSettings(tables_dir=str(folder))))
    definitions = parse_migrations(table_definitions())
    await store.migrate(definitions)
    if await _one(store, "SELECT count() FROM token_commits") == 0:
        began = time.perf_counter()
        for fill in fills(rows):
            await store.run(fill.statement())
        print(f"filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    began = time.perf_counter()
    for rollup in definitions.rollups:
        await store.roll(rollup, await store.stale(rollup), now_us=time.time_ns() // 1000)
    print(f"minutes made in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    until = time.monotonic() + _MERGES_S
    while await _one(store, "SELECT count() FROM system.merges") and time.monotonic() < until:
        await asyncio.sleep(0.5)
    updates = await _one(store, "SELECT max(ordinal) FROM learner_events")
    minutes_n = await _one(store, "SELECT dateDiff('minute', min(ts), max(ts)) FROM learner_events")
    parts = "FROM system.parts WHERE active AND database = currentDatabase()"
    told: dict[str, Any] = {
        "rows": await _one(
            store, f"SELECT sum(rows) {parts} AND NOT match(table, '_(minutes|marks)$')"
        ),
        "bytes": await _one(store, f"SELECT sum(bytes_on_disk) {parts}"),
        "parts": await _one(store, f"SELECT count() {parts}"),
        "commits": await _one(store, "SELECT count() FROM token_commits"),
        "updates": updates,
    }
    asked = statements(updates=updates, minutes=minutes_n)
    taken = {one.name: await _times(store, one, times) for one in asked}
    told |= {"times": times, "times_ms": taken, "load": os.getloadavg()[0]}
    await store.close()
    return told


async def _times(store: Any, asked: Asked, times: int) -> tuple[list[float], list[float]]:
    """Return how long the statement took each time and how much of the processor, after one time
    that is not counted. Unit: ms.
    """
    waited: list[float] = []
    used: list[float] = []
    for _ in range(times + 1):
        began, spent = time.perf_counter(), time.process_time()
        await store.ask(asked.text, "JSONCompact", asked.values)
        waited.append((time.perf_counter() - began) * 1000)
        used.append((time.process_time() - spent) * 1000)
    return waited[1:], used[1:]


async def _one(store: Any, statement: str) -> int:
    ((value,),) = await store.rows(statement)
    return int(value)


def main(arguments: Sequence[str]) -> None:
    """Print every statement's time, the slowest first, then the table."""
    given = dict(one.split("=", 1) for one in arguments)
    rows, times = int(given.get("rows", "10000000")), int(given.get("times", "5"))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as own:
        told = measured(Path(given.get("keep", own)), rows=rows, times=times)
    for name, (waited, used) in sorted(
        told["times_ms"].items(), key=lambda one: -median(one[1][1])
    ):
        print(f"{median(used):10.1f} {median(waited):10.1f}  {name}")
    print(json.dumps(table(told), indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        sys.stdout.write(
            json.dumps(asyncio.run(_measure(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
        )
    else:
        main(sys.argv[1:])
