"""A real broker behind a proxy that loses answers, cuts, delays and falls silent: nothing is lost
and nothing counts twice.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.topic_admin import create_topics
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.enums import TokenKind
from schemas.errors import BusUnreachableError
from schemas.ids import WorkerId, episode_id
from schemas.packing import unpack_ids
from schemas.ports import Acked, Context, Delivered, Rejected, Unknown
from schemas.rules.wal import EpisodeWal
from schemas.topics import TOKENS
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS
from tests.support.clocks import RealClock
from tests.support.fault_proxy import Api, FaultProxy, Harm
from tests.support.inference_stand import RUN, SECRET, Stand, inference_settings, scripted, serve
from tests.support.records import commit, within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]
TOKENS_BYTES = TOKENS.name.encode()
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
E = episode_id(RUN, 0, 0)


class FaultyBus:
    """Topics of one test and the doors to them: through the proxy, or around it."""

    def __init__(self, proxy: FaultProxy, around: str, prefix: str) -> None:
        self.proxy = proxy
        self._around = around
        self._prefix = prefix
        self._producers: list[KafkaProducer] = []

    def producer(self, **more: Any) -> KafkaProducer:
        """Open a write door through the proxy."""
        settings = ProducerSettings(bootstrap=self.proxy.bootstrap, prefix=self._prefix, **more)
        self._producers.append(KafkaProducer(settings, Codec.local(), RealClock()))
        return self._producers[-1]

    def consumers(self, *, around: bool = False, **more: Any) -> KafkaConsumers:
        """Open a read door through the proxy, or straight to the broker."""
        bootstrap = self._around if around else self.proxy.bootstrap
        settings = ConsumerSettings(
            bootstrap=bootstrap, prefix=self._prefix, session_ms=6_000, **more
        )
        return KafkaConsumers(settings, Codec.local())

    async def seqs(self, partition: int, start: int) -> list[int]:
        """Return the seqs that stand in a partition of the token log, read around the proxy."""
        consumers = self.consumers(around=True)
        reader = consumers.reader({TOKENS: {partition: start}})
        end = (await reader.ends(TOKENS, [partition]))[partition]
        found = await reader.read_to({(TOKENS.name, partition): end}, deadline=within(10_000))
        await reader.close()
        assert all(isinstance(one, Delivered) for one in found)
        return [one.record.seq for one in found if isinstance(one, Delivered)]

    async def close(self) -> None:
        self.proxy.heal()
        for producer in self._producers:
            await producer.close(deadline=within(5_000))


@pytest.fixture
async def bus(local_platform: LocalPlatform) -> AsyncIterator[FaultyBus]:
    """A bus whose topics no other test uses."""
    prefix = f"faulty-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    with FaultProxy(local_platform.bootstrap) as proxy:
        bus = FaultyBus(proxy, local_platform.bootstrap, prefix)
        yield bus
        await bus.close()


async def test_no_client_finds_a_way_around_the_proxy(bus: FaultyBus) -> None:
    producer = bus.producer()
    sent = await producer.send(TOKENS, commit(1), deadline=within(10_000))
    reader = bus.consumers().reader({TOKENS: {sent.partition: 0}})
    assert len(await reader.poll(records_max=5, timeout_s=10)) == 1
    assert all(bus.proxy.requests[api] > 0 for api in (Api.PRODUCE, Api.FETCH, Api.METADATA))
    await reader.close()


async def test_a_swallowed_acknowledgement_is_unknown_and_a_fence_settles_that_it_stands(
    bus: FaultyBus,
) -> None:
    producer = bus.producer(delivery_timeout_ms=2_000)
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    swallowed = bus.proxy.inject(
        Api.PRODUCE, Harm.SWALLOW_ANSWER, times=100, containing=TOKENS_BYTES
    )
    outcome = await asyncio.wait_for(producer.offer(TOKENS, commit(1)), 10)
    assert isinstance(outcome, Unknown)
    assert swallowed.hits >= 1
    bus.proxy.heal()
    await producer.renew()
    await producer.send(TOKENS, commit(9), deadline=within(10_000))
    assert await bus.seqs(first.partition, first.offset) == [0, 1, 9]


async def test_a_request_that_never_arrived_is_unknown_too_and_the_fence_settles_that_it_is_not(
    bus: FaultyBus,
) -> None:
    producer = bus.producer(delivery_timeout_ms=2_000)
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    bus.proxy.inject(Api.PRODUCE, Harm.LOSE_REQUEST, times=100, containing=TOKENS_BYTES)
    assert isinstance(await asyncio.wait_for(producer.offer(TOKENS, commit(1)), 10), Unknown)
    bus.proxy.heal()
    await producer.renew()
    await producer.send(TOKENS, commit(9), deadline=within(10_000))
    assert await bus.seqs(first.partition, first.offset) == [0, 9]


async def test_a_refused_record_that_the_next_one_passes_over_is_not_taken_for_written(
    bus: FaultyBus,
) -> None:
    # The first of its producer on this partition is refused while the next is on its way, as on a
    # topic made or moved just now: the broker takes the next, and the library both for written.
    producer = bus.producer()
    refused = bus.proxy.inject(Api.PRODUCE, Harm.MISDIRECT, containing=TOKENS_BYTES, delay_s=0.3)
    first = producer.offer(TOKENS, commit(0))
    assert await asyncio.to_thread(refused.happened.wait, 10)
    second = await asyncio.wait_for(producer.offer(TOKENS, commit(1)), 10)
    assert isinstance(second, Acked)
    assert isinstance(await asyncio.wait_for(first, 10), Unknown)
    assert await bus.seqs(second.partition, 0) == [1]


@pytest.mark.parametrize("harm", [Harm.CUT_AFTER, Harm.CUT_BEFORE])
async def test_a_connection_cut_under_a_record_costs_no_copy_and_no_order(
    bus: FaultyBus, harm: Harm
) -> None:
    producer = bus.producer()
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    fault = bus.proxy.inject(Api.PRODUCE, harm, times=3, containing=TOKENS_BYTES)
    for seq in range(1, 60):
        outcome = await asyncio.wait_for(producer.offer(TOKENS, commit(seq)), 20)
        assert isinstance(outcome, Acked), outcome
    assert fault.hits == 3
    assert await bus.seqs(first.partition, first.offset) == list(range(60))


async def test_a_slow_broker_pushes_back_through_a_bounded_queue_and_loses_nothing(
    bus: FaultyBus,
) -> None:
    bound = 40
    producer = bus.producer(queue_records_max=bound)
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    held = bus.proxy.inject(Api.PRODUCE, Harm.DELAY, containing=TOKENS_BYTES, delay_s=2.0)
    slow = bus.proxy.inject(
        Api.PRODUCE, Harm.DELAY, times=1_000, containing=TOKENS_BYTES, delay_s=0.1
    )
    # Nothing is acknowledged while the first answer is held, so the figures are exact.
    offered = [producer.offer(TOKENS, commit(1_000 + n)) for n in range(3 * bound)]
    refused = [one for one in offered if one.done()]
    assert len(refused) == 2 * bound
    assert all(isinstance(one.result(), Rejected) for one in refused)
    assert producer.queued == bound
    sends = [producer.send(TOKENS, commit(seq), deadline=within(40_000)) for seq in range(1, 200)]
    acked = await asyncio.gather(*sends)
    taken = [await one for one in offered if one not in refused]
    assert all(isinstance(one, Acked) for one in [*acked, *taken])
    assert held.hits == 1
    assert slow.hits > 1
    stand = await bus.seqs(first.partition, first.offset)
    assert sorted(seq for seq in stand if seq < 1_000) == list(range(200))
    assert len(stand) == 200 + len(taken)


async def test_a_reader_on_a_connection_that_died_without_a_word_finds_another_in_time(
    bus: FaultyBus,
) -> None:
    producer = bus.producer()
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    reader = bus.consumers().reader({TOKENS: {first.partition: first.offset}})
    assert len(await reader.poll(records_max=1, timeout_s=10)) == 1
    assert bus.proxy.abandon() > 0
    began = time.monotonic()
    around = bus.producer()
    await around.send(TOKENS, commit(1), deadline=within(10_000))
    found = await reader.poll(records_max=9, timeout_s=20)
    assert [one.record.seq for one in found if isinstance(one, Delivered)] == [1]
    assert time.monotonic() - began < 20
    await reader.close()


async def test_a_broker_that_refuses_and_comes_back_is_reported_and_then_read_from_where_it_stood(
    bus: FaultyBus,
) -> None:
    producer = bus.producer()
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    reader = bus.consumers(unreachable_ms=3_000).reader({TOKENS: {first.partition: first.offset}})
    assert len(await reader.poll(records_max=1, timeout_s=10)) == 1
    bus.proxy.refuse()
    pending = [producer.offer(TOKENS, commit(seq)) for seq in range(1, 6)]
    with pytest.raises(BusUnreachableError, match="no broker answers"):
        await reader.poll(records_max=9, timeout_s=14)
    bus.proxy.heal()
    assert all(isinstance(one, Acked) for one in await asyncio.gather(*pending))
    seqs: list[int] = []
    until = time.monotonic() + 20
    while len(seqs) < 5 and time.monotonic() < until:
        found = await reader.poll(records_max=9, timeout_s=5)
        seqs += [one.record.seq for one in found if isinstance(one, Delivered)]
    assert seqs == [1, 2, 3, 4, 5]
    await reader.close()


def context_on(bus: FaultyBus, worker: str, **producer: Any) -> Context:
    return Context(
        run_id=RUN,
        worker_id=WorkerId(worker),
        incarnation=f"{worker}-1",
        producer=bus.producer(**producer),
        consumers=bus.consumers(),
        clock=RealClock(),
        starts={TOKENS.name: dict.fromkeys(range(PARTITIONS), 0)},
        secret=SECRET,
        stop=asyncio.Event(),
    )


async def wal_of(bus: FaultyBus) -> EpisodeWal:
    """Return what counts of the test's episode, read around the proxy."""
    reader = bus.consumers(around=True).reader({TOKENS: dict.fromkeys(range(PARTITIONS), 0)})
    ends = {(TOKENS.name, p): end for p, end in (await reader.ends(TOKENS)).items()}
    wal = EpisodeWal()
    for message in await reader.read_to(ends, deadline=within(20_000)):
        assert isinstance(message, Delivered)
        wal.take(message.offset, message.record)
    await reader.close()
    return wal


async def half_done(worker: Stand, tokens: int) -> None:
    """Wait until the engine stands at its ceiling and all that it sampled is durable."""
    async with asyncio.timeout(20):
        while len(worker.engine.decoded) < tokens or worker.service.writer.uncommitted:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("harm", [Harm.SWALLOW_ANSWER, Harm.LOSE_REQUEST])
async def test_a_turn_whose_acknowledgement_is_lost_goes_on_behind_a_higher_fence_once(
    bus: FaultyBus, harm: Harm
) -> None:
    settings = inference_settings(
        commit_tokens=8,
        request_deadline_s=20.0,
        open_deadline_s=20.0,
        scripted=scripted(length_median_tokens=150, length_sigma=0.0, count_decoded=True),
    )
    context = context_on(bus, "one", delivery_timeout_ms=2_000)
    async with serve(context, settings) as worker:
        assert (await worker.open(E))[0] == 200
        worker.engine.ceiling = 60
        asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await half_done(worker, 60)
        lost = bus.proxy.inject(Api.PRODUCE, harm, times=100, containing=TOKENS_BYTES)
        worker.engine.ceiling = 100
        status, answer = await asyncio.wait_for(asked, 20)
        assert (status, answer["error"]["code"]) == (409, "refence")
        assert lost.hits >= 1
        assert worker.service.writer.unknown_outcomes == 1
        bus.proxy.heal()
        worker.engine.ceiling = None
        status, opened = await worker.open(E, number=2, first=False)
        assert status == 200
        kept = opened["turns"][-1]["tokens"]
        assert kept > 60 if harm is Harm.SWALLOW_ANSWER else kept == 60
        status, answer = await worker.chat(E, ASK, turn=0, number=2)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 151)
    wal = await wal_of(bus)
    ids = [
        i
        for piece in wal.pieces
        if piece.kind is TokenKind.ACTION
        for i in unpack_ids(piece.commit.token_ids)[: piece.count]
    ]
    assert len(ids) == 151
    assert answer["choices"][0]["message"]["content"] == worker.tokenizer.decode(ids)
