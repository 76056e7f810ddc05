"""A gateway for tests of environments: the HTTP contract over a log in memory, without an engine.

Several `FakeGateway`s may share one `FakeWal`, as inference workers share `tokens`. A policy is a
function of (episode, turn, messages) that returns the reply's text.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from environments.core.tool_text import read_reply
from schemas.bearer import read
from schemas.enums import Role, WorkerStatus
from schemas.errors import RejectedError
from schemas.ids import RunId, WorkerId
from schemas.records.worker_state import WorkerState

Policy: TypeAlias = Callable[[str, int, list[dict[str, Any]]], str]


@dataclass(kw_only=True)
class FakeTurn:
    """A sampled turn."""

    text: str
    finish: str
    offset: int
    result_offsets: list[int]

    @property
    def tokens(self) -> int:
        return max(1, len(self.text.split()))


@dataclass(kw_only=True)
class FakeEpisode:
    """The WAL of one episode: its fence and its turns."""

    fence: tuple[int, int] = (0, 0)
    turns: list[FakeTurn] = field(default_factory=list)
    sampled: int = 0


class FakeWal:
    """What all gateways share."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.finish = "stop"
        self.episodes: dict[str, FakeEpisode] = {}
        self._offsets = itertools.count(100)

    def episode(self, episode_id: str) -> FakeEpisode:
        return self.episodes.setdefault(episode_id, FakeEpisode())

    def position(self) -> int:
        return next(self._offsets)


class FakeGateway:
    """One inference worker as environments see it."""

    def __init__(self, wal: FakeWal, name: str = "inference-1") -> None:
        self.wal = wal
        self.name = name
        self.address = ""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[tuple[int, dict[str, Any]]] = []
        """Answered, and used up, before anything else."""
        self.spoil: Callable[[dict[str, Any]], None] | None = None
        """Changes the answer of a turn before it is sent."""
        self.hold = asyncio.Event()
        """Cleared: turns from `hold_from` on wait until it is set."""
        self.hold_from = 0
        self.hold.set()

    def state(self, run_id: RunId, **changes: Any) -> WorkerState:
        """Return the record by which it announces itself."""
        fields: dict[str, Any] = {
            "run_id": run_id,
            "worker_id": WorkerId(self.name),
            "role": Role.INFERENCE,
            "address": self.address,
            "incarnation": f"{self.name}-a",
            "status": WorkerStatus.READY,
            "at_us": 1,
            "writer_id": WorkerId(self.name),
        }
        return WorkerState(**{**fields, **changes})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeGateway]:
        """Listen on a free port of the loopback while the context lasts."""
        app = web.Application()
        app.router.add_post("/v1/sessions", self._open)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def refuse(self, status: int, code: str, **more: Any) -> None:
        """Refuse the next request."""
        self.refusals.append(
            (status, {"error": {"code": code, "message": code, "hint": "", **more}})
        )

    async def _begin(self, request: web.Request) -> tuple[dict[str, Any], str, int]:
        body = await request.json()
        self.requests.append((request.path, body))
        if self.refusals:
            status, answer = self.refusals.pop(0)
            raise _stop(status, answer)
        token = request.headers["Authorization"].removeprefix("Bearer ")
        try:
            episode_id, attempt = read(b"secret", token)
        except RejectedError as error:
            answer = {"error": {"code": "unauthorised", "message": str(error)}}
            raise _stop(401, answer) from error
        return body, episode_id, attempt

    async def _open(self, request: web.Request) -> web.Response:
        body, episode_id, attempt = await self._begin(request)
        episode = self.wal.episode(episode_id)
        pair = (attempt, body["fence_number"])
        if pair <= episode.fence:
            code = "fenced" if attempt < episode.fence[0] else "refence"
            error = {
                "code": code,
                "message": "a higher fence is current",
                "fence_number": episode.fence[1],
                "attempt": episode.fence[0],
            }
            return web.json_response({"error": error}, status=409)
        episode.fence = pair
        turns = []
        for number, turn in enumerate(episode.turns):
            common = {"turn": number, "branch": 0, "tokens": turn.tokens, "finished": True}
            given = {"kind": "observation" if number else "prompt", "text": "", "offset": 0}
            offsets = {"result_offset": -1, "result_offsets": turn.result_offsets}
            turns.append(common | given | offsets | {"finish_reason": "none"})
            said = {"kind": "action", "text": turn.text, "offset": turn.offset}
            turns.append(common | said | {"finish_reason": turn.finish, "result_offset": -1})
        return web.json_response(
            {
                "attempt": pair[0],
                "fence_number": pair[1],
                "position": self.wal.position(),
                "length": sum(turn.tokens for turn in episode.turns),
                "turns": turns,
            }
        )

    async def _chat(self, request: web.Request) -> web.Response:
        body, episode_id, attempt = await self._begin(request)
        episode = self.wal.episode(episode_id)
        place = body["sluice"]
        if (attempt, place["fence_number"]) != episode.fence:
            error = {"code": "refence", "message": "", "fence_number": episode.fence[1]}
            return web.json_response({"error": error}, status=409)
        number = place["turn"]
        if number >= self.hold_from:
            await self.hold.wait()
        assert number <= len(episode.turns), "turns come one after the other"
        if number == len(episode.turns):
            episode.sampled += 1
            episode.turns.append(
                FakeTurn(
                    text=self.wal.policy(episode_id, number, body["messages"]),
                    finish=self.wal.finish,
                    offset=self.wal.position(),
                    result_offsets=list(place["result_offsets"]),
                )
            )
        answer = self._answer(body, episode, number)
        if self.spoil is not None:
            self.spoil(answer)
        return web.json_response(answer)

    def _answer(self, body: dict[str, Any], episode: FakeEpisode, number: int) -> dict[str, Any]:
        turn = episode.turns[number]
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if body.get("tools"):
            message["content"], calls = read_reply(turn.text)
            if calls:
                message["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in calls
                ]
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": turn.finish}],
            "usage": {"prompt_tokens": 1, "completion_tokens": turn.tokens},
            "sluice": {
                "attempt": episode.fence[0],
                "fence_number": episode.fence[1],
                "position": turn.offset,
                "turn": number,
                "branch": 0,
                "length": sum(turn.tokens for turn in episode.turns),
                "finish_reason": turn.finish,
            },
        }


def _stop(status: int, answer: dict[str, Any]) -> web.HTTPException:
    import json

    class Refusal(web.HTTPException):
        status_code = status

    return Refusal(text=json.dumps(answer), content_type="application/json")
