"""Chat messages as plain text, and a model's reply taken apart into content and tool calls.

How a call is written stands in `schemas/tool_calls.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from schemas.tool_calls import TOOL_CLOSE, TOOL_OPEN, Call, take_apart

Message: TypeAlias = Mapping[str, Any]
"""One chat message as the OpenAI API names its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a sampled turn says."""

    content: str
    calls: tuple[Call, ...] = ()


def read_reply(text: str, *, with_tools: bool) -> Reply:
    """Take a reply apart; without tools in the request all of it is content."""
    if not with_tools or TOOL_OPEN not in text:
        return Reply(content=text)
    content, calls = take_apart(text)
    return Reply(content=content, calls=calls)


def write_call(name: str, arguments: Any) -> str:
    """Return a tool call as the model is told to write it; text that is no JSON is kept."""
    shown = _parsed(arguments) if isinstance(arguments, str) else arguments
    body = json.dumps({"name": name, "arguments": shown}, ensure_ascii=False)
    return f"{TOOL_OPEN}{body}{TOOL_CLOSE}"


def plain(message: Message) -> dict[str, Any]:
    """Return a message that any template can show: role and text, tool calls written out."""
    text = content_of(message)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        text += write_call(str(function["name"]), function.get("arguments", "{}"))
    return {"role": str(message["role"]), "content": text}


def content_of(message: Message) -> str:
    """Return the text of a message, the parts of a list joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def says_exactly(message: Message, reply: Reply) -> bool:
    """Whether an assistant message is the reply as it was handed out, character by character."""
    calls = _calls_of(message)
    return content_of(message) == reply.content and calls == [
        (c.name, c.arguments) for c in reply.calls
    ]


def says_the_same(message: Message, reply: Reply, text: str) -> bool:
    """Whether an assistant message differs from the reply in spacing and JSON layout only.

    A client may also send the raw text of the turn back, tool calls included.
    """
    if plain(message)["content"].strip() == text.strip():
        return True
    theirs = [(name, _parsed(arguments)) for name, arguments in _calls_of(message)]
    ours = [(c.name, _parsed(c.arguments)) for c in reply.calls]
    return content_of(message).strip() == reply.content.strip() and theirs == ours


def _calls_of(message: Message) -> list[tuple[str, Any]]:
    calls: Sequence[Any] = message.get("tool_calls") or ()
    return [(str(c["function"]["name"]), c["function"].get("arguments", "{}")) for c in calls]


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments
