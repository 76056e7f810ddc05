"""How a model writes a tool call in plain text, and how it is read back.

A call stands as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; what is tagged but is
no such JSON stays content, so that the environment can judge it as an invalid action. Gateway and
environment read by this one rule, so that a turn replayed from the log's text gives the calls that
it had when it was handed out. Source of the tags: the Hermes chat template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call that the model wrote."""

    name: str
    arguments: str
    """A JSON object as text, as the OpenAI API carries it."""


def take_apart(text: str) -> tuple[str, tuple[Call, ...]]:
    """Return content and calls of a turn's whole text."""
    content: list[str] = []
    calls: list[Call] = []
    rest = text
    while rest:
        before, opened, after = rest.partition(TOOL_OPEN)
        content.append(before)
        if not opened:
            break
        body, closed, rest = after.partition(TOOL_CLOSE)
        call = _read(body) if closed else None
        if call is None:
            content.append(opened + body + closed)
        else:
            calls.append(call)
    said = "".join(content)
    return (said.strip() if calls else said), tuple(calls)


def _read(body: str) -> Call | None:
    try:
        raw = json.loads(body)
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        return None
    arguments = raw.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return Call(name=raw["name"], arguments=json.dumps(arguments, ensure_ascii=False))
