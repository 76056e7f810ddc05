"""`sluice sql`: ask the tables of a run, at its sink while that runs, else in the folder itself."""

from __future__ import annotations

import difflib
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import click
import orjson

from infra.cli.output import json_option, runs_option, show_json, show_table
from infra.run.folder import RunFolder, find
from infra.run.naming import HOW, LAST
from infra.run.tables import open_tables
from schemas.errors import Boundary, RejectedError, SettingsError, TransientError

_ANSWER_S = 60.0
_SECONDS_MAX = 60.0
_ROWS_MAX = 1_000_000
_LOOK = "`SHOW TABLES` lists the views, `DESCRIBE name` their columns (docs/metrics.md)"
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
    if is_list:
        _list(as_json=form == "json")
        return
    if (query is None) is (canned is None):
        raise click.UsageError("give a statement, or --canned NAME; --list names those")
    folder = find(name, directory)
    if canned is not None:
        statement, values = _canned(canned, folder.root.name, quantity)
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
    from infra.tables.questions import BY_NAME

    if name not in BY_NAME:
        near = ", ".join(difflib.get_close_matches(name, BY_NAME, n=3)) or "see --list"
        raise SettingsError(f"there is no canned query {name}", hint=near)
    given = {"run_id": run_id} | ({} if quantity is None else {"quantity": quantity})
    needed = BY_NAME[name].parameters
    for parameter in needed:
        if parameter not in given:
            raise SettingsError(f"{name} asks about one {parameter}", hint=f"give --{parameter}")
    return by_hand(BY_NAME[name]), {key: given[key] for key in needed}


def ask(
    folder: RunFolder, statement: str, form: str, values: Mapping[str, str] | None = None
) -> bytes:
    """Return the answer to a reading statement in a ClickHouse format.

    values: what `{name:Type}` in it stands for. Raises RejectedError with the engine's message,
    SettingsError when the run has no tables.
    """
    from stream_jobs.core.sink_statements import reading

    chosen = reading(statement)
    if chosen.format is not None:
        raise SettingsError(
            f"the statement names the format {chosen.format}", hint="use --format instead"
        )
    if folder.sink_address.exists():
        answer = _ask_sink(folder.sink_address, chosen.text, form, values or {})
        if answer is not None:
            return answer
    return _ask_tables(folder, chosen.text, form, values or {})


def _ask_sink(address: Path, statement: str, form: str, values: Mapping[str, str]) -> bytes | None:
    """Return the sink's answer; None when it is gone and only its address file is left."""
    try:
        url = orjson.loads(address.read_bytes())["url"]
    except (FileNotFoundError, KeyError, ValueError):
        return None
    given = {f"param_{name}": value for name, value in values.items()}
    asked = f"{url}/?{urllib.parse.urlencode({'default_format': form, **given})}"
    try:
        with urllib.request.urlopen(asked, data=statement.encode(), timeout=_ANSWER_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise RejectedError(
            error.read().decode(errors="replace").strip(), boundary=Boundary.STORE, hint=_LOOK
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return None
        raise TransientError(
            f"the sink at {url} does not answer: {error.reason}", boundary=Boundary.STORE,
            hint="is it busy? see the log of the sink in the run's folder",
        ) from error  # fmt: skip
    except TimeoutError as error:
        raise TransientError(
            f"the sink at {url} did not answer within {_ANSWER_S:.0f} s", boundary=Boundary.STORE,
            hint="ask for less, or look at the log of the sink",
        ) from error  # fmt: skip


def _ask_tables(folder: RunFolder, statement: str, form: str, values: Mapping[str, str]) -> bytes:
    """Ask the tables from this process."""
    engine = open_tables(folder, seconds_max=_SECONDS_MAX, rows_max=_ROWS_MAX)
    try:
        return engine.ask(statement, form, values)
    except engine.faults as error:
        raise RejectedError(str(error), boundary=Boundary.STORE, hint=_LOOK) from error
    finally:
        engine.close()
