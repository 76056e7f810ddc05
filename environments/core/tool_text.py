"""Reads tool calls and code out of a reply's plain text, and turns outputs into messages.

`read_reply` reads exactly what the gateway reads, so that a turn replayed from the log's text gives
the same calls as the turn had when it was handed out; a test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from environments.ports import Message, ToolCall, ToolOutput

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCED = re.compile(r"```(?:python|py)\n(.*?)(?:```|\Z)", re.DOTALL)


def read_reply(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return content and calls of a turn's whole text.

    A call stands as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; what is tagged but
    is no such JSON stays content. Source of the tags: the Hermes chat template.
    """
    content: list[str] = []
    calls: list[ToolCall] = []
    rest = text
    while rest:
        before, opened, after = rest.partition(_OPEN)
        content.append(before)
        if not opened:
            break
        body, closed, rest = after.partition(_CLOSE)
        call = _call(body, len(calls)) if closed else None
        if call is None:
            content.append(opened + body + closed)
        else:
            calls.append(call)
    said = "".join(content)
    return (said.strip() if calls else said), tuple(calls)


def _call(body: str, index: int) -> ToolCall | None:
    try:
        raw = json.loads(body)
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        return None
    arguments = raw.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=f"call_{index}", name=raw["name"], arguments=text)


def code_blocks(text: str) -> tuple[str, ...]:
    """Return the Python code between fences of a reply."""
    return tuple(_FENCED.findall(text))


def arguments_of(call: ToolCall) -> dict[str, object]:
    """Return the arguments of a call; raise ValueError when they are no JSON object."""
    arguments = json.loads(call.arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments are no JSON object: {call.arguments[:200]!r}")
    return arguments


def tool_messages(calls: Sequence[ToolCall], outputs: Sequence[ToolOutput]) -> tuple[Message, ...]:
    """Return the outputs of calls that the gateway read as messages of role tool, others as user's.

    A chat template without tools would refuse or drop messages of role tool.
    """
    return tuple(
        Message(role="tool", content=output.output, tool_call_id=calls[index].id)
        if index < len(calls)
        else Message(role="user", content=output.output)
        for index, output in enumerate(outputs)
    )
