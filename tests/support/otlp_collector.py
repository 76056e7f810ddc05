"""An OpenTelemetry collector on loopback, as far as a sender of spans can tell: it decodes what it
is sent, and can be told to refuse, to be slow and to be gone.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class OtlpCollector:
    """Listens until the block ends. `answers` are the next statuses; then 200."""

    def __init__(self, answers: Sequence[int] = ()) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        """What was taken, in order."""
        self.refused = 0
        self.answers = list(answers)
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()
        """Set when a request has come, taken or not."""
        self.go_on = threading.Event()
        """Answers wait for it; cleared, the collector is slow."""
        self.go_on.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        # Its default leaves the end of each test waiting for half a second.
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def endpoint(self) -> str:
        """Address to send spans to."""
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def spans(self) -> list[Any]:
        """Return every span taken, as protobuf."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def __enter__(self) -> OtlpCollector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        assert path == "/v1/traces", path
        assert headers["content-type"] == "application/x-protobuf"
        raw = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        request = ExportTraceServiceRequest.FromString(raw)
        self.headers.append(headers)
        self.arrived.set()
        self.go_on.wait(timeout=30.0)
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.requests.append(request)
        else:
            self.refused += 1
        return status

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = collector._take(self.path, headers, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.send_header("retry-after", "0.01")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                return

        return Handler
