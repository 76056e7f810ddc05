"""The story of an episode as the live page gets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.dashboard.site import page_files, story_of
from infra.replay import replay, to_json
from schemas.errors import SettingsError
from tests.support.memory_bus import MemoryBus
from tests.support.page_process import WORDS, changed, make_tokenizer
from tests.support.recorded_run import RESUMED, RecordedRun
from tests.support.run_records import RUN


async def _story(episode: str, model: Path | None, bus: MemoryBus | None = None) -> Any:
    bus = bus or RecordedRun(changed).write()
    told = await story_of(
        episode, consumers=bus.consumers(), run_id=RUN, starts={}, codec=bus.codec, model=model
    )
    return json.loads(told)


async def test_a_story_is_that_of_the_replay_with_the_words_of_the_tokens(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    was_there = "transformers" in sys.modules
    bus = RecordedRun(changed).write()
    told = await _story(RESUMED, tmp_path, bus)
    texts = [commit.pop("text") for commit in told["commits"]]
    for commit, words in zip(told["commits"], texts, strict=True):
        assert words == [WORDS[token] for token in commit["token_ids"]]
    assert sum(map(len, texts)) == 15
    plain = to_json(await replay(bus.consumers(), RUN, RESUMED, codec=bus.codec))
    assert told == json.loads(json.dumps(plain))
    # Its import takes seconds, in the process that fills the tables.
    assert ("transformers" in sys.modules) == was_there


async def test_tokens_that_are_bytes_read_as_bytes_whatever_lies_in_the_folder_of_the_model(
    tmp_path: Path,
) -> None:
    make_tokenizer(tmp_path)
    bus = RecordedRun(changed).write()
    told = await story_of(
        RESUMED, consumers=bus.consumers(), run_id=RUN, starts={}, codec=bus.codec,
        model=tmp_path, has_bytes=True,
    )  # fmt: skip
    commits = json.loads(told)["commits"]
    ids = [token for commit in commits for token in commit["token_ids"]]
    assert ids
    assert [text for commit in commits for text in commit["text"]] == [chr(one) for one in ids]


async def test_a_story_is_told_where_no_tokenizer_is(tmp_path: Path) -> None:
    for model in (None, tmp_path, tmp_path / "elsewhere"):
        told = await _story(RESUMED, model)
        assert told["attempts"] == 2
        assert all("text" not in commit for commit in told["commits"])


async def test_what_is_no_episode_of_the_run_has_no_story() -> None:
    for name in ("run-2.0.0", "run-1", "", "run-1.0.0.g"):
        with pytest.raises(SettingsError, match="is no episode of run run-1"):
            await _story(name, None)


def test_every_file_that_the_page_names_is_served() -> None:
    front = page_files()["index.html"].body.decode()
    named = {name for name in page_files() if f'"{name}"' in front}
    assert named == set(page_files()) - {"index.html"}
