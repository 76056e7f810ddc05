"""Text of the tokens of a story, for `sluice replay --tokenizer` and the live page.

A folder with the file `tokenizer.json` is read by the library that wrote it, in a tenth of a
second; transformers, which any other takes, needs seconds of the processor to be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference.tokenizer import ByteTokenizer
from infra.replay import Story
from schemas.errors import SettingsError


def token_texts(folder: Path, story: Story) -> dict[int, tuple[str, ...]]:
    """Return the text of each token by WAL offset. Raises SettingsError when the folder holds no
    tokenizer.

    A token that is part of a character shows as the replacement character; the joined ids decode
    whole.
    """
    tokenizer = _load(folder)
    return _texts(story, lambda token: str(tokenizer.decode([token], skip_special_tokens=False)))


def byte_texts(story: Story) -> dict[int, tuple[str, ...]]:
    """Return the same for a run whose scripted engine has bytes for tokens, whatever lies in the
    folder of its model.
    """
    tokenizer = ByteTokenizer()
    return _texts(story, lambda token: tokenizer.decode([token], with_special=True))


def _texts(story: Story, text_of: Callable[[int], str]) -> dict[int, tuple[str, ...]]:
    known: dict[int, str] = {}
    out: dict[int, tuple[str, ...]] = {}
    for commit in story.commits:
        for token in commit.token_ids:
            if token not in known:
                known[token] = text_of(token)
        out[commit.offset] = tuple(known[token] for token in commit.token_ids)
    return out


def _load(folder: Path) -> Any:
    file = folder / "tokenizer.json"
    try:
        if not any(folder.glob("tokenizer*")) and not any(folder.glob("vocab*")):
            raise FileNotFoundError("no such files are in it")
        if file.is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_str(file.read_text())
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise SettingsError(
            f"{folder} holds no tokenizer that can be read here: {error}",
            hint="name the folder of the model, where transformers is installed",
        ) from error
