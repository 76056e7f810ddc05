"""The live page over a folder of tables, in a process of its own: `python -m ... FOLDER`.

Prints its address; ends when its standard input closes. The story that it tells is one fixed one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson

from infra.dashboard.site import page_files
from schemas.errors import SettingsError
from stream_jobs.sink_engines import EmbeddedEngine, Limits
from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_pages import Pages
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store

KNOWN = "run-1.0.0"
STORY = {
    "episode_id": KNOWN, "attempts": 2, "stop_cause": "done", "abandoned": None,
    "verdict": {"code": "correct", "reward": 1.0}, "decision": {"outcome": "admit"},
    "step": {"version": "1/1", "ordinal": 1, "survives": True},
    "commits": [
        {"kind": "prompt", "turn": 0, "attempt": 1, "offset": 3, "timestamp_ms": 1_764_442_001_000,
         "start": 0, "token_ids": [5, 6], "logprobs": [], "versions": [],
         "stands": ["main", "main"], "text": ["What ", "is it? "]},
        {"kind": "action", "turn": 0, "attempt": 1, "offset": 4, "timestamp_ms": 1_764_442_002_000,
         "start": 2, "token_ids": [7, 8], "logprobs": [-0.5, -0.25],
         "versions": [{"start": 2, "end": 3, "version": "0/0"},
                      {"start": 3, "end": 4, "version": "1/1"}],
         "stands": ["main", "superseded"], "text": ["forty-", "two"]},
    ],
    "tool_calls": [{"tool": "calculator", "arguments": "6*7", "output": "42", "exit_class": "ok",
                    "unknown": False}],
    "timeline": [{"timestamp_ms": 1_764_442_000_500, "topic": "episodes.v1", "offset": 1,
                  "kind": "issued", "what": "issued by the scheduler"}],
}  # fmt: skip


async def _story(episode: str) -> bytes:
    await asyncio.sleep(0)
    if episode != KNOWN:
        raise SettingsError(f"run run-1 has no episode {episode}", hint="choose one of the page")
    return orjson.dumps(STORY)


async def main(folder: Path) -> None:
    """Serve until the parent closes the pipe."""
    limits = Limits(seconds_max=20, rows_max=100_000, memory_bytes_max=2_000_000_000)
    store = await Store.open(lambda: EmbeddedEngine(folder, limits))
    settings = SinkSettings(tables_dir=str(folder), address_file="", listen_port=0)
    endpoint = Endpoint(store, settings, Pages(files=page_files(), story=_story))
    await endpoint.start()
    sys.stdout.write(endpoint.url + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await endpoint.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
