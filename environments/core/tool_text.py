"""Reads tool calls out of a reply's plain text, for models whose gateway does not parse them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from environments.ports import Message, Reply, ToolCall, ToolOutput

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:python|py)\n(.*?)(?:```|\Z)", re.DOTALL)


def tool_calls(reply: Reply) -> tuple[ToolCall, ...]:
    """Return the calls of a reply: the gateway's own, else those tagged
    `<tool_call>{json}</tool_call>`.

    A tagged text that is no JSON object with a name becomes a call with an empty name, which no
    tool has, so that the policy is told. Source of the tags: the Hermes chat template.
    """
    if reply.tool_calls:
        return reply.tool_calls
    return tuple(_tagged(index, body) for index, body in enumerate(_TAGGED.findall(reply.text)))


def _tagged(index: int, body: str) -> ToolCall:
    try:
        raw = json.loads(body)
        arguments = raw.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return ToolCall(id=f"call_{index}", name=str(raw["name"]), arguments=text)
    except (ValueError, KeyError, AttributeError):
        return ToolCall(id=f"call_{index}", name="", arguments=body)


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
    """Return the outputs as messages: of role tool where the gateway read the call, else of role
    user.

    A chat template without tools would refuse or drop messages of role tool.
    """
    return tuple(
        Message(role="tool", content=output.output, tool_call_id=calls[index].id)
        if index < len(calls)
        else Message(role="user", content=output.output)
        for index, output in enumerate(outputs)
    )
