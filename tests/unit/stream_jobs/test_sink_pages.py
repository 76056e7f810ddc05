"""What the live page is told where there is no story: whose turn it is, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from schemas.errors import (
    Boundary,
    BusUnreachableError,
    FencedError,
    InvariantError,
    PoisonRecordError,
    RejectedError,
    SettingsError,
    SluiceError,
    TransientError,
    UnknownOutcomeError,
)
from stream_jobs import sink_pages
from stream_jobs.sink_pages import PageFile, Pages, Story, add_pages

EPISODE = "run-1.0.0"
AGAIN = "ask again in a moment; if it stays so, does the bus answer others?"
LOG = "the log of the sink says more"
ERRORS: list[tuple[SluiceError, int, str]] = [
    (SettingsError("no record of it", hint="choose another"), 404, "choose another"),
    (SettingsError("no record of it"), 404, "choose one of the page"),
    (SettingsError("no right to read", boundary=Boundary.BUS, hint="grant it"), 500, "grant it"),
    (BusUnreachableError("no broker answers", hint="start it"), 503, "start it"),
    (TransientError("a read broke off", boundary=Boundary.BUS), 503, AGAIN),
    (InvariantError("two ends of one episode"), 500, LOG),
    (PoisonRecordError("cannot be decoded", boundary=Boundary.BUS), 500, LOG),
    (FencedError("superseded"), 500, LOG),
    (RejectedError("not in the log"), 500, LOG),
    (UnknownOutcomeError("nobody knows"), 500, LOG),
]


@asynccontextmanager
async def page(story: Story | None) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    """Serve the page; asks for the story of an episode."""
    app = web.Application()
    front = PageFile(content_type="text/html", body=b"<p>")
    add_pages(app, Pages(files={"index.html": front}, story=story))
    async with TestServer(app) as server, aiohttp.ClientSession() as http:

        async def ask(episode: str) -> tuple[int, str]:
            async with http.get(server.make_url(f"/dashboard/story/{episode}")) as answer:
                return answer.status, await answer.text()

        yield ask


@pytest.mark.parametrize(("error", "status", "hint"), ERRORS)
async def test_each_error_has_the_status_of_whoever_must_act_and_says_what_to_do(
    error: SluiceError, status: int, hint: str
) -> None:
    async def story(_: str) -> bytes:
        raise error

    async with page(story) as ask:
        assert await ask(EPISODE) == (status, f"{error.message} [{error.boundary}] -> {hint}\n")


async def test_what_is_no_episode_id_is_refused_before_anything_is_read() -> None:
    read: list[str] = []

    async def story(episode: str) -> bytes:
        read.append(episode)
        return b"{}"

    async with page(story) as ask:
        for name in ("run-1", "run-1.0.0.g", "..0", ".0.0"):
            status, text = await ask(name)
            assert (status, text) == (
                400,
                f"not an episode id: {name!r}; expected RUN.ORDINAL.MEMBER"
                " -> choose one of the page\n",
            )
        assert not read
        assert await ask(EPISODE) == (200, "{}")
    assert read == [EPISODE]


async def test_topics_that_take_too_long_and_a_page_without_a_bus_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_pages, "STORY_S", 0.05)

    async def story(_: str) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async with page(story) as ask:
        assert await ask(EPISODE) == (504, f"the topics took more than 0 s -> {AGAIN}\n")
    async with page(None) as ask:
        status, text = await ask(EPISODE)
    assert (status, text) == (
        503,
        "stories are read from the topics, and no bus was reached"
        " -> start the bus, then `sluice dashboard` again\n",
    )
