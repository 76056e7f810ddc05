"""Clients of the endpoint, held to bounds: how many there are, how slowly they may speak, how much
of their answers may wait for them.

Consumes: connections. Produces: the protocol of the HTTP server behind each of them. Waits for: a
whole request (`REQUEST_S`), the taking of an answer (`ANSWER_S` and its size over `BYTES_PER_S`).
Unblocked by: the client, or the end of its time, which cuts the connection. Invariants: whatever
clients do, they hold at most `CONNECTIONS_MAX` sockets, `ANSWERS_BYTES_MAX` and one answer; the
files and the memory that rows need are not theirs to take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

from aiohttp import web

_LOG = logging.getLogger("sluice.sink")
CONNECTIONS_MAX = 256
"""A browser holds six to one page."""
REQUEST_S = 10.0
"""From the first byte of a request to the end of its head, and again to the end of its body."""
ANSWER_S = 20.0
BYTES_PER_S = 1 << 20
"""So slow may a client be that takes an answer, beyond `ANSWER_S`."""
ANSWERS_BYTES_MAX = 64 << 20
"""While so much waits to be taken, no further query is answered."""
ROOM_S = 10.0
_PIECE_BYTES = 1 << 18
_QUIET_S = 75.0
"""Silence after which a connection is closed that asks nothing."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 55\r\n\r\nCode: 202. DB::Exception: too many connections to this\n"
)
_BYTES = web.RequestKey("sink_answer_bytes", int)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clients:
    """All of them."""

    def __init__(self) -> None:
        self._guards: dict[asyncio.BaseProtocol, _Guard] = {}
        self._server: asyncio.Server | None = None
        self._held = 0
        self._fell = asyncio.Event()

    async def listen(self, made: web.Server, host: str, port: int) -> tuple[str, int]:
        """Take connections for a server; return where. Raises OSError when the port is taken."""

        def guarded() -> _Guard:
            return _Guard(made(), self._guards)

        self._server = await asyncio.get_running_loop().create_server(guarded, host, port)
        found: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return found

    def close(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    async def has_room(self) -> bool:
        """Whether an answer may be made, after a wait of at most `ROOM_S` for others to be taken.

        One may ask at a time.
        """
        try:
            async with asyncio.timeout(ROOM_S):
                while self._held > ANSWERS_BYTES_MAX:
                    self._fell.clear()
                    await self._fell.wait()
        except TimeoutError:
            return False
        return True

    def hold(self, request: web.Request, answer: bytes) -> None:
        """Count an answer as waiting until it was taken."""
        request[_BYTES] = len(answer)
        self._held += len(answer)

    async def serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request and see to it that the answer is taken; a middleware of the server."""
        with self._busy(request.protocol):
            try:
                response = await handler(request)
                return await _handed(request, response) if _is_made(response) else response
            finally:
                self._held -= request.get(_BYTES, 0)
                self._fell.set()

    @contextmanager
    def _busy(self, protocol: asyncio.BaseProtocol) -> Iterator[None]:
        guard = self._guards.get(protocol)
        if guard is not None:
            guard.begin()
        try:
            yield
        finally:
            if guard is not None:
                guard.end()


def _is_made(response: web.StreamResponse) -> TypeGuard[web.Response]:
    return isinstance(response, web.Response) and isinstance(response.body, bytes)


async def _handed(request: web.Request, response: web.Response) -> web.StreamResponse:
    """Send a response piece by piece, so that no copy of it waits in the connection."""
    body = response.body
    assert isinstance(body, bytes)
    sent = web.StreamResponse(status=response.status, headers=response.headers)
    sent.content_length = len(body)
    transport = request.transport
    try:
        async with asyncio.timeout(ANSWER_S + len(body) / BYTES_PER_S):
            await sent.prepare(request)
            for begin in range(0, len(body), _PIECE_BYTES):
                await sent.write(memoryview(body)[begin : begin + _PIECE_BYTES])
            await sent.write_eof()
    except (TimeoutError, ConnectionError) as error:
        _LOG.info("an answer of %d bytes was not taken: %r", len(body), error)
        if transport is not None:
            transport.abort()
    return sent


class _Guard(asyncio.Protocol):
    """Stands before the protocol of one connection, and cuts it when a request takes too long."""

    def __init__(self, inner: asyncio.Protocol, guards: dict[asyncio.BaseProtocol, _Guard]) -> None:
        self._inner = inner
        self._guards = guards
        self._transport: asyncio.Transport | None = None
        self._due: asyncio.TimerHandle | None = None
        self._is_asked = False
        """Whether a request has begun that nobody works on yet."""
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away when there are too many."""
        assert isinstance(transport, asyncio.Transport)
        if len(self._guards) >= CONNECTIONS_MAX:
            transport.write(_FULL)
            transport.close()
            return
        self._transport = transport
        self._guards[self._inner] = self
        self._inner.connection_made(transport)
        self._cut_after(_QUIET_S)

    def data_received(self, data: bytes) -> None:
        """Pass on what came; the first of it begins the time of a request."""
        if self._transport is None:
            return
        if not self._is_busy and not self._is_asked:
            self._is_asked = True
            self._cut_after(REQUEST_S)
        self._inner.data_received(data)

    def begin(self) -> None:
        """Note that the request is whole and worked on."""
        self._is_busy, self._is_asked = True, False
        self._cut_after(None)

    def end(self) -> None:
        """Note that it is answered."""
        self._is_busy = False
        if self._transport is not None:
            self._cut_after(_QUIET_S)

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self._inner.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cut_after(None)
        if self._transport is not None:
            self._transport = None
            del self._guards[self._inner]
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._transport is not None:
            self._inner.resume_writing()

    def _cut_after(self, seconds: float | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = None
        if seconds is not None and self._transport is not None:
            self._due = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
