"""A frame-aware proxy before real brokers, on loopback: it loses answers, cuts, delays, falls
silent.

Every Kafka request is int32 length, int16 api key, int16 version, int32 correlation id; an answer
is int32 length, int32 correlation id. Nothing deeper is parsed. In answers the brokers' own
addresses (host text, then int32 port) are exchanged for the proxy's, which have the same length, so
that a client never finds a way around it. Source: the protocol guide of the Kafka documentation.

The proxy lives on a thread of its own, since the doors connect with blocking calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

HOST = "127.0.0.1"
_FRAME_BYTES_MAX = 64 * 1024 * 1024
_LIMIT_S = 10.0


class Api(IntEnum):
    """Api keys that tests name."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    OFFSET_COMMIT = 8
    JOIN_GROUP = 11


class Harm(Enum):
    """What happens to one exchange."""

    LOSE_REQUEST = auto()
    """The broker never sees the request, and the client waits."""
    SWALLOW_ANSWER = auto()
    """The broker has done it, and the client waits."""
    CUT_BEFORE = auto()
    """The connection ends before the broker sees the request."""
    CUT_AFTER = auto()
    """The broker has done it; the connection ends instead of the answer."""
    DELAY = auto()
    """The answer, and all behind it on this connection, comes later."""
    MISDIRECT = auto()
    """The broker reads of a topic that is not there, and refuses it; answered as with DELAY."""


@dataclass(slots=True, kw_only=True, eq=False)
class Fault:
    """One fault that waits for its moment; `hits` counts the exchanges that it met."""

    api: Api
    harm: Harm
    times: int
    containing: bytes
    delay_s: float
    hits: int = 0
    happened: threading.Event = field(default_factory=threading.Event)

    @property
    def elsewhere(self) -> bytes:
        """The name of no topic, as long as the bytes that the request holds."""
        return b"?" * len(self.containing)

    def meets(self, api: int, request: bytes) -> bool:
        """Return whether this fault strikes the request, and count it if so."""
        if api != self.api or self.hits >= self.times or self.containing not in request:
            return False
        self.hits += 1
        self.happened.set()
        return True


class _Link:
    """One connection of a client, and the one behind it to the broker."""

    def __init__(self, proxy: FaultProxy, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self._proxy = proxy
        self._writers = writers
        self._asked: dict[int, tuple[int, Fault | None]] = {}

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    async def carry_requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        while True:
            frame = await _frame(source)
            await self._proxy.gate.wait()
            api, _, correlation = struct.unpack_from(">hhi", frame)
            fault = self._proxy.strike(api, frame)
            harm = None if fault is None else fault.harm
            if harm is Harm.CUT_BEFORE:
                return
            if harm is Harm.LOSE_REQUEST:
                continue
            if fault is not None and harm is Harm.MISDIRECT:
                frame = frame.replace(fault.containing, fault.elsewhere)
            self._asked[correlation] = (api, fault)
            await _send(target, frame)

    async def carry_answers(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        while True:
            frame = await _frame(source)
            await self._proxy.gate.wait()
            (correlation,) = struct.unpack_from(">i", frame)
            _, fault = self._asked.pop(correlation, (-1, None))
            harm = None if fault is None else fault.harm
            if harm is Harm.CUT_AFTER:
                return
            if harm is Harm.SWALLOW_ANSWER:
                continue
            if fault is not None:
                frame = frame.replace(fault.elsewhere, fault.containing)
                await asyncio.sleep(fault.delay_s)
            await _send(target, self._proxy.readdressed(frame))


class FaultProxy:
    """A proxy before each of the given brokers; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        """bootstrap: the brokers' addresses on loopback, host:port, by comma."""
        self._brokers = [int(one.rpartition(":")[2]) for one in bootstrap.split(",")]
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._swap: list[tuple[bytes, bytes]] = []
        self._is_refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self.gate = asyncio.Event()
        self.requests: Counter[int] = Counter()
        self.bootstrap = ""

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._on_loop(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def inject(
        self,
        api: Api,
        harm: Harm,
        *,
        times: int = 1,
        containing: bytes = b"",
        delay_s: float = 0.0,
    ) -> Fault:
        """Let the next `times` requests of this kind, that hold these bytes, come to harm."""
        fault = Fault(api=api, harm=harm, times=times, containing=containing, delay_s=delay_s)
        self._call(lambda: self._faults.append(fault))
        return fault

    def heal(self) -> None:
        """Let no fault strike any more, take connections, carry what was held."""

        def whole() -> None:
            self._faults.clear()
            self._is_refusing = False
            self.gate.set()

        self._call(whole)

    def fall_silent(self) -> None:
        """Carry nothing in either direction, on any connection, until `heal`: half-open links."""
        self._call(self.gate.clear)

    def refuse(self) -> None:
        """Cut every connection and end each new one at once, until `heal`."""

        def ended() -> None:
            self._is_refusing = True
            self._cut()

        self._call(ended)

    def cut(self) -> int:
        """Cut every connection now; new ones are taken. Return how many there were."""
        return self._call(self._cut)

    def abandon(self) -> int:
        """Carry nothing more on the connections of now, and keep them open: the peer has vanished
        without a word. New ones are carried. Return how many were abandoned.
        """

        def left() -> int:
            for task in self._tasks:
                task.cancel()
            return len(self._links)

        return self._call(left)

    def strike(self, api: int, request: bytes) -> Fault | None:
        """Return the fault that meets this request, if any (proxy's thread)."""
        self.requests[api] += 1
        return next((fault for fault in self._faults if fault.meets(api, request)), None)

    def readdressed(self, frame: bytes) -> bytes:
        """Return an answer in which the brokers stand at the proxy's addresses."""
        for old, new in self._swap:
            frame = frame.replace(old, new)
        return frame

    async def _open(self) -> None:
        self.gate.set()
        ports: list[int] = []
        for broker in self._brokers:
            server = await asyncio.start_server(self._taker(broker), HOST, 0)
            self._servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])
            self._swap.append((_address(broker), _address(ports[-1])))
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in ports)

    def _taker(
        self, broker: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_refusing:
                writer.close()
                return
            try:
                far_reader, far_writer = await asyncio.open_connection(HOST, broker)
            except OSError:
                writer.close()
                return
            link = _Link(self, (writer, far_writer))
            self._links.add(link)
            pair = (
                link.carry_requests(reader, far_writer), link.carry_answers(far_reader, writer)
            )  # fmt: skip
            tasks = {asyncio.create_task(_until_closed(one)) for one in pair}
            self._tasks |= tasks
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not any(task.cancelled() for task in tasks):
                    self._end(link)
            finally:
                self._tasks -= tasks
                for task in tasks:
                    task.cancel()

        return take

    def _end(self, link: _Link) -> None:
        link.close()
        self._links.discard(link)

    def _cut(self) -> int:
        links = tuple(self._links)
        for link in links:
            self._end(link)
        return len(links)

    async def _close(self) -> None:
        self.gate.set()
        for server in self._servers:
            server.close()
        self._cut()
        for task in tuple(self._tasks):
            task.cancel()
        # One more turn, so that every task has ended before the loop does.
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=_LIMIT_S)

    def _call(self, call: Callable[[], T]) -> T:
        async def made() -> T:
            return call()

        return self._on_loop(made())

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)


def _address(port: int) -> bytes:
    return HOST.encode() + struct.pack(">i", port)


async def _until_closed(work: Coroutine[Any, Any, None]) -> None:
    # A link ends when either side does; that is no failure of the proxy.
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await work


async def _frame(source: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await source.readexactly(4))
    assert 0 < size <= _FRAME_BYTES_MAX, f"a frame of {size} bytes is none of Kafka's"
    return await source.readexactly(size)


async def _send(target: asyncio.StreamWriter, frame: bytes) -> None:
    target.write(struct.pack(">i", len(frame)) + frame)
    await target.drain()
