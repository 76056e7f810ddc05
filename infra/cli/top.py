"""`sluice top`: a run at a terminal, from the same views as the live page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from infra.cli.output import json_option, run_argument, runs_option, show_json
from infra.figures import readable
from infra.run.asking import ask
from infra.run.folder import RunFolder, find, run_id_of
from infra.run.naming import LAST
from schemas.errors import SluiceError

Row: TypeAlias = Mapping[str, Any]
Asking: TypeAlias = Callable[[str], Sequence[Row]]
"""Answers a statement about the run that `{run_id:String}` is: tables on a server hold many."""

_UPDATES = """SELECT max(ordinal) AS updates, argMax(reward_mean, ts) AS reward,
  argMax(loss, ts) AS loss, argMax(kl_nats, ts) AS kl, argMax(entropy_nats, ts) AS entropy
  FROM learning_by_step WHERE run_id = {run_id:String} HAVING count() > 0"""
_THROUGHPUT = """SELECT raw_tokens_per_s AS raw, effective_tokens_per_s AS effective,
  bound_tokens_per_s AS bound, bottleneck, wall_s FROM throughput
  WHERE run_id = {run_id:String}"""
_ACCOUNTS = """SELECT outcome, reason, n FROM trajectory_accounts WHERE run_id = {run_id:String}
  ORDER BY n DESC LIMIT 12"""
_WAITS = """SELECT cause, spent_s FROM wait_totals WHERE run_id = {run_id:String} AND kind = 'wait'
  ORDER BY spent_s DESC LIMIT 6"""
_ROUND_FROM = 1000.0
_TITLES = 2
"""Lines of a table above its rows: its name and its columns."""
_ROWS_MIN = 3
"""Rows that trajectories and waits keep on a terminal of any height."""
_COUNTED = 3
SHOWN = (
    "policy_lag_steps", "buffer_age_s", "ttft_ms", "inter_token_ms", "commit_latency_ms",
    "environment_step_ms", "tool_call_ms", "verifier_ms", "verify_queue_ms", "refresh_pause_ms",
    "learner_step_ms",
)  # fmt: skip
_QUANTITIES = f"""SELECT quantity, p50, p95, p99, max, n FROM quantities
  WHERE run_id = {{run_id:String}} AND quantity IN {SHOWN!r}
  ORDER BY indexOf({list(SHOWN)!r}, quantity)"""
_WORKERS = """SELECT w.worker AS worker, w.status AS status, w.starts AS starts,
  if(v.worker = '', '', concat(toString(v.epoch), '/', toString(v.number))) AS version
  FROM workers_now AS w
  LEFT JOIN versions_served AS v ON w.run_id = v.run_id AND w.worker = v.worker
  WHERE w.run_id = {run_id:String} ORDER BY worker LIMIT 24"""
# Records, each once: whoever met it wrote a letter of its own.
_LETTERS = """SELECT uniqExact((origin_topic, origin_partition, origin_offset)) AS n
  FROM dead_letters WHERE run_id = {run_id:String} AND kind IN ('', 'letter')"""


@click.command()
@run_argument(default=LAST)
@runs_option
@click.option(
    "--every", "every_s", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True,
    help="Time between two looks. Unit: s.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@json_option
def top(name: str, directory: Path, every_s: float, once: bool, as_json: bool) -> None:
    """Show RUN live at the terminal; Ctrl-C ends. With --json one look, as one object."""
    folder = find(name, directory)
    console = Console()
    if as_json:
        show_json(look(lambda statement: _rows(folder, statement)))
        return
    if once:
        console.print(screen(lambda statement: _rows(folder, statement)))
        return
    try:
        _watch(folder, console, every_s)
    except KeyboardInterrupt:
        return


def _watch(folder: RunFolder, console: Console, every_s: float) -> None:
    """Look again and again: over the whole terminal, or one look below the other where the output
    is none.
    """

    def seen(lines_max: int | None) -> RenderableType:
        try:
            return screen(lambda statement: _rows(folder, statement), lines_max=lines_max)
        except SluiceError as error:
            # A sink that restarts answers again in a moment; the next look says so.
            return Text(f"no answer: {error}", style="red")

    if not console.is_terminal:
        while True:
            console.print(seen(None), "")
            time.sleep(every_s)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(seen(console.height), refresh=True)
            time.sleep(every_s)


def _rows(folder: RunFolder, statement: str) -> Sequence[Row]:
    rows: Sequence[Row] = orjson.loads(
        ask(folder, statement, "JSON", {"run_id": run_id_of(folder)})
    )["data"]
    return rows


def look(asking: Asking) -> dict[str, Any]:
    """Return all that is shown, from seven questions to the views.

    learning and throughput are one row each, empty at first; the others are lists of rows.
    """
    return {
        "learning": _first(asking(_UPDATES)),
        "throughput": _first(asking(_THROUGHPUT)),
        "accounts": asking(_ACCOUNTS),
        "quantities": asking(_QUANTITIES),
        "waits": asking(_WAITS),
        "workers": asking(_WORKERS),
        "dead_letters": int(_first(asking(_LETTERS)).get("n") or 0),
    }


def screen(asking: Asking, *, lines_max: int | None = None) -> RenderableType:
    """Return what one look shows at a terminal.

    lines_max: height of the terminal. What does not fit is left out row by row, of workers first,
    and a table says of how many rows it shows how many; None: everything.
    """
    seen = look(asking)
    head = _head(seen)
    accounts, waits, quantities = seen["accounts"], seen["waits"], seen["quantities"]
    beside, below, workers = max(len(accounts), len(waits)), len(quantities), len(seen["workers"])
    if lines_max is not None:
        left = lines_max - len(head.plain.splitlines())
        beside = min(beside, max(_ROWS_MIN, left - (_TITLES + below) - _TITLES))
        below = min(below, max(1, left - (_TITLES + beside) - _TITLES))
        workers = min(workers, left - (_TITLES + beside) - (_TITLES + below) - _TITLES)
    abreast = Table.grid(padding=(0, 4))
    abreast.add_row(
        _table("trajectories", accounts[:beside], ("outcome", "reason", "n"), of=len(accounts)),
        _table("waits of the learner", waits[:beside], ("cause", "spent_s"), of=len(waits)),
    )
    columns = ("quantity", "p50", "p95", "p99", "max", "n")
    parts: list[RenderableType] = [
        head, abreast, _table("quantities", quantities[:below], columns, of=len(quantities))
    ]  # fmt: skip
    if workers > 0:
        told, names = seen["workers"], ("worker", "status", "version", "starts")
        parts.append(_table("workers", told[:workers], names, of=len(told)))
    return Group(*parts)


def _head(seen: Mapping[str, Any]) -> Text:
    """Return the lines that stand above all tables, short enough for 80 columns."""
    updates, flow, workers = seen["learning"], seen["throughput"], seen["workers"]
    statuses = Counter(row["status"] for row in workers)
    versions = Counter(row["version"] for row in workers if row["version"])
    head = Text(
        f"update {_plain(updates.get('updates'))}   reward {_plain(updates.get('reward'))}   "
        f"loss {_plain(updates.get('loss'))}   KL {_plain(updates.get('kl'))} nats   "
        f"entropy {_plain(updates.get('entropy'))} nats\n"
        f"tokens/s: {_plain(flow.get('raw'))} sampled, {_plain(flow.get('effective'))} trained, "
        f"{_plain(flow.get('bound'))} the bound ({flow.get('bottleneck') or '-'})\n"
        f"wall {_plain(flow.get('wall_s'))} s   workers: {_counted(statuses, of='')}   "
        f"serving: {_counted(versions, of=' by ')}"
    )
    if letters := seen["dead_letters"]:
        head.append(
            f"\n{letters} records that could not be taken: `sluice dead-letters list`", style="red"
        )
    return head


def _counted(counts: Counter[str], *, of: str) -> str:
    """Return what was counted, the most frequent first: `12 ready, 1 failed` or `1/14 by 2`."""
    first = counts.most_common(_COUNTED)
    told = [f"{name}{of}{n}" if of else f"{n} {name}" for name, n in first]
    return ", ".join([*told, "..."][: len(told) + (len(counts) > len(told))]) or "-"


def _first(rows: Sequence[Row]) -> Row:
    return rows[0] if rows else {}


def _table(title: str, rows: Sequence[Row], columns: Sequence[str], *, of: int) -> Table:
    """Return a table; `of` is how many rows there are, of which these are the first."""
    if of > len(rows):
        title = f"{title}, {len(rows)} of {of}"
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        is_number = bool(rows) and all(_is_number(row[column]) for row in rows)
        made.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        made.add_row(*(escape(_plain(row[column])) for column in columns))
    return made


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> str:
    """Return a value as a person reads it; 64-bit integers come as text from ClickHouse."""
    if value is None or value == "":
        return "-"
    if not _is_number(value):
        return str(value)
    number = float(value)
    if number.is_integer() or abs(number) >= _ROUND_FROM:
        return f"{number:,.0f}"
    return readable(number)
