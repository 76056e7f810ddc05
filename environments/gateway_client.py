"""The environment's side of the gateway's HTTP: sessions and turns as typed answers.

Waits for an answer inside the caller's Deadline, and no longer than the worker is known to live.
Every refusal is a value that says what to do next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import aiohttp

from environments.core.episode_commands import AskGateway, OpenSession
from environments.core.episode_state import PastTurn
from environments.lease_facts import Lease
from environments.ports import Message, Reply
from schemas.bearer import issue
from schemas.deadline import Deadline
from schemas.enums import FinishReason, TokenKind
from schemas.ports import Clock
from schemas.records.task import Task
from schemas.records.worker_state import WorkerState
from schemas.tracing import attempt_span, trace_of_episode, traceparent, turn_span

_LOOK_S = 0.5


class Refused(StrEnum):
    """What a refusal asks of the environment."""

    REFENCE = "refence"
    """Name a higher fence number and open the session again."""
    REPEAT = "repeat"
    """Ask the same again a little later."""
    TURN_AWAY = "turn_away"
    """Turn to another worker under a higher fence number."""
    TOO_LONG = "too_long"
    """The conversation does not fit the model's context."""
    OURS = "ours"
    """The environment broke the rules of the gateway."""
    QUARANTINED = "quarantined"
    """The call was taken back; another attempt may sample it again."""


_CODES: Mapping[str, Refused] = {
    "refence": Refused.REFENCE,
    "fenced": Refused.REFENCE,
    "bus_unknown": Refused.REFENCE,
    "busy": Refused.REPEAT,
    "overloaded": Refused.REPEAT,
    "deadline": Refused.REPEAT,
    "engine_failed": Refused.TURN_AWAY,
    "prompt_too_long": Refused.TOO_LONG,
    "not_append_only": Refused.OURS,
    "unauthorised": Refused.OURS,
    "bad_request": Refused.OURS,
    "version_mismatch": Refused.QUARANTINED,
    "invalid_logprob": Refused.QUARANTINED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The gateway said no, or nothing that can be understood."""

    refused: Refused
    code: str
    message: str
    fence_number: int = -1
    """Highest number the gateway has read; -1 when it does not say."""
    attempt: int = -1
    """Attempt that owns the WAL, when the gateway says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An open session with the accepted prefix."""

    attempt: int
    fence_number: int
    position: int
    length: int
    turns: tuple[PastTurn, ...]
    """Finished turns of the policy."""
    result_offsets: tuple[int, ...]
    """Results that accepted Observations show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A finished turn."""

    attempt: int
    fence_number: int
    position: int
    length: int
    branch: int
    reply: Reply


class GatewayClient:
    """Speaks to gateways; holds the connections of one process."""

    def __init__(
        self, *, clock: Clock, secret: bytes, model: str, connect_timeout_s: float
    ) -> None:
        self._clock = clock
        self._secret = secret
        self._model = model
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def open_session(
        self,
        worker: WorkerState,
        lease: Lease,
        command: OpenSession,
        *,
        deadline: Deadline,
        is_gone: Callable[[], bool],
    ) -> Session | Refusal:
        """Have the gateway fence the episode's WAL and return its accepted prefix."""
        body = {
            "episode_id": lease.episode_id,
            "attempt": lease.attempt,
            "fence_number": command.fence_number,
            "tokens_floor": lease.tokens_floor,
            "first": command.first,
        }
        trace = trace_of_episode(lease.episode_id)
        parent = traceparent(trace, attempt_span(trace, lease.attempt))
        answer = await self._post(worker, "/v1/sessions", lease, parent, body, deadline, is_gone)
        return answer if isinstance(answer, Refusal) else _read(_session, answer)

    async def ask(
        self,
        worker: WorkerState,
        lease: Lease,
        task: Task,
        command: AskGateway,
        *,
        deadline: Deadline,
        is_gone: Callable[[], bool],
    ) -> Turn | Refusal:
        """Ask for a turn and wait until all of it is durable. No sampling seed is ever sent."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [message.to_openai() for message in command.messages],
            "stream": False,
            "temperature": task.temperature,
            "top_p": task.top_p,
            "sluice": {
                "turn": command.turn,
                "branch": command.branch,
                "fence_number": command.fence_number,
                "result_offsets": list(command.result_offsets),
            },
        }
        announced = [tool.to_openai() for tool in command.tools if tool.announced]
        if announced:
            body["tools"] = announced
        if command.max_tokens > 0:
            body["max_tokens"] = command.max_tokens
        if task.top_k > 0:
            body["top_k"] = task.top_k
        trace = trace_of_episode(lease.episode_id)
        turn = turn_span(trace, lease.attempt, command.branch, command.turn)
        answer = await self._post(
            worker, "/v1/chat/completions", lease, traceparent(trace, turn), body, deadline, is_gone
        )
        return answer if isinstance(answer, Refusal) else _read(_turn, answer)

    async def _post(
        self,
        worker: WorkerState,
        path: str,
        lease: Lease,
        parent: str,
        body: dict[str, Any],
        deadline: Deadline,
        is_gone: Callable[[], bool],
    ) -> dict[str, Any] | Refusal:
        token = issue(self._secret, lease.episode_id, lease.attempt)
        url = worker.address.rstrip("/") + path
        asking = asyncio.create_task(self._exchange(url, token, parent, body))
        try:
            while not asking.done():
                left_s = deadline.left_ms(now_ms=self._clock.monotonic_ms()) / 1000
                if left_s <= 0:
                    return _away("no_answer", f"gave up on {deadline.waiting_for}")
                await asyncio.wait({asking}, timeout=min(_LOOK_S, left_s))
                if not asking.done() and is_gone():
                    return _away("worker_gone", f"worker {worker.worker_id} is gone")
            return asking.result()
        finally:
            asking.cancel()

    async def _exchange(
        self, url: str, token: str, parent: str, body: dict[str, Any]
    ) -> dict[str, Any] | Refusal:
        headers = {"Authorization": f"Bearer {token}", "traceparent": parent}
        try:
            async with self._http.post(url, json=body, headers=headers) as response:
                raw = await response.json(content_type=None)
                if not isinstance(raw, dict):
                    return _away("no_json", f"{url} answered {response.status} without an object")
                return raw if response.status == 200 else _refusal(response.status, raw)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            return _away("unreachable", f"{url}: {type(error).__name__}: {error}")


def _away(code: str, message: str) -> Refusal:
    return Refusal(refused=Refused.TURN_AWAY, code=code, message=message)


def _refusal(status: int, raw: dict[str, Any]) -> Refusal:
    error = raw.get("error")
    if not isinstance(error, dict):
        return _away(f"http_{status}", f"status {status} without an error object")
    code = str(error.get("code", ""))
    fence_number, attempt = error.get("fence_number", -1), error.get("attempt", -1)
    return Refusal(
        refused=_CODES.get(code, Refused.TURN_AWAY),
        code=code or f"http_{status}",
        message=f"{error.get('message', '')} -> {error.get('hint', '')}"[:1000],
        fence_number=fence_number if isinstance(fence_number, int) else -1,
        attempt=attempt if isinstance(attempt, int) else -1,
    )


_Answer: TypeAlias = dict[str, Any]
A = TypeVar("A")


def _read(parse: Callable[[_Answer], A], answer: _Answer) -> A | Refusal:
    try:
        return parse(answer)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return _away("malformed", f"the answer lacks or spoils {error}")


def _session(raw: _Answer) -> Session:
    past, shown = [], []
    for turn in raw["turns"]:
        if turn["kind"] != TokenKind.ACTION:
            offsets = turn.get("result_offsets") or [turn.get("result_offset", -1)]
            shown += [int(offset) for offset in offsets if int(offset) >= 0]
        elif turn["finished"]:
            reply = Reply(
                text=str(turn["text"]),
                finish_reason=FinishReason(turn["finish_reason"]),
                tokens=int(turn["tokens"]),
            )
            past.append(
                PastTurn(branch=int(turn["branch"]), reply=reply, offset=int(turn["offset"]))
            )
    return Session(
        attempt=int(raw["attempt"]),
        fence_number=int(raw["fence_number"]),
        position=int(raw["position"]),
        length=int(raw["length"]),
        turns=tuple(past),
        result_offsets=tuple(shown),
    )


def _turn(raw: _Answer) -> Turn:
    place = raw["sluice"]
    message = Message.from_openai(raw["choices"][0]["message"])
    return Turn(
        attempt=int(place["attempt"]),
        fence_number=int(place["fence_number"]),
        position=int(place["position"]),
        length=int(place["length"]),
        branch=int(place["branch"]),
        reply=Reply(
            text=message.content,
            tool_calls=message.tool_calls,
            finish_reason=FinishReason(place["finish_reason"]),
            tokens=int(raw["usage"]["completion_tokens"]),
        ),
    )
