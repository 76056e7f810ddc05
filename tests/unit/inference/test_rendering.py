"""Templates that rewrite history are refused at start; tools are told to models that know none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inference.core.messages import Message
from inference.rendering import Renderer, probe
from inference.tokenizer import ByteTokenizer, tools_digest
from schemas.errors import SettingsError

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ASK: list[Message] = [{"role": "user", "content": "2+2?"}]


class ForgetsThoughts(ByteTokenizer):
    """A template that drops the reasoning of all turns but the last, as some models' do."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = False,
    ) -> str:
        """Drop what stands before </think> in earlier turns."""
        last = len(messages) - 1
        kept = [
            {**m, "content": m["content"].partition("</think>")[2] or m["content"]}
            if index < last
            else dict(m)
            for index, m in enumerate(messages)
        ]
        return super().render(kept, tools=tools, generate=generate)


class CountsMessages(ByteTokenizer):
    """A template that writes the number of messages first."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = False,
    ) -> str:
        """Write the count, then the messages."""
        return f"{len(messages)}:" + super().render(messages, tools=tools, generate=generate)


@pytest.mark.parametrize("tokenizer", [ForgetsThoughts(), CountsMessages()])
def test_a_template_that_is_not_append_only_is_refused_with_a_hint(
    tokenizer: ByteTokenizer,
) -> None:
    with pytest.raises(SettingsError, match="not append-only") as refused:
        probe(tokenizer)
    assert "chat_template" in refused.value.hint


def test_an_append_only_template_passes() -> None:
    probe(ByteTokenizer())


def test_tools_are_shown_in_the_system_message_that_is_there() -> None:
    tokenizer = ByteTokenizer()
    system: Message = {"role": "system", "content": "Be brief."}
    text = tokenizer.decode(Renderer(tokenizer).first([system, *ASK], [TOOL]))
    assert "Be brief." in text
    assert '"name": "add"' in text
    assert text.count("system") == 1


def test_the_closing_is_written_in_full_when_the_turn_ran_into_its_limit() -> None:
    tokenizer = ByteTokenizer()
    render = Renderer(tokenizer)
    stopped = render.after_turn(ASK, last_id=tokenizer.END_ID)
    cut = render.after_turn(ASK, last_id=65)
    assert cut == [tokenizer.END_ID, *stopped]


def test_the_digest_of_a_tool_schema_does_not_depend_on_the_order_of_its_keys() -> None:
    turned = {"function": {"parameters": {"type": "object"}, "name": "add"}, "type": "function"}
    assert tools_digest([TOOL]) == tools_digest([turned])
    assert tools_digest([TOOL]) != tools_digest(None)
