"""The live page over a folder of tables, in a process of its own: `python -m ... FOLDER MODEL`.

Prints its address; ends when its standard input closes. Stories are read by the code of the sink,
from a recorded run on the memory bus; MODEL is a folder for the tokenizer that reads their tokens,
made here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

from infra.dashboard.site import page_files, story_of
from schemas.enums import TokenKind, ToolEventKind
from schemas.errors import BusUnreachableError
from schemas.ids import Version
from schemas.packing import Span, crc32c, pack_spans
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.topics import Topic
from stream_jobs.sink_engines import EmbeddedEngine, Limits
from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_pages import Pages
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from tests.support.recorded_run import RecordedRun
from tests.support.run_records import RUN

WORDS = ("zero ", "one ", "<b>two</b> ", "three ", "four ", "five ")
"""What the token ids of the recorded run read as."""
UNREACHED = f"{RUN}.99.0"
"""An episode for whose story no broker answers."""


def changed(topic: Topic[Any], record: Any) -> Any:
    """Return a record of the recorded run as the page is shown it: second turns are sampled by two
    versions, and the tool says something and takes its time.
    """
    del topic
    match record:
        case TokenCommit(kind=TokenKind.ACTION, turn=1, start=start, count=count):
            spans = pack_spans(
                [
                    Span(start, start + 1, Version(0, 0)),
                    Span(start + 1, start + count, Version(1, 1)),
                ]
            )
            return dataclasses.replace(
                record, spans=spans, crc32c=crc32c(record.token_ids, record.logprobs, spans)
            )
        case ToolEvent(kind=ToolEventKind.INTENT):
            return dataclasses.replace(record, arguments='{"left": 40, "right": 2}')
        case ToolEvent(kind=ToolEventKind.RESULT):
            return dataclasses.replace(record, output="42", duration_us=12_500)
    return record


def make_tokenizer(folder: Path) -> None:
    """Write a tokenizer of a few words as a model's folder holds it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    Tokenizer(WordLevel(vocabulary, unk_token=WORDS[0])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


async def main(folder: Path, model: Path) -> None:
    """Serve until the parent closes the pipe."""
    make_tokenizer(model)
    bus = RecordedRun(changed).write()
    told = partial(
        story_of, consumers=bus.consumers(), run_id=RUN, starts={}, codec=bus.codec, model=model
    )

    async def story(episode: str) -> bytes:
        if episode == UNREACHED:
            raise BusUnreachableError("no broker answers", hint="is it running?")
        return await told(episode)

    limits = Limits(seconds_max=20, rows_max=100_000, memory_bytes_max=2_000_000_000)
    store = await Store.open(lambda: EmbeddedEngine(folder, limits))
    settings = SinkSettings(tables_dir=str(folder), address_file="", listen_port=0)
    endpoint = Endpoint(store, settings, Pages(files=page_files(), story=story))
    await endpoint.start()
    sys.stdout.write(endpoint.url + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await endpoint.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
