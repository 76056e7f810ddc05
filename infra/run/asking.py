"""Asking the tables of a run: its sink while that runs, else the folder itself, or a server."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import orjson

from infra.run.folder import RunFolder
from infra.run.tables import open_tables
from schemas.errors import Boundary, RejectedError, SettingsError, TransientError

if TYPE_CHECKING:
    from stream_jobs.sink_engines import Engine

_ANSWER_S = 60.0
_SECONDS_MAX = 60.0
_ROWS_MAX = 1_000_000
_LOOK = "`SHOW TABLES` lists the views, `DESCRIBE name` their columns (docs/metrics.md)"
_HINTS = {
    159: "ask for less: name a run, count or aggregate, or narrow the time (WHERE ts >= ...)",
    241: "it needs too much memory: group by fewer columns, or narrow the time (WHERE ts >= ...)",
    396: "the answer is too large: add a LIMIT, or aggregate",
}
"""What to do about an error of the engine, by ClickHouse's number; others ask to look."""
Asking: TypeAlias = Callable[[str, Mapping[str, str]], bytes]
"""Answers a reading statement, and what `{name:Type}` in it stands for, as JSON."""


def ask(
    folder: RunFolder, statement: str, form: str, values: Mapping[str, str] | None = None
) -> bytes:
    """Return the answer to a reading statement in a ClickHouse format.

    values: what `{name:Type}` in it stands for. Raises RejectedError with the engine's message,
    SettingsError when the run has no tables.
    """
    from stream_jobs.core.sink_reading import reading

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
        raise _refused(error.read().decode(errors="replace").strip()) from error
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
    except (ConnectionError, http.client.HTTPException) as error:
        # It ended while it answered. What urllib meets before the request went out is a URLError.
        raise TransientError(
            f"the sink at {url} went away before it had answered", boundary=Boundary.STORE,
            hint="ask again in a moment: a run starts its sink again; "
            "logs/sink-0.log in the run's folder says why it ended",
        ) from error  # fmt: skip


def _ask_tables(folder: RunFolder, statement: str, form: str, values: Mapping[str, str]) -> bytes:
    """Ask the tables from this process."""
    engine = open_tables(folder, seconds_max=_SECONDS_MAX, rows_max=_ROWS_MAX)
    try:
        return _ask_engine(engine, statement, form, values)
    finally:
        engine.close()


def _ask_engine(engine: Engine, statement: str, form: str, values: Mapping[str, str]) -> bytes:
    try:
        return engine.ask(statement, form, values)
    except engine.faults as error:
        raise _refused(str(error)) from error


def _refused(message: str) -> RejectedError:
    from stream_jobs.core.sink_statements import engine_code

    hint = _HINTS.get(engine_code(message) or 0, _LOOK)
    return RejectedError(message, boundary=Boundary.STORE, hint=hint)


@contextmanager
def asking(folder: RunFolder) -> Iterator[Asking]:
    """Yield what answers many statements; the folder is opened once for all of them.

    Raises what `ask` raises, also while statements are answered.
    """
    address = folder.sink_address
    if address.exists() and _ask_sink(address, "SELECT 1", "JSON", {}) is not None:
        yield lambda statement, values: ask(folder, statement, "JSON", values)
        return
    engine = open_tables(folder, seconds_max=_SECONDS_MAX, rows_max=_ROWS_MAX)
    try:
        yield lambda statement, values: _ask_engine(engine, statement, "JSON", values)
    finally:
        engine.close()
