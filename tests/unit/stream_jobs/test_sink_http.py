"""The SQL endpoint when more is asked than it may hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from tests.support.environment_world import until

WAITING_MAX = 32


class HeldEngine:
    """An engine that answers no query before it is let go."""

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = False

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked: list[str] = []

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        raise AssertionError(table, data, settings)

    def run(self, statement: str) -> bytes:
        raise AssertionError(statement)

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        assert self.let_go.wait(20), (form, parameters)
        self.asked.append(statement)
        return statement.encode()

    def close(self) -> None:
        """Nothing to release."""


class Stand:
    """An endpoint over a held engine, and a client."""

    def __init__(self, engine: HeldEngine, url: str, http: aiohttp.ClientSession) -> None:
        self.engine, self.url, self.http = engine, url, http
        self.answers: list[tuple[int, str]] = []

    async def ask(self, statement: str) -> tuple[int, str]:
        async with self.http.post(self.url, data=statement) as answer:
            told = (answer.status, await answer.text())
            self.answers.append(told)
            return told


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """An endpoint that listens."""
    engine = HeldEngine()
    store = await Store.open(lambda: engine)
    endpoint = Endpoint(store, SinkSettings())
    await endpoint.start()
    connector = aiohttp.TCPConnector(limit=100)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield Stand(engine, endpoint.url, http)
    engine.let_go.set()
    await endpoint.stop()
    await store.close()


async def test_who_asks_while_too_many_wait_is_told_so_at_once_and_the_others_are_answered(
    stand: Stand,
) -> None:
    asked = [asyncio.create_task(stand.ask(f"SELECT {n}")) for n in range(WAITING_MAX + 8)]
    await until(lambda: len(stand.answers) == 8)
    for status, text in stand.answers:
        assert status == 503
        assert text == f"Code: 202. DB::Exception: {WAITING_MAX} queries are waiting already\n"
    async with stand.http.get(f"{stand.url}/ping") as answer:
        assert (answer.status, await answer.text()) == (200, "Ok.\n")
    stand.engine.let_go.set()
    answers = await asyncio.gather(*asked)
    assert sum(status == 200 for status, _ in answers) == WAITING_MAX == len(stand.engine.asked)
    assert (await stand.ask("SELECT 'again'"))[0] == 200, "the places are free again"


async def test_refused_statements_take_no_place(stand: Stand) -> None:
    for _ in range(WAITING_MAX + 1):
        assert (await stand.ask("DROP TABLE tasks"))[0] == 403
    stand.engine.let_go.set()
    assert await stand.ask("SELECT 1") == (200, "SELECT 1")


async def test_a_statement_longer_than_may_be_is_refused(stand: Stand) -> None:
    async with stand.http.post(stand.url, data=b"SELECT '" + b"x" * 300_000) as answer:
        assert answer.status == 413
    assert not stand.engine.asked
