"""Answers of the gateway in the shapes of the OpenAI API, each with a `sluice` object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from inference.core.messages import Reply, read_reply
from inference.release import DurableTokens
from inference.turn import Answer
from schemas.tool_calls import TOOL_OPEN

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every answer of one request carries."""

    request_id: str
    created_s: int
    """Seconds since 1970."""
    model: str
    is_chat: bool
    with_tools: bool


def sluice_part(answer: Answer) -> Json:
    """Return where the answer stands in the log."""
    return {
        "attempt": answer.attempt,
        "fence_number": answer.fence_number,
        "position": answer.position,
        "turn": answer.turn,
        "branch": answer.branch,
        "length": answer.length,
        "finish_reason": answer.finish_reason.value,
        "policy_versions": sorted({str(v) for v in answer.versions}),
    }


def usage(answer: Answer) -> Json:
    """Return the token counts."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.reused_tokens},
    }


def whole(head: Head, text: str, answer: Answer) -> Json:
    """Return the answer of a request that does not stream."""
    reply = read_reply(text, with_tools=head.with_tools)
    choice: Json = {"index": 0, "finish_reason": finish_of(reply, answer), "logprobs": None}
    if head.is_chat:
        message: Json = {"role": "assistant", "content": reply.content}
        if reply.calls:
            message["tool_calls"] = tool_calls(reply, answer)
        choice["message"] = message
    else:
        choice["text"] = text
    return {
        "id": head.request_id,
        "object": "chat.completion" if head.is_chat else "text_completion",
        "created": head.created_s,
        "model": head.model,
        "choices": [choice],
        "usage": usage(answer),
        "sluice": sluice_part(answer),
    }


def finish_of(reply: Reply, answer: Answer) -> str:
    """Return the OpenAI finish reason."""
    return "tool_calls" if reply.calls else answer.finish_reason.value


def tool_calls(reply: Reply, answer: Answer) -> list[Json]:
    """Return the calls of a reply; their ids name turn and call, so that a replay repeats them."""
    return [
        {
            "id": f"call_{answer.branch}_{answer.turn}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.calls)
    ]


class ChunkWriter:
    """Turns the text of one turn into server-sent events; a tool call is held back until it is
    whole.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._text = ""
        self._sent = 0

    def first(self) -> bytes:
        """Return the opening event."""
        delta = {"role": "assistant", "content": ""}
        return self._event(delta if self._head.is_chat else "")

    def more(self, text: str) -> bytes:
        """Return the event for more text; empty when nothing may be said yet."""
        self._text += text
        until = len(self._text)
        if self._head.with_tools:
            until = _before_call(self._text)
        new = self._text[self._sent : until]
        if not new:
            return b""
        self._sent = until
        return self._event({"content": new} if self._head.is_chat else new)

    def last(self, answer: Answer, *, with_usage: bool) -> bytes:
        """Return the closing events."""
        reply = read_reply(self._text, with_tools=self._head.with_tools)
        events = b""
        if self._head.is_chat and reply.calls:
            calls = [{"index": i, **c} for i, c in enumerate(tool_calls(reply, answer))]
            events += self._event({"tool_calls": calls})
        elif self._sent < len(self._text):
            rest = self._text[self._sent :]
            events += self._event({"content": rest} if self._head.is_chat else rest)
        events += self._event(
            {} if self._head.is_chat else "", finish=finish_of(reply, answer), answer=answer
        )
        if with_usage:
            events += _sse({**self._frame(), "choices": [], "usage": usage(answer)})
        return events + b"data: [DONE]\n\n"

    def _event(
        self, said: Json | str, *, finish: str | None = None, answer: Answer | None = None
    ) -> bytes:
        name = "delta" if self._head.is_chat else "text"
        frame = self._frame()
        frame["choices"] = [{"index": 0, name: said, "finish_reason": finish, "logprobs": None}]
        if answer is not None:
            frame["sluice"] = sluice_part(answer)
        return _sse(frame)

    def _frame(self) -> Json:
        kind = "chat.completion.chunk" if self._head.is_chat else "text_completion"
        return {
            "id": self._head.request_id,
            "object": kind,
            "created": self._head.created_s,
            "model": self._head.model,
        }


def _before_call(text: str) -> int:
    """Return how much of a text is certainly before any tool call."""
    at = text.find(TOOL_OPEN)
    if at >= 0:
        return at
    for size in range(min(len(TOOL_OPEN) - 1, len(text)), 0, -1):
        if text.endswith(TOOL_OPEN[:size]):
            return len(text) - size
    return len(text)


def _sse(body: Json) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def error_event(body: dict[str, object]) -> bytes:
    """Return the event that ends a stream with an error."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def tokens_reply(head: Head, pieces: list[DurableTokens], answer: Answer) -> Json:
    """Return ids, log-probs and policy spans of a turn."""
    return {
        "id": head.request_id,
        "object": "tokens",
        "created": head.created_s,
        "model": head.model,
        "token_ids": [i for piece in pieces for i in piece.ids],
        "logprobs": [value for piece in pieces for value in piece.logprobs],
        "spans": [
            [span.start, span.end, span.version.epoch, span.version.number]
            for piece in pieces
            for span in piece.spans
        ],
        "finish_reason": answer.finish_reason.value,
        "usage": usage(answer),
        "sluice": sluice_part(answer),
    }
