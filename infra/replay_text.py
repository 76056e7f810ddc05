"""Text of the tokens of a story. Loads transformers, so only `sluice replay --tokenizer` imports
it, late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.replay import Story
from schemas.errors import SettingsError


def token_texts(folder: Path, story: Story) -> dict[int, tuple[str, ...]]:
    """Return the text of each token by WAL offset. Raises SettingsError when the folder holds no
    tokenizer.

    A token that is part of a character shows as the replacement character; the joined ids decode
    whole.
    """
    tokenizer = _load(folder)
    known: dict[int, str] = {}
    out: dict[int, tuple[str, ...]] = {}
    for commit in story.commits:
        for token in commit.token_ids:
            if token not in known:
                known[token] = tokenizer.decode([token], skip_special_tokens=False)
        out[commit.offset] = tuple(known[token] for token in commit.token_ids)
    return out


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{folder} holds no tokenizer: {error}", hint="name the folder of the model"
        ) from error
