"""A tokenizer with merges: many id sequences spell one text, and encoding takes one (case C17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.core.messages import Message
from inference.tokenizer import ByteTokenizer, sha256_of

_MERGES = {"ab": 300, "abc": 301, "bc": 302, "  ": 303, "12": 304, "123": 305}
_PIECES = {number: text for text, number in _MERGES.items()}


class MergingTokenizer:
    """Bytes plus a few merges; encoding takes the longest merge, decoding takes any."""

    def __init__(self) -> None:
        self._bytes = ByteTokenizer()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end of a message."""
        return self._bytes.stop_ids

    @property
    def vocabulary(self) -> int:
        """Bytes, special ids and merges."""
        return 306

    @property
    def renders_tools(self) -> bool:
        """It does not."""
        return False

    @property
    def digest(self) -> str:
        """Fixed."""
        return sha256_of(b"merging")

    @property
    def template_digest(self) -> str:
        """Fixed."""
        return self._bytes.template_digest

    def encode(self, text: str) -> list[int]:
        """Return ids, the longest merge first."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            for size in (3, 2):
                if text[at : at + size] in _MERGES:
                    ids.append(_MERGES[text[at : at + size]])
                    at += size
                    break
            else:
                end = at + 1
                if text.startswith(("<|im_start|>", "<|im_end|>"), at):
                    end = text.index("|>", at) + 2
                ids += self._bytes.encode(text[at:end])
                at = end
        return ids

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text."""
        flat = [b for i in ids for b in (_PIECES[i].encode() if i in _PIECES else (i,))]
        return self._bytes.decode(flat, with_special=with_special)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = False,
    ) -> str:
        """Return the ChatML text."""
        return self._bytes.render(messages, tools=tools, generate=generate)
