"""Clients that ask slowly, take nothing, come in crowds, pack wrongly or leave."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from stream_jobs import sink_clients, sink_http
from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from tests.support.environment_world import until

LARGE = 8 << 20


class LargeEngine:
    """An engine whose every answer is large, once it is let go."""

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()
        self.let_go.set()

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        raise AssertionError(table, data, settings)

    def run(self, statement: str) -> bytes:
        raise AssertionError(statement)

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        assert self.let_go.wait(20), (form, parameters)
        self.asked.append(statement)
        return b"x" * LARGE if "large" in statement else b"small"

    def close(self) -> None:
        """Nothing to release."""


class Client:
    """A connection that sends what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, text: bytes) -> None:
        self.writer.write(text)

    def ask(self, statement: bytes, headers: bytes = b"") -> None:
        length = b"Content-Length: %d\r\n" % len(statement)
        self.say(b"POST / HTTP/1.1\r\nHost: x\r\n" + headers + length + b"\r\n" + statement)

    async def answer(self) -> bytes:
        """Return all of one answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head + await self.reader.readexactly(size)

    async def is_cut(self) -> bool:
        try:
            return await self.reader.read(1 << 30) == b""
        except ConnectionError:
            return True


class Stand:
    """An endpoint and its clients."""

    def __init__(self, engine: LargeEngine, endpoint: Endpoint) -> None:
        self.engine, self._endpoint = engine, endpoint
        self._clients: list[Client] = []

    async def client(self) -> Client:
        port = int(self._endpoint.url.rpartition(":")[2])
        # As little as may be waits on this side.
        pair = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        self._clients.append(Client(*pair))
        return self._clients[-1]

    async def told(self, statement: bytes) -> bytes:
        client = await self.client()
        client.ask(statement)
        return await client.answer()

    def close(self) -> None:
        for one in self._clients:
            one.writer.transport.abort()


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """An endpoint over such an engine."""
    engine = LargeEngine()
    store = await Store.open(lambda: engine)
    endpoint = Endpoint(store, SinkSettings())
    await endpoint.start()
    one = Stand(engine, endpoint)
    yield one
    engine.let_go.set()
    one.close()
    await endpoint.stop()
    await store.close()


async def test_a_request_that_does_not_become_whole_is_cut_and_others_are_answered(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_clients, "REQUEST_S", 0.3)
    monkeypatch.setattr(sink_http, "REQUEST_S", 0.3)
    head, again, body = [await stand.client() for _ in range(3)]
    head.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le")
    again.ask(b"SELECT 1")
    assert (await again.answer()).endswith(b"small")
    again.say(b"POST / HT")
    body.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nSELECT")
    assert (await stand.told(b"SELECT 1")).endswith(b"small")
    async with asyncio.timeout(5):
        assert await head.is_cut()
        assert await again.is_cut()
        assert b" 408 " in await body.answer()


async def test_one_connection_is_asked_for_many_answers_and_a_quiet_one_is_closed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_clients, "_QUIET_S", 0.3)
    client = await stand.client()
    for _ in range(20):
        client.ask(b"SELECT 1")
    for _ in range(20):
        assert (await client.answer()).endswith(b"small")
    async with asyncio.timeout(5):
        assert await client.is_cut()


async def test_more_connections_than_may_be_are_turned_away_and_places_become_free_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_clients, "CONNECTIONS_MAX", 3)
    held = [await stand.client() for _ in range(3)]
    for one in held:
        one.ask(b"SELECT 1")
        assert b" 200 " in await one.answer()
    more = await stand.client()
    told = await more.answer()
    assert told.startswith(b"HTTP/1.1 503 ")
    assert told.endswith(b"Code: 202. DB::Exception: too many connections to this\n")
    held[0].writer.close()

    async def is_let_in() -> bool:
        return b" 200 " in await stand.told(b"SELECT 1")

    async with asyncio.timeout(5):
        while not await is_let_in():
            await asyncio.sleep(0.01)


async def test_answers_that_nobody_takes_are_bounded_and_cut_in_the_end(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_clients, "ANSWERS_BYTES_MAX", 2 * LARGE)
    monkeypatch.setattr(sink_clients, "ROOM_S", 0.2)
    greedy = [await stand.client() for _ in range(6)]
    for number, one in enumerate(greedy):
        one.ask(b"SELECT 'large %d'" % number)
    async with asyncio.timeout(10):
        told = await stand.told(b"SELECT 'last'")
    assert b" 503 " in told
    assert told.endswith(b"answers that nobody takes fill the memory\n")
    # Two and the one that passes the bound: what the sink holds of them does not grow with clients.
    assert len(stand.engine.asked) == 3
    monkeypatch.setattr(sink_clients, "BYTES_PER_S", 1 << 40)
    for one in greedy[:3]:
        one.writer.transport.abort()
    assert (await stand.told(b"SELECT 'again'")).endswith(b"small")


async def test_an_answer_is_cut_off_whose_client_takes_it_too_slowly(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_clients, "ANSWERS_BYTES_MAX", LARGE - 1)
    monkeypatch.setattr(sink_clients, "ANSWER_S", 0.3)
    monkeypatch.setattr(sink_clients, "BYTES_PER_S", 1 << 40)
    slow = await stand.client()
    slow.ask(b"SELECT 'large'")
    await until(lambda: stand.engine.asked == ["SELECT 'large'"])
    async with asyncio.timeout(5):
        assert (await stand.told(b"SELECT 'next'")).endswith(b"small")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await slow.answer()


async def test_a_large_answer_comes_whole(stand: Stand) -> None:
    async with asyncio.timeout(10):
        told = await stand.told(b"SELECT 'large'")
    assert told.endswith(b"\r\n\r\n" + b"x" * LARGE)


async def test_who_has_left_is_not_asked_for(stand: Stand) -> None:
    stand.engine.let_go.clear()
    first, *gone = [await stand.client() for _ in range(5)]
    first.ask(b"SELECT 'first'")
    for one in gone:
        one.ask(b"SELECT 'gone'")
    await asyncio.sleep(0.2)
    for one in gone:
        one.writer.transport.abort()
    await asyncio.sleep(0.1)
    stand.engine.let_go.set()
    assert (await first.answer()).endswith(b"small")
    assert (await stand.told(b"SELECT 'last'")).endswith(b"small")
    assert stand.engine.asked == ["SELECT 'first'", "SELECT 'last'"]


@pytest.mark.parametrize(
    ("packing", "body"),
    [
        (b"gzip", b"\x1f\x8b\x08garbage"),
        (b"deflate", b"zzzz"),
        (b"br", b"zzzz"),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_the_callers_mistake(
    stand: Stand, packing: bytes, body: bytes
) -> None:
    client = await stand.client()
    client.ask(body, b"Content-Encoding: " + packing + b"\r\n")
    async with asyncio.timeout(15):
        assert b" 400 " in await client.answer()
    assert not stand.engine.asked


async def test_a_packed_body_is_unpacked_up_to_its_bound(stand: Stand) -> None:
    for size, status in ((10, b" 200 "), (50_000_000, b" 413 ")):
        client = await stand.client()
        packed = gzip.compress(b"SELECT '" + b"x" * size + b"'", compresslevel=1)
        client.ask(packed, b"Content-Encoding: gzip\r\n")
        async with asyncio.timeout(5):
            assert status in await client.answer()
