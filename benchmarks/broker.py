"""A Kafka of its own for a measurement: one broker in a temporary folder, topics, and the doors."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.clock import MachineClock
from infra.platform.commands import down, up
from infra.platform.ports import free_ports
from infra.platform.settings import PlatformSettings
from infra.setup.places import find_places
from infra.topic_admin import create_topics
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.ids import RunId, WorkerId
from schemas.ports import Context
from schemas.topics import ALL, PARTITIONS_DEFAULT

T = TypeVar("T")
RUN = RunId("0190a0b0-1234-7abc-8def-0123456789ab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker with the topics of one measurement."""

    bootstrap: str
    prefix: str
    registry: str = ""
    """URL of the schema registry beside it."""

    def beside(self, name: str) -> Broker:
        """Return the same broker with empty topics of another prefix."""
        other = replace(self, prefix=f"{self.prefix}-{name}")
        create_topics(other.bootstrap, prefix=other.prefix, partitions=PARTITIONS_DEFAULT)
        return other

    def context(self, worker: str) -> Context:
        """Return the context of one worker process; its producer is the caller's to close."""
        codec, clock = Codec.local(), MachineClock()
        producer = KafkaProducer(
            ProducerSettings(bootstrap=self.bootstrap, prefix=self.prefix, client_id=worker),
            codec,
            clock,
        )
        consumers = KafkaConsumers(
            ConsumerSettings(bootstrap=self.bootstrap, prefix=self.prefix, client_id=worker), codec
        )
        return Context(
            run_id=RUN,
            worker_id=WorkerId(worker),
            incarnation=f"{worker}-1",
            producer=producer,
            consumers=consumers,
            clock=clock,
            starts={topic.name: dict.fromkeys(range(PARTITIONS_DEFAULT), 0) for topic in ALL},
            secret=b"a secret of this measurement",
            stop=asyncio.Event(),
        )


def measured(worker: str, measure: Callable[[Context], Awaitable[T]]) -> T:
    """Measure with the context of one worker on a broker of its own; release both."""

    async def inside(broker: Broker) -> T:
        context = broker.context(worker)
        try:
            return await measure(context)
        finally:
            assert isinstance(context.consumers, KafkaConsumers), "the broker gives real doors"
            await context.consumers.close()

    with own_broker() as broker:
        return asyncio.run(inside(broker))


@contextmanager
def own_broker() -> Iterator[Broker]:
    """Start a broker on free ports, create all topics, and stop it afterwards, also when this
    process is asked to end.
    """
    before = signal.signal(signal.SIGTERM, _end)
    first, second, third, controller, registry, management = free_ports(6)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as data:
        settings = PlatformSettings(
            data=Path(data),
            broker_ports=(first, second, third),
            controller_port=controller,
            registry_port=registry,
            registry_management_port=management,
        )
        try:
            status = up(settings, find_places(os.environ)).status
            bootstrap = status.bootstrap
            prefix = f"bench-{uuid.uuid4().hex[:8]}"
            create_topics(bootstrap, prefix=prefix, partitions=PARTITIONS_DEFAULT)
            yield Broker(bootstrap=bootstrap, prefix=prefix, registry=status.registry_url)
        finally:
            down(settings)
            signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
