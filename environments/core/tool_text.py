"""Reads tool calls and code out of a reply's plain text, and turns outputs into messages.

The gateway reads calls by the same rule, `schemas/tool_calls.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from environments.ports import Message, ToolCall, ToolOutput
from schemas.tool_calls import take_apart

_FENCED = re.compile(r"```(?:python|py)\n(.*?)(?:```|\Z)", re.DOTALL)


def read_reply(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return content and calls of a turn's whole text; a call's id counts the calls of the turn."""
    content, calls = take_apart(text)
    return content, tuple(
        ToolCall(id=f"call_{index}", name=call.name, arguments=call.arguments)
        for index, call in enumerate(calls)
    )


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
