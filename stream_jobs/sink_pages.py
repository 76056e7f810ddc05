"""The live page beside the SQL endpoint: files given from outside, and the story of an episode.

Waits for: the topics, when a story is asked for (`STORY_S`). Invariant: the page loads nothing from
anywhere else, and says so to the browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from schemas.errors import SluiceError

STORY_S = 45.0
_STORIES_AT_ONCE = 2
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file of the page."""

    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What the sink serves under /dashboard/."""

    files: Mapping[str, PageFile] = field(default_factory=dict)
    story: Callable[[str], Awaitable[bytes]] | None = None
    """Episode id to its story as JSON."""


def add_pages(app: web.Application, pages: Pages) -> None:
    """Serve the pages; without files there is none."""
    if not pages.files:
        return
    room = asyncio.Semaphore(_STORIES_AT_ONCE)

    async def front(request: web.Request) -> web.Response:
        del request
        raise web.HTTPFound("/dashboard/")

    async def file(request: web.Request) -> web.Response:
        found = pages.files.get(request.match_info.get("name") or "index.html")
        if found is None:
            raise web.HTTPNotFound(text="no such file of the page\n")
        return web.Response(
            body=found.body, content_type=found.content_type, charset="utf-8", headers=_HEADERS
        )

    async def story(request: web.Request) -> web.Response:
        if pages.story is None:
            raise web.HTTPNotFound(text="stories are read from the topics, and no bus is reached\n")
        try:
            async with asyncio.timeout(STORY_S), room:
                told = await pages.story(request.match_info["episode"])
        except TimeoutError:
            return web.Response(status=504, text=f"the topics took more than {STORY_S:.0f} s\n")
        except SluiceError as error:
            return web.Response(status=404, text=f"{error}\n")
        return web.Response(body=told, content_type="application/json", headers=_HEADERS)

    app.router.add_get("/dashboard", front)
    app.router.add_get("/dashboard/", file)
    app.router.add_get("/dashboard/story/{episode}", story)
    app.router.add_get("/dashboard/{name}", file)
