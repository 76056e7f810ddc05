"""Chat messages to text, append-only: the first prompt whole, afterwards only what is new.

History tokens are never rendered again. What follows a sampled turn is rendered against a fixed
stub conversation, and `probe` refuses at start a template for which that differs from the whole
rendering (design section 5, case C17).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inference.core.messages import Message, plain
from inference.tokenizer import Tokenizer
from schemas.errors import Boundary, SettingsError
from schemas.tool_calls import TOOL_CLOSE, TOOL_OPEN

_STUB: tuple[Message, ...] = (
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
)
_REPLY = "\u2603reply\u2603"


class Renderer:
    """Renders the parts of a conversation that are tokenised, each exactly once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        answered = tokenizer.render((*_STUB, {"role": "assistant", "content": _REPLY}))
        self._answered = answered
        self._closing = answered.partition(_REPLY)[2]

    def first(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Return the ids of the first prompt, the start of the assistant's message included."""
        shown = [plain(message) for message in messages]
        if tools and not self._tokenizer.renders_tools:
            shown = with_tool_preamble(shown, tools)
            tools = None
        return self._tokenizer.encode(self._tokenizer.render(shown, tools=tools, generate=True))

    def after_turn(self, messages: Sequence[Message], *, last_id: int | None) -> list[int]:
        """Return the ids that follow a sampled turn: its closing, the new messages, the next
        assistant start.

        `last_id` is the turn's last token: a stop id has written the beginning of the closing
        already.
        """
        whole = self._tokenizer.render(
            (*_STUB, {"role": "assistant", "content": _REPLY}, *map(plain, messages)), generate=True
        )
        closing = self._closing
        if last_id is not None and last_id in self._tokenizer.stop_ids:
            stop = self._tokenizer.decode([last_id], with_special=True)
            closing = closing.removeprefix(stop)
        return self._tokenizer.encode(closing + whole.removeprefix(self._answered))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        return self._tokenizer.stop_ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(ids, with_special=with_special)


def with_tool_preamble(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Tell a model whose template knows no tools about them, in the system message."""
    listed = "\n".join(
        json.dumps(tool.get("function", tool), ensure_ascii=False, sort_keys=True) for tool in tools
    )
    preamble = (
        f"You can call these tools:\n{listed}\n"
        f'To call one, write {TOOL_OPEN}{{"name": ..., "arguments": {{...}}}}{TOOL_CLOSE} and stop.'
    )
    if messages and messages[0]["role"] == "system":
        head = {"role": "system", "content": f"{messages[0]['content']}\n\n{preamble}"}
        return [head, *messages[1:]]
    return [{"role": "system", "content": preamble}, *messages]


_CONVERSATION: tuple[Message, ...] = (
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "First question?"},
    {"role": "assistant", "content": "<think>\nIt is two.\n</think>\n\nThe first answer."},
    {"role": "user", "content": "Second question?"},
    {"role": "assistant", "content": "The second answer."},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "The third answer."},
    {"role": "user", "content": "Last question?"},
)


def probe(tokenizer: Tokenizer) -> None:
    """Refuse a chat template under which a longer conversation does not extend a shorter one (case
    C17).

    Raises SettingsError that shows where the two part.
    """
    before = ""
    for length, message in enumerate(_CONVERSATION, start=1):
        messages = _CONVERSATION[:length]
        if message["role"] == "assistant":
            _must_extend(tokenizer.render(messages), before, length)
            before = tokenizer.render(messages)
        elif length > 1:
            _must_extend(tokenizer.render(messages, generate=True), before, length)
            before = tokenizer.render(messages, generate=True)
    renderer_text = tokenizer.render(_STUB, generate=True)
    _must_extend(
        tokenizer.render((*_STUB, {"role": "assistant", "content": _REPLY})), renderer_text, 3
    )


def _must_extend(longer: str, shorter: str, length: int) -> None:
    if longer.startswith(shorter):
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(longer, shorter, strict=False)) if a != b),
        min(len(longer), len(shorter)),
    )
    raise SettingsError(
        f"the chat template is not append-only: with {length} messages, character {at} changes "
        f"from {shorter[at : at + 24]!r} to {longer[at : at + 24]!r}",
        boundary=Boundary.ENGINE,
        hint="a template must not rewrite earlier messages, as one does that drops old reasoning; "
        "edit chat_template.jinja in the model folder",
    )
