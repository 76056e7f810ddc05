"""`sluice sql`: ask the tables of a run, at its sink while that runs, else in the folder itself."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click
import orjson

from infra.cli.output import json_option, runs_option, show_json, show_table
from infra.run.asking import ask
from infra.run.folder import find, run_id_of
from infra.run.naming import HOW, LAST
from schemas.errors import SettingsError

_FORMATS = {"table": "JSONCompact", "csv": "CSVWithNames", "json": "JSON"}


@click.command()
@click.argument("query", required=False)
@click.option("--canned", metavar="NAME", help="Ask a canned query instead; --list names them.")
@click.option("--quantity", help="What `--canned quantity_over_time` asks about: `ttft_ms`, ...")
@click.option(
    "--list", "is_list", is_flag=True, help="List the canned queries and what they answer."
)
@click.option("--run", "name", default=LAST, show_default=True, help=f"The run: {HOW}.")
@runs_option
@click.option(
    "--format", "form", type=click.Choice(sorted(_FORMATS)), default="table", show_default=True,
    help="How the answer is printed.",
)  # fmt: skip
@json_option
def sql(
    query: str | None, canned: str | None, quantity: str | None, is_list: bool, name: str,
    directory: Path, form: str, as_json: bool,
) -> None:  # fmt: skip
    """Ask the ClickHouse tables of a run one reading statement, `-` reads it from stdin.

    Views to begin with: quantities, trajectory_funnel, token_funnel, throughput, reward_by_step;
    `SHOW TABLES` lists all. docs/metrics.md says what each holds. JSON is a list of objects.
    """
    form = "json" if as_json else form
    if is_list and (query, canned, quantity) != (None, None, None):
        raise click.UsageError("--list asks nothing: leave the statement and other options out")
    if quantity is not None and canned is None and not is_list:
        raise click.UsageError("--quantity belongs to `--canned quantity_over_time`")
    if is_list:
        _list(as_json=form == "json")
        return
    if (query is None) is (canned is None):
        raise click.UsageError("give a statement, or --canned NAME; --list names those")
    folder = find(name, directory)
    if canned is not None:
        statement, values = _canned(canned, run_id_of(folder), quantity)
    else:
        statement, values = sys.stdin.read() if query == "-" else str(query), {}
    answer = ask(folder, statement, _FORMATS[form], values)
    if form == "csv":
        click.echo(answer.decode(), nl=False)
        return
    told = orjson.loads(answer)
    if form == "json":
        show_json(told["data"])
    else:
        show_table([column["name"] for column in told["meta"]], told["data"])


def _list(*, as_json: bool) -> None:
    """Print the canned queries."""
    from infra.tables.questions import QUESTIONS

    rows = [[one.name, one.answers, one.unit] for one in QUESTIONS]
    if as_json:
        show_json([dict(zip(("name", "answers", "unit"), row, strict=True)) for row in rows])
    else:
        show_table(["name", "answers", "unit"], rows)


def _canned(name: str, run_id: str, quantity: str | None) -> tuple[str, dict[str, str]]:
    """Return a canned query and its values; raise SettingsError when there is none of the name."""
    from infra.tables.canned import by_hand
    from infra.tables.quantities import QUANTITIES
    from infra.tables.questions import BY_NAME

    if name not in BY_NAME:
        near = ", ".join(difflib.get_close_matches(name, BY_NAME, n=3)) or "see --list"
        raise SettingsError(f"there is no canned query {name}", hint=near)
    given = {"run_id": run_id} | ({} if quantity is None else {"quantity": quantity})
    needed = BY_NAME[name].parameters
    if quantity is not None and "quantity" not in needed:
        raise click.UsageError(f"{name} asks about no quantity")
    for parameter in needed:
        if parameter not in given:
            raise SettingsError(f"{name} asks about one {parameter}", hint=f"give --{parameter}")
    known = [one.name for one in QUANTITIES]
    if quantity is not None and quantity not in known:
        near = ", ".join(difflib.get_close_matches(quantity, known, n=3)) or "see docs/metrics.md"
        raise SettingsError(f"there is no quantity {quantity}", hint=near)
    return by_hand(BY_NAME[name]), {key: given[key] for key in needed}
