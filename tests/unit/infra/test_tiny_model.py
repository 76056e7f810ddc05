"""The tiny model: the same files from the same seed, and a template that only appends."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from infra.setup.tiny_model import TURN_END, make_tiny_model, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>'
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2*3?"},
    {"role": "assistant", "content": CALL},
    {"role": "tool", "content": "6"},
    {"role": "assistant", "content": "6"},
    {"role": "user", "content": "And 7?"},
]
TOOL = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_the_same_seed_gives_the_same_files_and_another_seed_other_weights(tmp_path: Path) -> None:
    first = digests(make_tiny_model(tmp_path / "a", 7, warm_up_steps=2))
    again = digests(make_tiny_model(tmp_path / "b", 7, warm_up_steps=2))
    other = digests(make_tiny_model(tmp_path / "c", 8, warm_up_steps=2))
    assert first == again
    assert first["model.safetensors"] != other["model.safetensors"]
    assert first["tokenizer.json"] == other["tokenizer.json"]


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_appending_a_message_leaves_the_text_before_it_as_it_was(
    tools: list[dict[str, object]] | None,
) -> None:
    tokenizer = make_tokenizer()

    def text(count: int, prompt: bool = False) -> str:
        rendered = tokenizer.apply_chat_template(
            TALK[:count], tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        assert isinstance(rendered, str)
        return rendered

    for count in range(1, len(TALK)):
        assert text(count + 1).startswith(text(count))
        if TALK[count]["role"] == "assistant":
            said = text(count, prompt=True) + TALK[count]["content"] + TURN_END
            assert text(count + 1).startswith(said)


def test_every_text_comes_back_from_its_tokens() -> None:
    tokenizer = make_tokenizer()
    for text in ("7 * 8 = 56", "äöü 漢字 \U0001f600", CALL, "  two  spaces\n\ttab"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
