"""Requests of the gateway as typed values: JSON is taken apart here, once, and refused by name when
it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
from aiohttp import web

from inference.refusals import Code, RefusedError
from inference.wal_writer import OpenRequest
from schemas.bearer import read
from schemas.errors import RejectedError
from schemas.ids import EpisodeId

Body: TypeAlias = Mapping[str, Any]
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: authorised by the bearer token for one attempt of one episode."""

    episode_id: EpisodeId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a turn is to be sampled, as far as the request says."""

    tokens_max: int | None
    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the request stands in its episode: the `sluice` object of the body."""

    fence_number: int | None
    turn: int | None
    branch: int | None
    result_offsets: tuple[int, ...]
    may_fork: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A request for one turn, by messages, text or ids."""

    caller: Caller
    place: Place
    sampling: Sampling
    stream: bool
    usage_in_stream: bool
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None


def caller_of(request: web.Request, secret: bytes) -> Caller:
    """Return who asks; raise RefusedError when the bearer token is missing or not ours."""
    header = request.headers.get("Authorization", "")
    if not header.startswith(_BEARER):
        raise RefusedError(
            Code.UNAUTHORISED, "no bearer token", hint="send Authorization: Bearer TOKEN"
        )
    try:
        episode_id, attempt = read(secret, header[len(_BEARER) :])
    except RejectedError as error:
        raise RefusedError(Code.UNAUTHORISED, error.message, hint=error.hint) from error
    return Caller(episode_id=episode_id, attempt=attempt)


async def body_of(request: web.Request) -> Body:
    """Return the JSON object of a request; raise RefusedError for anything else."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise _bad(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _bad("the body is no JSON object")
    return body


def read_open(body: Body, caller: Caller) -> OpenRequest:
    """Return the opening of a session."""
    episode = body.get("episode_id", caller.episode_id)
    attempt = _integer(body, "attempt", caller.attempt)
    if episode != caller.episode_id or attempt != caller.attempt:
        raise RefusedError(
            Code.UNAUTHORISED,
            f"the token is for attempt {caller.attempt} of {caller.episode_id}",
            hint="use the token of the attempt that is opened",
        )
    return OpenRequest(
        episode_id=caller.episode_id,
        attempt=attempt,
        fence_number=_needed(_integer(body, "fence_number", None), "fence_number"),
        tokens_floor=_integer(body, "tokens_floor", -1) or 0,
        is_first=body.get("first", False) is True,
    )


def read_turn(body: Body, caller: Caller, *, kind: str) -> TurnRequest:
    """Return the request for a turn; `kind` is chat, text or ids. Raises RefusedError naming the
    field.
    """
    if _integer(body, "n", 1) != 1:
        raise _bad("n must be 1", "one generation at a time per episode; ask for more episodes")
    if body.get("stop"):
        raise _bad("stop strings are not supported", "a turn ends at the model's own stop ids")
    options = body.get("stream_options") or {}
    return TurnRequest(
        caller=caller,
        place=_place(body.get("sluice") or {}),
        sampling=_sampling(body),
        stream=body.get("stream", False) is True,
        usage_in_stream=isinstance(options, dict) and options.get("include_usage") is True,
        messages=_messages(body) if kind == "chat" else None,
        tools=_objects(body, "tools") if kind == "chat" else None,
        prompt=_prompt(body) if kind == "text" else None,
        token_ids=_ids(body.get("token_ids")) if kind == "ids" else None,
    )


def _place(raw: Any) -> Place:
    if not isinstance(raw, dict):
        raise _bad("sluice must be an object")
    offsets = raw.get("result_offsets") or ()
    if not isinstance(offsets, list | tuple) or any(type(o) is not int for o in offsets):
        raise _bad("sluice.result_offsets must be a list of offsets")
    return Place(
        fence_number=_integer(raw, "fence_number", None),
        turn=_integer(raw, "turn", None),
        branch=_integer(raw, "branch", None),
        result_offsets=tuple(offsets),
        may_fork=raw.get("fork", False) is True,
    )


def _sampling(body: Body) -> Sampling:
    tokens_max = _integer(body, "max_completion_tokens", None) or _integer(body, "max_tokens", None)
    if tokens_max is not None and tokens_max < 1:
        raise _bad("max_tokens must be at least 1")
    temperature, top_p = _number(body, "temperature"), _number(body, "top_p")
    if temperature < 0 or not 0 < top_p <= 1:
        raise _bad("temperature must be 0 or more, and top_p above 0 and at most 1")
    return Sampling(
        tokens_max=tokens_max,
        temperature=temperature,
        top_p=top_p,
        top_k=_integer(body, "top_k", 0) or 0,
    )


def _messages(body: Body) -> tuple[Mapping[str, Any], ...]:
    messages = _objects(body, "messages")
    if not messages:
        raise _bad("messages must be a list with at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise _bad(f"messages[{index}] has no role")
        for call in message.get("tool_calls") or ():
            if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
                raise _bad(f"messages[{index}].tool_calls is not a list of function calls")
    return messages


def _objects(body: Body, name: str) -> tuple[Mapping[str, Any], ...] | None:
    raw = body.get(name)
    if raw is None:
        return None
    if not isinstance(raw, list) or any(not isinstance(item, dict) for item in raw):
        raise _bad(f"{name} must be a list of objects")
    return tuple(raw)


def _prompt(body: Body) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise _bad("prompt must be one text", "send ids to /v1/tokens")
    return prompt


def _ids(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise _bad("token_ids must be a list of token ids")
    if any(type(i) is not int or not 0 <= i < 2**31 for i in raw):
        raise _bad("token_ids must be whole numbers from 0")
    return tuple(raw)


def _integer(body: Body, name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _bad(f"{name} must be a whole number")
    return value


def _needed(value: int | None, name: str) -> int:
    if value is None:
        raise _bad(f"{name} is missing")
    return value


def _number(body: Body, name: str) -> float:
    value = body.get(name)
    if value is None:
        return 1.0
    if type(value) not in (int, float):
        raise _bad(f"{name} must be a number")
    return float(value)


def _bad(what: str, hint: str = "see the gateway's interface") -> RefusedError:
    return RefusedError(Code.BAD_REQUEST, what, hint=hint)
