"""A ClickHouse server as far as its Python client speaks to it: HTTP before the embedded engine.

`python -m tests.support.fake_clickhouse FOLDER` prints its port and serves until it is killed. It
understands what clickhouse-connect sends: a statement as body, or in the parameter `query` with
data as body; settings as parameters. It is no server: no users, no replicas, one query at a time.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_ENGINE: list[Any] = []
# Connections stay open, so each has its thread; the engine has one of its own.
_THREAD = ThreadPoolExecutor(max_workers=1)
_OURS = re.compile(
    r"async_insert|insert_deduplication_token|max_partitions_per_insert_block|max_execution_time"
    r"|max_result_rows|result_overflow_mode|max_memory_usage"
)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a ping."""
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        """Run a statement."""
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self._body()
        try:
            self._answer(200, _THREAD.submit(_run, given, body).result())
        except Exception as error:  # noqa: BLE001  a server answers whatever happens
            # A real one has begun to answer, with 200, before it fails, unless told to wait.
            is_begun = given.get("readonly") == "1" and given.get("wait_end_of_query") != "1"
            told = str(error).encode()
            self._answer(200 if is_begun else 500, b"0\n1\n" + told if is_begun else told)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-ClickHouse-Timezone", "UTC")
        if status == 500:
            self.send_header("X-ClickHouse-Exception-Code", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _run(given: dict[str, str], body: bytes) -> bytes:
    query = given.get("query", "")
    clause = ", ".join(f"{name} = '{v}'" for name, v in given.items() if _OURS.fullmatch(name))
    insert = re.match(r"\s*INSERT INTO (\S+) (\(.*?\)) FORMAT (\w+)\s*$", query, re.DOTALL)
    engine = _ENGINE[0]
    if insert is not None:
        into = f"INSERT INTO {insert[1]} {insert[2]}" + (f" SETTINGS {clause}" if clause else "")
        return bytes(engine.stream(into, insert[3], body))
    statement = query or body.decode()
    parameters = {n.removeprefix("param_"): v for n, v in given.items() if n.startswith("param_")}
    form = re.search(r"\bFORMAT (\w+)\s*$", statement)
    if form is None and given.get("default_format"):
        statement += f" FORMAT {given['default_format']}"
    return bytes(engine.answer(statement, parameters, read_only=given.get("readonly") == "1"))


class _Embedded:
    """The embedded engine with a streamed insert whose errors are told."""

    def __init__(self, folder: Path) -> None:
        from stream_jobs.sink_engines import EmbeddedEngine, Limits

        limits = Limits(seconds_max=60, rows_max=1_000_000, memory_bytes_max=2_000_000_000)
        self._engine = EmbeddedEngine(folder, limits)

    def stream(self, into: str, form: str, data: bytes) -> bytes:
        self._engine.stream(into, form, data)
        return b""

    def answer(self, statement: str, parameters: dict[str, str], *, read_only: bool) -> bytes:
        if read_only:
            return self._engine.ask(statement, "TabSeparated", parameters)
        return self._engine.run(statement)


def _open(folder: str) -> None:
    _ENGINE.append(_Embedded(Path(folder)))


if __name__ == "__main__":
    _THREAD.submit(_open, sys.argv[1]).result()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
