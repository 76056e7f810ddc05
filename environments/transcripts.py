"""The transcript of an episode as it travels to the rubric: JSON text of bounded length."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from environments.ports import Message

TRANSCRIPT_BYTES_MAX = 131_072
_CUT = "[... cut ...]"
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_INTEGER_LENGTH_MAX = 19


def to_text(messages: Sequence[Message], *, bytes_max: int = TRANSCRIPT_BYTES_MAX) -> str:
    """Return the messages as JSON of at most `bytes_max` bytes.

    When they are longer, contents are shortened to their ends, the last message last; a rubric sees
    the marker and may refuse. Raises ValueError when even empty messages are too long.
    """
    raw = [message.to_openai() for message in messages]
    text = json.dumps(raw, ensure_ascii=False)
    keep = bytes_max
    while len(text.encode()) > bytes_max:
        keep //= 2
        if keep < len(_CUT):
            raise ValueError(f"{len(messages)} messages do not fit in {bytes_max} bytes")
        for index, message in enumerate(messages):
            room = bytes_max // 2 if index == len(messages) - 1 else keep // max(1, len(messages))
            raw[index] = message.to_openai() | {"content": _shortened(message.content, room)}
        text = json.dumps(raw, ensure_ascii=False)
    return text


def from_text(text: str) -> tuple[Message, ...]:
    """Read messages back; raise ValueError, KeyError or TypeError when it is no transcript."""
    return tuple(Message.from_openai(raw) for raw in json.loads(text))


def _shortened(content: str, room: int) -> str:
    if len(content.encode()) <= room:
        return content
    half = max(0, (room - len(_CUT)) // 8)
    return content[:half] + _CUT + (content[-half:] if half else "")


def last_integer(text: str) -> int | None:
    """Return the last integer in a text, or None. Of a number of more than 18 digits, a part."""
    found = _INTEGER.findall(text)
    return int(found[-1][:_INTEGER_LENGTH_MAX]) if found else None


def last_reply(messages: Sequence[Message]) -> str:
    """Return the content of the last assistant message; empty when there is none."""
    return next((m.content for m in reversed(messages) if m.role == "assistant"), "")
