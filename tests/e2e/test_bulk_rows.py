"""Commits that are read in bulk are the same rows in real tables as commits read one by one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from consumers.client import message_of
from schemas.ids import RunId
from schemas.ports import Delivered, Frames
from schemas.topics import TOKENS
from stream_jobs.core.sink_slabs import Held, Slab, in_bulk
from tests.support.commit_bytes import ODD, codec, plain
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RUN = RunId("run-1")
CODEC = codec()
SIZE = 400


def alone(frames: Frames) -> list[Held]:
    found: list[Held] = []
    rows = zip(frames.offsets, frames.timestamps_ms, frames.raws, strict=True)
    for offset, at, raw in rows:
        place = (frames.topic, frames.partition, offset)
        message = message_of(CODEC, place, at, key=None, raw=raw)
        assert isinstance(message, Delivered)
        found.append(message)
    return found


def in_slabs(frames: Frames) -> list[Held]:
    found: list[Held] = []
    for one in in_bulk(frames, RUN, CODEC.frame(TOKENS)):
        found += [one] if isinstance(one, Slab) else alone(one)
    return found


@pytest.mark.parametrize("behind_http", [False, True])
def test_the_tables_hold_the_same_rows_whichever_way_they_were_read(
    behind_http: bool,
    tmp_path: Path,
) -> None:
    random = Random(8)
    raws = [CODEC.encode(TOKENS, plain(random, run=RUN)) for _ in range(SIZE)]
    for index, odd in enumerate(ODD.values()):
        raws[index] = odd(plain(random, run=RUN))
    tables = Tables(tmp_path, behind_http=behind_http)
    for partition, read in enumerate((alone, in_slabs)):
        frames = Frames(
            topic=TOKENS.name, partition=partition, offsets=range(SIZE),
            timestamps_ms=[1_764_442_000_000 + index for index in range(SIZE)],
            keys=[None] * SIZE, raws=raws,
        )  # fmt: skip
        held = read(frames)
        assert any(isinstance(one, Slab) for one in held) == (read is in_slabs)
        # Under its token a range is inserted once, in whichever way it is read the next time.
        tables.insert(TOKENS, held, f"range of {partition}")
        tables.insert(TOKENS, in_slabs(frames), f"range of {partition}")
    asked = (
        "SELECT * EXCEPT src_partition FROM token_commits WHERE src_partition = {p:UInt16} "
        "ORDER BY src_offset"
    )
    one_by_one, in_bulk_rows = (tables.ask(asked, {"p": str(n)}) for n in range(2))
    assert len(one_by_one) == SIZE
    assert one_by_one == in_bulk_rows
    tables.close()
