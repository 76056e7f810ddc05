"""Long and changing turns that several workers share: each token once, each version its own."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from inference.refusals import refence
from inference.scripted_engine import version_of
from schemas.enums import TokenKind
from schemas.ids import Version
from schemas.packing import spans_cover, unpack_logprobs, unpack_spans
from tests.support.inference_stand import (
    action_ids,
    episode,
    inference_settings,
    paced,
    scripted,
    stand,
    until,
    wal_of,
)  # fmt: skip
from tests.support.memory_bus import MemoryBus

E = episode()
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]


@pytest.mark.slow
async def test_fifty_takeovers_of_one_long_turn_sample_no_committed_token_again() -> None:
    bus = MemoryBus(partitions=1)
    long = inference_settings(
        context_max=8192,
        commit_interval_ms=2,
        scripted=scripted(tick_ms=1, length_median_tokens=4095, length_sigma=0.0),
    )
    chance = random.Random(5)
    started: list[int] = []
    async with stand(bus, long) as one, stand(bus, long, worker="inference-2") as two:
        for worker in (one, two):
            worker.engine.on_request = lambda request: started.append(request.resumed_tokens)
        kept: list[int] = []
        number, asked = 0, None
        while len(kept) < 50:
            worker = (one, two)[number % 2]
            number += 1
            worker.engine.ceiling = chance.randint(1, 150)
            _, opened = await worker.open(E, number=number, first=number == 1)
            last = opened["turns"][-1] if opened["turns"] else {"kind": "none"}
            if last["kind"] == "action" and last["finished"]:
                break
            kept.append(int(last["tokens"]) if last["kind"] == "action" else 0)
            asked = asyncio.create_task(worker.chat(E, ASK, turn=0, number=number, max_tokens=4096))
            await until(lambda: len(started) == len(kept))
            await asyncio.sleep(chance.random() * 0.002)
            session = worker.service.sessions.get(E)
            assert session is not None
            session.stream.close(refence("the worker was killed", highest=number))
            assert (await asked)[0] in (200, 409)
        assert started == kept, "each takeover samples on at the next token"
        assert kept == sorted(kept)
        assert len(set(kept)) > 20, "they are cut at many places"
        one.engine.ceiling = None

        await one.open(E, number=number + 1, first=False)
        status, answer = await one.chat(E, ASK, turn=0, number=number + 1, max_tokens=4096)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 4096)
    alone = MemoryBus(partitions=1)
    async with stand(alone, long) as worker:
        await worker.open(E)
        await worker.chat(E, ASK, turn=0, max_tokens=4096)
    assert action_ids(wal_of(bus, E)) == action_ids(wal_of(alone, E))


async def test_spans_cover_a_turn_across_updates_and_a_takeover() -> None:
    bus = MemoryBus(partitions=1)
    versions = [Version(0, 0), Version(1, 1), Version(1, 2), Version(1, 3)]
    async with stand(bus, paced()) as one, stand(bus, paced(), worker="inference-2") as two:
        one.engine.ceiling = 16
        await one.open(E)
        lost = asyncio.create_task(one.chat(E, ASK, turn=0))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 16)
        await one.service.keeper.swap(Path(), versions[1])
        one.engine.ceiling = 40
        await until(lambda: len(action_ids(wal_of(bus, E))) == 40)
        two.engine.ceiling = 40
        await two.service.keeper.swap(Path(), versions[2])
        await two.open(E, number=2, first=False)
        asked = asyncio.create_task(two.chat(E, ASK, turn=0, number=2))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 80)
        await two.service.keeper.swap(Path(), versions[3])
        one.engine.ceiling = two.engine.ceiling = None
        status, answer = await asked
        await lost
    assert (status, answer["sluice"]["policy_versions"]) == (200, ["0/0", "1/1", "1/2", "1/3"])
    actions = [p for p in wal_of(bus, E).pieces if p.kind is TokenKind.ACTION]
    spans = [span for piece in actions for span in unpack_spans(piece.commit.spans)]
    assert spans_cover(spans, actions[0].start, wal_of(bus, E).length)
    for piece in actions:
        (span,) = unpack_spans(piece.commit.spans)
        assert {version_of(v) for v in unpack_logprobs(piece.commit.logprobs)} == {span.version}
