"""SQL over HTTP, reading only: as much of ClickHouse's protocol as its clients and `curl` need.

Consumes: statements (POST / with the statement as body, or GET /?query=). Produces: answers in the
format that was asked for. Waits for: the store; a query ends by `query_seconds_max`. Unblocked by:
its answer. Invariants: nothing that writes reaches the engine; answers are bounded in rows, memory
and time, also those that nobody takes; who has left is not asked for; the address file exists
exactly while the endpoint listens.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

import orjson
from aiohttp import web

from schemas.errors import Boundary, RejectedError, SettingsError
from stream_jobs.core.sink_hello import asks_who, who
from stream_jobs.core.sink_reading import reading
from stream_jobs.core.sink_statements import engine_code
from stream_jobs.sink_clients import REQUEST_S, Clients, Handler
from stream_jobs.sink_pages import Pages, add_pages
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store

_WAITING_MAX = 32
_STATEMENT_BYTES_MAX = 262_144
_SHUTDOWN_S = 2.0
_DEFAULT_FORMAT = "TabSeparated"
_READONLY = 164
_BUSY = 202
_SLOW = 209
_UNPACKED = 354
_OF_WRITING = frozenset({6, 27, 36, 41, 42, 43, 53, 62, 184, 215, 456})
"""Codes of a statement that is written wrong: syntax, types, arguments, a parameter not given."""
_OF_NAMES = frozenset({46, 47, 60, 73, 81})
"""Codes of what there is not: function, column, table, format, database."""
_TWICE = re.compile(r"^(?:Code: \d+\. DB::Exception: )+(?=Code: )")
_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "Native": "application/octet-stream",
    "Arrow": "application/octet-stream",
    "ArrowStream": "application/octet-stream",
    "Parquet": "application/octet-stream",
    "RowBinary": "application/octet-stream",
    "RowBinaryWithNamesAndTypes": "application/octet-stream",
}
_TEXT = "text/tab-separated-values; charset=UTF-8"


class Endpoint:
    """The HTTP server of one sink."""

    def __init__(self, store: Store, settings: SinkSettings, pages: Pages | None = None) -> None:
        """pages: the live page, served beside SQL."""
        self._pages = pages or Pages()
        self._store = store
        self._settings = settings
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._clients = Clients()
        self._runner: web.AppRunner | None = None
        self.url = ""
        """Where it listens, once started."""

    async def start(self) -> None:
        """Listen, then write the address file; raise SettingsError when the port is taken."""
        clients = self._clients

        @web.middleware
        async def served(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await clients.serve(request, handler)

        app = web.Application(client_max_size=_STATEMENT_BYTES_MAX, middlewares=[served])
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/", self._get)
        app.router.add_post("/", self._post)
        add_pages(app, self._pages)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        self._runner = runner
        host, port = self._settings.listen_host, self._settings.listen_port
        assert runner.server is not None
        try:
            listening = await clients.listen(runner.server, host, port)
        except OSError as error:
            raise SettingsError(
                f"the SQL endpoint cannot listen on {host}:{port}: {error.strerror}",
                hint="set sink.listen_port to a free port, or to 0",
            ) from error
        self.url = f"http://{listening[0]}:{listening[1]}"
        if self._settings.address_file:
            _announce(Path(self._settings.address_file), self.url, *listening)

    async def stop(self) -> None:
        """Remove the address file and stop listening."""
        if self._runner is None:
            return
        if self._settings.address_file:
            Path(self._settings.address_file).unlink(missing_ok=True)
        self._clients.close()
        await self._runner.cleanup()
        self._runner = None

    async def _ping(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="Ok.\n")

    async def _get(self, request: web.Request) -> web.Response:
        if "query" not in request.query:
            return web.Response(text="Ok.\n")
        return await self._answer(request, request.query["query"])

    async def _post(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(REQUEST_S):
                body = (await request.read()).decode("utf-8", errors="replace")
        except TimeoutError:
            return _refusal(408, _SLOW, f"the statement did not come within {REQUEST_S:.0f} s")
        except web.RequestPayloadError as error:
            return _refusal(400, _UNPACKED, f"the statement cannot be unpacked: {error}")
        # As ClickHouse does: the parameter comes first, the body follows it.
        query = request.query.get("query", "")
        return await self._answer(request, f"{query}\n{body}" if query else body)

    async def _answer(self, request: web.Request, text: str) -> web.Response:
        if self._waiting >= _WAITING_MAX:
            return _refusal(503, _BUSY, f"{_WAITING_MAX} queries are waiting already")
        try:
            statement = reading(text)
        except RejectedError as error:
            return _refusal(403, _READONLY, f"{error.message}; {error.hint} (READONLY)")
        form = (
            statement.format
            or request.query.get("default_format")
            or request.headers.get("X-ClickHouse-Format")
            or _DEFAULT_FORMAT
        )
        self._waiting += 1
        try:
            async with self._turn:
                if request.transport is None:
                    return _refusal(499, _BUSY, "whoever asked has left")
                if not await self._clients.has_room():
                    return _refusal(503, _BUSY, "answers that nobody takes fill the memory")
                answer = await self._asked(request, statement.text, form)
                self._clients.hold(request, answer)
        except RejectedError as error:
            code = engine_code(error.message) or 0
            return _refusal(_status(code), code, error.message)
        finally:
            self._waiting -= 1
        headers = {
            "X-ClickHouse-Format": form,
            "X-ClickHouse-Query-Id": request.query.get("query_id") or uuid.uuid4().hex,
            "X-ClickHouse-Server-Display-Name": socket.gethostname(),
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Summary": "{}",
        }
        return web.Response(
            body=answer, headers={**headers, "Content-Type": _TYPES.get(form, _TEXT)}
        )

    async def _asked(self, request: web.Request, text: str, form: str) -> bytes:
        if asks_who(text, request.query):
            version = await self._store.ask("SELECT version()", _DEFAULT_FORMAT, {})
            return who(name=socket.gethostname(), version=version.decode().strip())
        return await self._store.ask(text, form, _parameters(request.query))


def _parameters(query: Mapping[str, str]) -> dict[str, str]:
    """Return the values for `{name:Type}` in the statement; other settings are not for callers."""
    return {
        name.removeprefix("param_"): value
        for name, value in query.items()
        if name.startswith("param_")
    }


def _status(code: int) -> int:
    """Return the status of what the engine refused: 500 unless it is known to be the caller's."""
    if code == _READONLY:
        return 403
    if code in _OF_NAMES:
        return 404
    return 400 if code in _OF_WRITING else 500


def _refusal(status: int, code: int, message: str) -> web.Response:
    message = _TWICE.sub("", message)
    text = message if message.startswith("Code: ") else f"Code: {code}. DB::Exception: {message}"
    return web.Response(
        status=status, text=text + "\n", headers={"X-ClickHouse-Exception-Code": str(code)}
    )


def _announce(path: Path, url: str, host: str, port: int) -> None:
    """Write the address so that a reader sees all of it or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(
            orjson.dumps({"url": url, "host": host, "port": port, "pid": os.getpid()})
        )
        aside.replace(path)
    except OSError as error:
        raise SettingsError(
            f"the address file {path} cannot be written: {error.strerror}",
            boundary=Boundary.STORE,
            hint="is the folder of the run there, and the disk not full?",
        ) from error
