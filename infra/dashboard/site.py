"""The files of the live page, and the story of an episode for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import orjson

from infra import replay as stories
from infra.replay_text import byte_texts, token_texts
from schemas.codec import Codec
from schemas.errors import SettingsError
from schemas.ids import EpisodeId, RunId, run_of_episode
from schemas.ports import Consumers, Starts
from stream_jobs.sink_pages import PageFile

_LOG = logging.getLogger("sluice.dashboard")
_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def page_files() -> Mapping[str, PageFile]:
    """Return every file of the page by its name."""
    return {
        path.name: PageFile(content_type=_TYPES[path.suffix], body=path.read_bytes())
        for path in sorted(_STATIC.iterdir())
        if path.suffix in _TYPES
    }


async def story_of(
    episode: str,
    *,
    consumers: Consumers,
    run_id: RunId,
    starts: Starts,
    codec: Codec,
    model: Path | None,
    has_bytes: bool = False,
) -> bytes:
    """Return the story of an episode of this run as JSON (docs/audit.md).

    model: the folder of the tokenizer that says what the tokens read as. Where it is None, or lies
    on another machine, the story holds ids alone. has_bytes: the tokens are bytes, whatever lies
    there. Raises SettingsError when the episode is none of this run.
    """
    try:
        is_ours = run_of_episode(EpisodeId(episode)) == run_id
    except ValueError:
        is_ours = False
    if not is_ours:
        raise SettingsError(
            f"{episode} is no episode of run {run_id}", hint="choose one of the page"
        )
    story = await stories.replay(consumers, run_id, EpisodeId(episode), starts, codec=codec)
    texts = byte_texts(story) if has_bytes else None
    if model is not None and not has_bytes:
        # Beside the loop, which is the sink's: it goes on writing and answering meanwhile.
        try:
            texts = await asyncio.to_thread(token_texts, model, story)
        except SettingsError as error:
            _LOG.warning("a story is told by token ids alone: %s", error)
    return orjson.dumps(stories.to_json(story, texts=texts))
