"""One harness on the memory bus and on a real Kafka, for one suite of claims."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.exporter.doors import MeteredConsumers, MeteredProducer
from infra.exporter.instruments import Instruments
from infra.topic_admin import create_topics
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.ports import Consumers, Producer
from schemas.topics import Topic
from tests.conftest import LocalPlatform
from tests.support.clocks import RealClock
from tests.support.memory_bus import MemoryBus
from tests.support.records import within

PARTITIONS = 4


class Harness(ABC):
    """What a claim needs of a bus beside its two doors."""

    partitions = PARTITIONS

    def __init__(self) -> None:
        self._producers: list[Producer] = []

    def producer(self) -> Producer:
        """Open a write door; it is closed after the test."""
        self._producers.append(self._open_producer())
        return self._producers[-1]

    @abstractmethod
    def consumers(self) -> Consumers:
        """Open a read door."""

    @abstractmethod
    def append_raw(self, topic: Topic[Any], partition: int, *raws: bytes) -> None:
        """Write bytes that need not decode, in this order."""

    @abstractmethod
    def trim(self, topic: Topic[Any], partition: int, below: int) -> None:
        """Delete the records below an offset."""

    @abstractmethod
    def recreate(self, topic: Topic[Any]) -> None:
        """Delete a topic and create it anew."""

    @abstractmethod
    def _open_producer(self) -> Producer: ...

    async def close(self) -> None:
        """Close what was opened."""
        for producer in self._producers:
            await producer.close(deadline=within(5_000))


class MemoryHarness(Harness):
    """The memory bus."""

    def __init__(self) -> None:
        super().__init__()
        self.bus = MemoryBus(partitions=PARTITIONS)

    def consumers(self) -> Consumers:
        return self.bus.consumers()

    def append_raw(self, topic: Topic[Any], partition: int, *raws: bytes) -> None:
        for raw in raws:
            self.bus.append_raw(topic, partition=partition, raw=raw)

    def trim(self, topic: Topic[Any], partition: int, below: int) -> None:
        self.bus.trim(topic, partition, below=below)

    def recreate(self, topic: Topic[Any]) -> None:
        self.bus.recreate(topic)

    def _open_producer(self) -> Producer:
        return self.bus.producer()


class MeteredHarness(MemoryHarness):
    """The memory bus behind the doors that export what passes: they must change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._instruments = Instruments(CollectorRegistry())

    def consumers(self) -> Consumers:
        return MeteredConsumers(super().consumers(), self._instruments)

    def _open_producer(self) -> Producer:
        return MeteredProducer(super()._open_producer(), self._instruments, RealClock())


_IN_MEMORY: dict[str, type[Harness]] = {"memory": MemoryHarness, "metered": MeteredHarness}
_BUSES = [*_IN_MEMORY, pytest.param("kafka", marks=pytest.mark.kafka)]


class KafkaHarness(Harness):
    """A real broker; tests tell their records apart by starting at the ends they find."""

    def __init__(self, bootstrap: str, prefix: str, *, delivery_timeout_ms: int = 5_000) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._delivery_timeout_ms = delivery_timeout_ms
        self._consumers: list[KafkaConsumers] = []

    def consumers(self) -> Consumers:
        settings = ConsumerSettings(
            bootstrap=self.bootstrap, prefix=self.prefix, client_id="test", session_ms=6_000
        )
        self._consumers.append(KafkaConsumers(settings, Codec.local()))
        return self._consumers[-1]

    def append_raw(self, topic: Topic[Any], partition: int, *raws: bytes) -> None:
        failures: list[object] = []

        def done(error: object, _message: object) -> None:
            if error is not None:
                failures.append(error)

        # Without idempotence a batch that is sent again, as on a topic made just now, is overtaken.
        producer = RawProducer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.max.bytes": 1_048_000,
            }
        )
        for raw in raws:
            # A compacted topic takes no record without a key.
            producer.produce(
                topic.full(self.prefix), raw, key=b"key", partition=partition, on_delivery=done
            )
        assert producer.flush(10) == 0
        assert not failures

    def trim(self, topic: Topic[Any], partition: int, below: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        place = TopicPartition(topic.full(self.prefix), partition, below)
        admin.delete_records([place])[place].result(10)

    def recreate(self, topic: Topic[Any]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        name = topic.full(self.prefix)
        admin.delete_topics([name], operation_timeout=10)[name].result(10)
        until = time.monotonic() + 10
        while name in admin.list_topics(timeout=5).topics and time.monotonic() < until:
            time.sleep(0.1)
        create_topics(self.bootstrap, prefix=self.prefix, partitions=PARTITIONS)

    def _open_producer(self) -> Producer:
        settings = ProducerSettings(
            bootstrap=self.bootstrap,
            prefix=self.prefix,
            client_id="test",
            delivery_timeout_ms=self._delivery_timeout_ms,
        )
        return KafkaProducer(settings, Codec.local(), RealClock())

    async def close(self) -> None:
        await super().close()
        for consumers in self._consumers:
            await consumers.close()


@pytest.fixture(scope="session")
def shared_prefix(local_platform: LocalPlatform) -> str:
    """Topics that all tests of the session share."""
    create_topics(local_platform.bootstrap, prefix="contract", partitions=PARTITIONS)
    return "contract"


@pytest.fixture(params=_BUSES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """The bus under test."""
    harness: Harness
    if request.param in _IN_MEMORY:
        harness = _IN_MEMORY[request.param]()
    else:
        platform: LocalPlatform = request.getfixturevalue("local_platform")
        harness = KafkaHarness(platform.bootstrap, request.getfixturevalue("shared_prefix"))
    yield harness
    await harness.close()


@pytest.fixture(params=_BUSES)
async def own_bus(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A bus whose topics no other test uses."""
    harness: Harness
    if request.param in _IN_MEMORY:
        harness = _IN_MEMORY[request.param]()
    else:
        platform: LocalPlatform = request.getfixturevalue("local_platform")
        prefix = f"own-{uuid.uuid4().hex[:8]}"
        create_topics(platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
        harness = KafkaHarness(platform.bootstrap, prefix)
    yield harness
    await harness.close()
