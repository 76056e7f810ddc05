"""What only a real broker can do to the doors: be away, stand still, refuse, kill, forget."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.platform.commands import down, status, up
from infra.platform.settings import PlatformSettings
from infra.platform.status import ServiceState
from infra.setup.places import find_places
from infra.topic_admin import create_topics, describe_topics, require_topics, topic_ids
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.errors import BusUnreachableError, InvariantError, SettingsError, UnknownOutcomeError
from schemas.ports import Acked, Acknowledgement, Delivered, Message, Rejected, Unknown
from schemas.topics import ALL, TOKENS
from tests.conftest import LocalPlatform, require_platform_parts
from tests.contract.conftest import PARTITIONS, KafkaHarness
from tests.support.clocks import RealClock
from tests.support.platform import private_settings
from tests.support.records import commit, within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def producer_at(bootstrap: str, prefix: str = "contract", **more: object) -> KafkaProducer:
    settings = ProducerSettings.model_validate({"bootstrap": bootstrap, "prefix": prefix, **more})
    return KafkaProducer(settings, Codec.local(), RealClock())


def consumers_at(bootstrap: str, prefix: str = "contract", **more: object) -> KafkaConsumers:
    settings = ConsumerSettings.model_validate({"bootstrap": bootstrap, "prefix": prefix, **more})
    return KafkaConsumers(settings, Codec.local())


@pytest.fixture(scope="module")
def lone_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformSettings]:
    require_platform_parts()
    chosen = private_settings(tmp_path_factory.mktemp("lone"))
    yield chosen
    down(chosen)


@pytest.fixture
def lone_platform(lone_settings: PlatformSettings) -> Iterator[tuple[PlatformSettings, str, int]]:
    """A broker that a test may stop or kill: settings, bootstrap address, process id."""
    report = up(lone_settings, find_places(os.environ))
    bootstrap = report.status.bootstrap
    create_topics(bootstrap, prefix="contract", partitions=PARTITIONS)
    pid = next(one.pid for one in report.status.services if one.name == "broker-1")
    assert pid is not None
    yield lone_settings, bootstrap, pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def kill(settings: PlatformSettings, pid: int) -> None:
    """Kill the broker and wait until its last thread has let go of the port."""
    os.kill(pid, signal.SIGKILL)
    await_death(settings)


def await_death(settings: PlatformSettings) -> None:
    """Wait until the broker has let go of its port."""
    until = time.monotonic() + 20
    while status(settings).services[0].state is not ServiceState.DEAD:
        assert time.monotonic() < until
        time.sleep(0.05)


def freeze(pid: int) -> None:
    """Stop the broker, and wait until every one of its threads stands."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 20
    while any(
        (task / "stat").read_text().rpartition(") ")[2][0] != "T"
        for task in Path(f"/proc/{pid}/task").iterdir()
    ):
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_a_bus_that_is_not_there_is_named_with_a_hint_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(BusUnreachableError, match=r"127\.0\.0\.1:1:") as refused:
        producer_at("127.0.0.1:1", unreachable_ms=1_500)
    assert "sluice up" in refused.value.hint
    with pytest.raises(BusUnreachableError, match=r"127\.0\.0\.1:1:"):
        await consumers_at("127.0.0.1:1", unreachable_ms=1_500).ends(TOKENS)
    reader = consumers_at("127.0.0.1:1", unreachable_ms=3_000).reader({TOKENS: {0: 0}})
    with pytest.raises(BusUnreachableError, match=r"127\.0\.0\.1:1:"):
        await reader.poll(records_max=1, timeout_s=14)
    await reader.close()
    assert time.monotonic() - began < 14


async def test_missing_topics_are_named_at_the_start(local_platform: LocalPlatform) -> None:
    with pytest.raises(SettingsError, match=r"missing: none\.tasks\.v1"):
        producer_at(local_platform.bootstrap, "none")
    with pytest.raises(SettingsError, match=r"none\.tokens\.v1 is missing"):
        await consumers_at(local_platform.bootstrap, "none").ends(TOKENS)


async def test_a_client_that_speaks_another_protocol_is_told_so(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    security = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "nobody", "sasl.password": "wrong",
    }  # fmt: skip
    with pytest.raises(BusUnreachableError) as refused:
        producer_at(
            local_platform.bootstrap, shared_prefix, security=security, unreachable_ms=3_000
        )
    assert refused.value.hint


async def test_a_record_behind_a_broker_that_stands_still_is_unknown_and_lands_late(
    lone_platform: tuple[PlatformSettings, str, int],
) -> None:
    _, bootstrap, pid = lone_platform
    producer = producer_at(bootstrap, delivery_timeout_ms=2_000)
    consumers = consumers_at(bootstrap)
    acked = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    await asyncio.to_thread(freeze, pid)
    pending = producer.offer(TOKENS, commit(1))
    with pytest.raises(UnknownOutcomeError):
        await producer.send(TOKENS, commit(2), deadline=within(1_000))
    outcome = await asyncio.wait_for(pending, 10)
    assert isinstance(outcome, Unknown)
    await producer.renew()
    os.kill(pid, signal.SIGCONT)
    fence = await producer.send(TOKENS, commit(9), deadline=within(20_000))
    # Acknowledged in time or not, what was sent may stand before the fence: that was said.
    assert fence.offset >= acked.offset + 2
    reader = consumers.reader({TOKENS: {fence.partition: acked.offset}})
    read = await reader.read_to(
        {(TOKENS.name, fence.partition): fence.offset + 1}, deadline=within(10_000)
    )
    assert len(read) == fence.offset + 1 - acked.offset
    await reader.close()
    assert await producer.close(deadline=within(5_000)) == 0


async def test_clients_go_on_by_themselves_when_the_broker_was_killed_and_started_again(
    lone_platform: tuple[PlatformSettings, str, int],
) -> None:
    settings, bootstrap, pid = lone_platform
    producer = producer_at(bootstrap, delivery_timeout_ms=150_000)
    consumers = consumers_at(bootstrap, unreachable_ms=3_000)
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    reader = consumers.reader({TOKENS: {first.partition: first.offset}})
    assert len(await reader.poll(records_max=1, timeout_s=10)) == 1
    await asyncio.to_thread(kill, settings, pid)
    pending = producer.offer(TOKENS, commit(1))
    with pytest.raises(BusUnreachableError):
        await reader.poll(records_max=1, timeout_s=14)
    await asyncio.to_thread(up, settings, find_places(os.environ))
    outcome = await asyncio.wait_for(pending, 60)
    assert isinstance(outcome, Acked)
    after: list[Message] = []
    until = time.monotonic() + 20
    while not after and time.monotonic() < until:
        with contextlib.suppress(BusUnreachableError):
            after += await reader.poll(records_max=9, timeout_s=5)
    assert [one.offset for one in after] == [first.offset + 1]
    await reader.close()
    await producer.close(deadline=within(5_000))


async def test_a_stream_through_a_broker_that_is_stopped_and_started_comes_whole_and_in_order(
    lone_platform: tuple[PlatformSettings, str, int],
) -> None:
    settings, bootstrap, pid = lone_platform
    producer = producer_at(bootstrap, delivery_timeout_ms=150_000)
    first = await producer.send(TOKENS, commit(0), deadline=within(10_000))
    reader = consumers_at(bootstrap, unreachable_ms=3_000).reader(
        {TOKENS: {first.partition: first.offset}}
    )
    is_over = asyncio.Event()
    offers: list[asyncio.Future[Acknowledgement]] = []

    async def write() -> None:
        while not is_over.is_set():
            offers.append(producer.offer(TOKENS, commit(len(offers) + 1)))
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(write())
    seqs: list[int] = []

    async def read(wanted: int, *, until: float) -> None:
        while len(seqs) < wanted and time.monotonic() < until:
            with contextlib.suppress(BusUnreachableError):
                found = await reader.poll(records_max=500, timeout_s=1)
                seqs.extend(one.record.seq for one in found if isinstance(one, Delivered))

    await read(50, until=time.monotonic() + 20)
    os.kill(pid, signal.SIGTERM)
    await asyncio.to_thread(await_death, settings)
    await asyncio.to_thread(up, settings, find_places(os.environ))
    at_restart = len(offers)
    await read(at_restart + 50, until=time.monotonic() + 20)
    is_over.set()
    await writing
    assert all(isinstance(one, Acked) for one in await asyncio.gather(*offers))
    await read(len(offers) + 1, until=time.monotonic() + 20)
    assert seqs == list(range(len(offers) + 1))
    assert at_restart > 50
    await reader.close()
    await producer.close(deadline=within(5_000))


async def test_a_killed_broker_leaves_what_is_in_flight_unknown_at_close(
    lone_platform: tuple[PlatformSettings, str, int],
) -> None:
    settings, bootstrap, pid = lone_platform
    producer = producer_at(bootstrap)
    await producer.send(TOKENS, commit(0), deadline=within(10_000))
    await asyncio.to_thread(kill, settings, pid)
    offers = [producer.offer(TOKENS, commit(seq)) for seq in range(1, 4)]
    assert await producer.close(deadline=within(500)) == 3
    assert all(isinstance(offer.result(), Unknown) for offer in offers)


async def test_a_full_queue_rejects_an_offer_and_is_waited_out_by_send(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    producer = producer_at(local_platform.bootstrap, shared_prefix, queue_records_max=1)
    await producer.send(TOKENS, commit(0), deadline=within(10_000))
    offers = [producer.offer(TOKENS, commit(seq)) for seq in range(20)]
    rejected = [one for one in offers if one.done() and isinstance(one.result(), Rejected)]
    assert rejected
    assert all(str(one.result()).find("queue full") > 0 for one in rejected)
    sends = [producer.send(TOKENS, commit(seq), deadline=within(20_000)) for seq in range(100, 120)]
    assert all(isinstance(one, Acked) for one in await asyncio.gather(*sends))
    await producer.close(deadline=within(5_000))


def make_fatal(client: object) -> None:
    """Raise a fatal error inside librdkafka, as its own tests do."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
    # The handle is the first field behind the two words of a Python object's head.
    handle = ctypes.c_void_p.from_address(id(client) + 2 * ctypes.sizeof(ctypes.c_void_p))
    out_of_order = 45
    library.rd_kafka_test_fatal_error.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    assert library.rd_kafka_test_fatal_error(handle, out_of_order, b"made by a test") == 0


async def test_a_fatal_error_leaves_all_in_flight_unknown_and_the_producer_dead_until_renewed(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    producer = producer_at(local_platform.bootstrap, shared_prefix)
    await producer.send(TOKENS, commit(0), deadline=within(10_000))
    lane = producer._lane(TOKENS)
    make_fatal(lane.client)
    offers = [producer.offer(TOKENS, commit(seq)) for seq in range(1, 4)]
    outcomes = [await asyncio.wait_for(offer, 10) for offer in offers]
    assert all(isinstance(one, Unknown | Rejected) for one in outcomes)
    await asyncio.sleep(0.5)
    dead = await producer.offer(TOKENS, commit(9))
    assert isinstance(dead, Rejected)
    assert producer.queued == 0
    await producer.renew()
    assert isinstance(await producer.send(TOKENS, commit(10), deadline=within(10_000)), Acked)
    assert await producer.close(deadline=within(5_000)) == 0


def _offer_in_child(producer: KafkaProducer, consumers: KafkaConsumers, said: object) -> None:
    found = []
    for call in (
        lambda: producer.offer(TOKENS, commit()),
        lambda: consumers.reader({TOKENS: {0: 0}}),
    ):
        try:
            call()
        except InvariantError as error:
            found.append(str(error))
    said.put(found)  # type: ignore[attr-defined]
    # The client's threads do not exist here, so its clean-up would wait for them for ever.
    os._exit(0)


async def test_a_forked_child_is_told_that_the_doors_are_not_its_own(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    producer = producer_at(local_platform.bootstrap, shared_prefix)
    consumers = consumers_at(local_platform.bootstrap, shared_prefix)
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()
    child = fork.Process(target=_offer_in_child, args=(producer, consumers, said))
    child.start()
    words = await asyncio.to_thread(said.get)
    child.join(5)
    assert len(words) == 2
    assert all("fork" in one for one in words)
    await producer.close(deadline=within(5_000))


async def test_a_topic_id_other_than_the_stored_one_stops_the_reader(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    ids = topic_ids(local_platform.bootstrap, prefix=shared_prefix)
    assert set(ids) == {topic.name for topic in ALL}
    good = consumers_at(local_platform.bootstrap, shared_prefix, topic_ids=ids)
    ends = await good.ends(TOKENS)
    reader = good.reader({TOKENS: ends})
    assert list(await reader.poll(records_max=1, timeout_s=1)) == []
    await reader.close()
    other = consumers_at(
        local_platform.bootstrap, shared_prefix, topic_ids=ids | {TOKENS.name: "another"}
    )
    reader = other.reader({TOKENS: ends})
    with pytest.raises(InvariantError, match=r"tokens\.v1 has the id"):
        await reader.poll(records_max=1, timeout_s=10)
    await reader.close()


async def test_topics_are_created_as_declared_once_and_differences_are_named(
    local_platform: LocalPlatform,
) -> None:
    prefix = f"made-{uuid.uuid4().hex[:8]}"
    bootstrap = local_platform.bootstrap
    assert len(create_topics(bootstrap, prefix=prefix, partitions=2)) == len(ALL)
    assert create_topics(bootstrap, prefix=prefix, partitions=2) == []
    assert all(not one.differences for one in describe_topics(bootstrap, prefix=prefix))
    require_topics(bootstrap, prefix=prefix, partitions=2)
    with pytest.raises(SettingsError, match="2 partitions, not 3"):
        require_topics(bootstrap, prefix=prefix, partitions=3)
    missing = describe_topics(bootstrap, prefix="none", topics=[TOKENS])
    assert "missing" in missing[0].differences[0]


async def test_reading_keeps_its_bound_while_nobody_takes(
    local_platform: LocalPlatform, shared_prefix: str
) -> None:
    harness = KafkaHarness(local_platform.bootstrap, shared_prefix)
    producer = harness.producer()
    consumers = consumers_at(local_platform.bootstrap, shared_prefix, queue_records_max=1_000)
    ends = await consumers.ends(TOKENS)
    offers = [producer.offer(TOKENS, commit(seq), partition=0) for seq in range(4_000)]
    for offer in offers:
        await offer
    reader = consumers.reader({TOKENS: {0: ends[0]}})
    await asyncio.sleep(1.0)
    assert reader.waiting <= 1_500
    got = 0
    while got < 4_000:
        got += len(await reader.poll(records_max=500, timeout_s=10))
    assert got == 4_000
    await reader.close()
    await harness.close()
