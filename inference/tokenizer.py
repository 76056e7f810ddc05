"""The one place with a tokenizer: text to ids and back, chat template, digests of both.

transformers is imported only when a model's tokenizer is opened. The byte tokenizer serves the
scripted engine and tests; it has no merges, so its ids and bytes map one to one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from inference.core.messages import Message
from schemas.errors import Boundary, SettingsError

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


class Tokenizer(Protocol):
    """What rendering and release need of a tokenizer."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    @property
    def vocabulary(self) -> int:
        """Ids are below this. Unit: ids."""
        ...

    @property
    def renders_tools(self) -> bool:
        """Whether the chat template itself shows the tool schema to the model."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of the tokenizer."""
        ...

    @property
    def template_digest(self) -> str:
        """sha256 of the chat template."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens in it recognised and none added."""
        ...

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text of ids; special tokens are left out unless asked for."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = False,
    ) -> str:
        """Return the chat template's text, an assistant message begun when `generate`."""
        ...


def sha256_of(*parts: bytes) -> str:
    """Return the hex sha256 of the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def tools_digest(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the digest of a tool schema; no tools are the empty list."""
    text = json.dumps(list(tools or ()), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_of(text.encode())


class ModelTokenizer:
    """The tokenizer and chat template in a model folder, through transformers."""

    def __init__(self, folder: Path) -> None:
        """Open the folder offline; raise SettingsError when it holds no tokenizer or no chat
        template.
        """
        from transformers import AutoTokenizer

        try:
            self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"no tokenizer can be opened in {folder}: {error}",
                boundary=Boundary.ENGINE,
                hint="model_path must name a folder with tokenizer.json and its configuration",
            ) from error
        template = self._inner.chat_template
        if not isinstance(template, str) or not template:
            raise SettingsError(
                f"the tokenizer in {folder} has no chat template",
                boundary=Boundary.ENGINE,
                hint="add chat_template.jinja to the model folder",
            )
        self._template = template
        self._digest = sha256_of(
            *(
                name.encode() + b"\0" + (folder / name).read_bytes()
                for name in _FILES
                if (folder / name).is_file()
            )
        )
        self._stop_ids = _stop_ids(folder, self._inner)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: the model's end-of-sequence ids."""
        return self._stop_ids

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""
        return len(self._inner)

    @property
    def renders_tools(self) -> bool:
        """Whether the template mentions tools."""
        return "tools" in self._template

    @property
    def digest(self) -> str:
        """sha256 over the tokenizer's files."""
        return self._digest

    @property
    def template_digest(self) -> str:
        """sha256 of the chat template's text."""
        return sha256_of(self._template.encode())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text of ids."""
        text: str = self._inner.decode(
            list(ids), skip_special_tokens=not with_special, clean_up_tokenization_spaces=False
        )
        return text

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = False,
    ) -> str:
        """Return the chat template's text."""
        text: str = self._inner.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            add_generation_prompt=generate,
            tokenize=False,
        )
        return text


def _stop_ids(folder: Path, inner: Any) -> tuple[int, ...]:
    found: list[int] = [] if inner.eos_token_id is None else [int(inner.eos_token_id)]
    generation = folder / "generation_config.json"
    if generation.is_file():
        named = json.loads(generation.read_text()).get("eos_token_id")
        found += [int(i) for i in (named if isinstance(named, list) else [named]) if i is not None]
    return tuple(dict.fromkeys(found))


_START, _END = "<|im_start|>", "<|im_end|>"


class ByteTokenizer:
    """One id per UTF-8 byte and two special ids, with the ChatML template."""

    START_ID = 256
    END_ID = 257

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The id of the end of a message."""
        return (self.END_ID,)

    @property
    def vocabulary(self) -> int:
        """256 bytes and two special ids."""
        return 258

    @property
    def renders_tools(self) -> bool:
        """The template knows no tools."""
        return False

    @property
    def digest(self) -> str:
        """A fixed digest: the tokenizer is code."""
        return sha256_of(b"byte tokenizer 1")

    @property
    def template_digest(self) -> str:
        """A fixed digest: the template is code."""
        return sha256_of(b"byte tokenizer ChatML 1")

    def encode(self, text: str) -> list[int]:
        """Return bytes, and the special ids where their names stand in the text."""
        ids: list[int] = []
        for number, part in enumerate(text.split(_START)):
            if number:
                ids.append(self.START_ID)
            for place, piece in enumerate(part.split(_END)):
                if place:
                    ids.append(self.END_ID)
                ids.extend(piece.encode())
        return ids

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text; bytes that are no UTF-8 become the replacement character."""
        out = bytearray()
        for i in ids:
            if i < 256:
                out.append(i)
            elif with_special:
                out += (_START if i == self.START_ID else _END).encode()
        return out.decode(errors="replace")

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # noqa: ARG002  the template knows none
        generate: bool = False,
    ) -> str:
        """Return the ChatML text."""
        text = "".join(f"{_START}{m['role']}\n{m.get('content') or ''}{_END}\n" for m in messages)
        return text + (f"{_START}assistant\n" if generate else "")
