"""A gateway with the scripted engine on a real broker: sessions, turns, takeover, cost."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from infra.topic_admin import create_topics
from schemas.enums import TokenKind
from schemas.ids import RunId, WorkerId, episode_id
from schemas.packing import unpack_ids
from schemas.ports import Context, Delivered
from schemas.rules.wal import EpisodeWal
from schemas.topics import TOKENS
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support.clocks import RealClock
from tests.support.inference_stand import RUN, SECRET, inference_settings, scripted, serve
from tests.support.records import within

pytestmark = pytest.mark.kafka
_NAMES = ("commit_latency_us", "exposure_wait_us", "gateway_overhead_us")
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
E = episode_id(RUN, 0, 0)


@pytest.fixture
async def harness(local_platform: LocalPlatform) -> AsyncIterator[KafkaHarness]:
    """Topics of this test alone."""
    prefix = f"inference-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    harness = KafkaHarness(local_platform.bootstrap, prefix)
    yield harness
    await harness.close()


def context_on(harness: KafkaHarness, worker: str) -> Context:
    return Context(
        run_id=RunId(RUN),
        worker_id=WorkerId(worker),
        incarnation=f"{worker}-1",
        producer=harness.producer(),
        consumers=harness.consumers(),
        clock=RealClock(),
        starts={TOKENS.name: dict.fromkeys(range(PARTITIONS), 0)},
        secret=SECRET,
        stop=asyncio.Event(),
    )


async def read_wal(harness: KafkaHarness) -> EpisodeWal:
    consumers = harness.consumers()
    reader = consumers.reader({TOKENS: dict.fromkeys(range(PARTITIONS), 0)})
    ends = {(TOKENS.name, p): end for p, end in (await reader.ends(TOKENS)).items()}
    wal = EpisodeWal()
    for message in await reader.read_to(ends, deadline=within(20_000)):
        assert isinstance(message, Delivered)
        if message.record.episode_id == E:
            wal.take(message.offset, message.record)
    await reader.close()
    return wal


async def test_a_turn_is_taken_over_by_another_worker_at_the_next_token(
    harness: KafkaHarness, record_property: Callable[[str, object], None]
) -> None:
    slow = inference_settings(
        commit_tokens=8,
        request_deadline_s=20.0,
        open_deadline_s=20.0,
        scripted=scripted(length_median_tokens=150, length_sigma=0.0, count_decoded=True),
    )
    one_context, two_context = context_on(harness, "one"), context_on(harness, "two")
    async with serve(one_context, slow) as one, serve(two_context, slow) as two:
        assert (await one.open(E))[0] == 200
        one.engine.ceiling = 60
        lost = asyncio.create_task(one.chat(E, ASK, turn=0))
        async with asyncio.timeout(20):
            while len(one.engine.decoded) < 60 or one.service.writer.uncommitted:
                await asyncio.sleep(0.05)
        began = time.monotonic()
        status, opened = await two.open(E, number=2, first=False)
        record_property("session_with_read_ms", round(1000 * (time.monotonic() - began)))
        assert status == 200
        kept = opened["turns"][-1]["tokens"]
        assert 0 < kept <= 60
        status, answer = await two.chat(E, ASK, turn=0, number=2)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 151)
        assert sum(two.engine.decoded.values()) == 151 - kept
        one.engine.ceiling = None
        await lost
    wal = await read_wal(harness)
    ids = [
        i for p in wal.pieces if p.kind is TokenKind.ACTION for i in unpack_ids(p.commit.token_ids)
    ]
    assert answer["choices"][0]["message"]["content"] == two.tokenizer.decode(ids)
    assert wal.superseded_tokens > 0, "the first worker went on writing and none of it counts"


async def test_the_gateway_adds_little_beside_engine_and_commit(
    harness: KafkaHarness, record_property: Callable[[str, object], None]
) -> None:
    settings = inference_settings(request_deadline_s=20.0, open_deadline_s=20.0)
    async with serve(context_on(harness, "one"), settings) as worker:
        spent: list[float] = []
        for ordinal in range(300):
            one = episode_id(RUN, ordinal, 0)
            await worker.open(one)
            began = time.monotonic()
            status, _ = await worker.chat(one, ASK, turn=0)
            spent.append(time.monotonic() - began)
            assert status == 200
    seen = {name: [v for n, v, _ in worker.observed if n == name] for name in _NAMES}
    record_property("turn_p50_ms", round(statistics.median(spent) * 1000, 2))
    for name in _NAMES:
        record_property(name, round(statistics.median(seen[name])))
    assert statistics.median(seen["gateway_overhead_us"]) <= 3000
