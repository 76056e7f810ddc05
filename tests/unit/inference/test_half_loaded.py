"""A load that did not come to its end is no version: nothing is sampled under its number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inference.scripted_engine import version_of
from schemas.enums import RefreshEventKind, TokenKind
from schemas.errors import TransientError
from schemas.ids import Version
from schemas.packing import unpack_logprobs, unpack_spans
from tests.support.inference_stand import (
    action_ids,
    episode,
    inference_settings,
    scripted,
    stand,
    until,
    wal_of,
)  # fmt: skip
from tests.support.learner_records import started
from tests.support.memory_bus import MemoryBus
from tests.unit.inference.test_probe import following, prepare, publish, said

E = episode()
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
START, FIRST = Version(0, 0), Version(1, 1)


def sampled_under(bus: MemoryBus) -> list[Version]:
    """The version of each sampled token, by its span and by what its log-prob says."""
    found: list[Version] = []
    for piece in wal_of(bus, E).pieces:
        if piece.kind is not TokenKind.ACTION:
            continue
        (span,) = unpack_spans(piece.commit.spans)
        values = unpack_logprobs(piece.commit.logprobs)
        assert {version_of(value) for value in values} == {span.version}
        found += [span.version] * len(values)
    return found


async def test_an_engine_that_dies_while_it_loads_goes_on_under_the_version_it_had_whole() -> None:
    bus = MemoryBus(partitions=1)
    long = scripted(load_ms=300, length_median_tokens=90, length_sigma=0.0)
    async with stand(bus, inference_settings(commit_tokens=8, scripted=long)) as worker:
        worker.engine.ceiling = 30
        await worker.open(E)
        asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 30)
        loading = asyncio.create_task(worker.service.keeper.swap(Path(), FIRST))
        await asyncio.sleep(0.05)
        worker.engine.kill()
        with pytest.raises(TransientError):
            await loading
        worker.engine.ceiling = 20
        await until(lambda: len(action_ids(wal_of(bus, E))) == 50)
        assert sampled_under(bus) == [START] * 50
        assert worker.service.keeper.version == START
        # The coordinator asks again, and now it comes to its end.
        await worker.service.keeper.swap(Path(), FIRST)
        worker.engine.ceiling = None
        status, answer = await asked
    assert (status, answer["usage"]["completion_tokens"]) == (200, 91)
    assert sampled_under(bus) == [START] * 50 + [FIRST] * 41


async def test_a_load_that_takes_too_long_is_given_up_and_the_worker_serves_what_it_had(
    tmp_path: Path,
) -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    async with following(bus, load_ms=60_000, timeout_s=0.1) as keeper:
        publish(bus, FIRST, tmp_path, off=0.0)
        prepare(bus, FIRST)
        await until(lambda: bool(said(bus, RefreshEventKind.FAILED, FIRST)))
        assert "took longer than" in said(bus, RefreshEventKind.FAILED, FIRST)[0].detail
        await until(lambda: keeper.is_serving)
        assert keeper.version == START
        assert not said(bus, RefreshEventKind.LOADED, FIRST)
