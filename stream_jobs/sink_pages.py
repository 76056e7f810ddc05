"""The live page beside the SQL endpoint: files given from outside, and the story of an episode.

Waits for: the topics, when a story is asked for (`STORY_S`). Invariants: the page loads nothing
from anywhere else, and says so to the browser; an answer that is no story says by its status who
must act, and in its text what happened and what to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from schemas.errors import Boundary, SettingsError, SluiceError, TransientError
from schemas.ids import EpisodeId, run_of_episode

_LOG = logging.getLogger("sluice.sink")
STORY_S = 45.0
_STORIES_AT_ONCE = 2
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_AGAIN = "ask again in a moment; if it stays so, does the bus answer others?"
_UNREACHED = "stories are read from the topics, and no bus was reached"
_NO_BUS = "start the bus, then `sluice dashboard` again"
Story = Callable[[str], Awaitable[bytes]]
"""Episode id to its story as JSON. Raises SettingsError when there is no such episode in the run,
TransientError while the topics cannot be read.
"""
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
    story: Story | None = None


async def _told(tell: Story, episode: str, room: asyncio.Semaphore) -> web.Response:
    try:
        run_of_episode(EpisodeId(episode))
    except ValueError as error:
        return _no_story(400, str(error), "choose one of the page")
    try:
        async with asyncio.timeout(STORY_S), room:
            story = await tell(episode)
    except TimeoutError:
        return _no_story(504, f"the topics took more than {STORY_S:.0f} s", _AGAIN)
    except SluiceError as error:
        status, otherwise = _status_of(error)
        if status == web.HTTPInternalServerError.status_code:
            _LOG.error("no story of %s: %s", episode, error)
        return _no_story(status, f"{error.message} [{error.boundary}]", error.hint or otherwise)
    return web.Response(body=story, content_type="application/json", headers=_HEADERS)


def _status_of(error: SluiceError) -> tuple[int, str]:
    """Return the status of an answer without a story, and what to do where the error names
    nothing.
    """
    match error:
        case SettingsError(boundary=Boundary.SETTINGS):
            # What was asked for is not there; a setting of the bus or a store is another's to mend.
            return 404, "choose one of the page"
        case TransientError():
            return 503, _AGAIN
        case _:
            return 500, "the log of the sink says more"


def _no_story(status: int, what: str, hint: str) -> web.Response:
    return web.Response(status=status, text=f"{what} -> {hint}\n", headers=_HEADERS)


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
            return _no_story(503, _UNREACHED, _NO_BUS)
        return await _told(pages.story, request.match_info["episode"], room)

    app.router.add_get("/dashboard", front)
    app.router.add_get("/dashboard/", file)
    app.router.add_get("/dashboard/story/{episode}", story)
    app.router.add_get("/dashboard/{name}", file)
