"""A run of the memory bus, copied onto a real broker record by record."""

from __future__ import annotations

from confluent_kafka import Producer as RawProducer

from producers.core.routing import key_of
from schemas.codec import Codec
from schemas.topics import ALL
from tests.support.memory_bus import MemoryBus


def copy_onto(bus: MemoryBus, bootstrap: str, prefix: str, codec: Codec) -> None:
    """Produce every record to its partition under `prefix`, and wait for all of them."""
    producer = RawProducer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    refused: list[object] = []

    def delivered(error: object, _: object) -> None:
        refused.extend([error] if error is not None else [])

    for topic in ALL:
        for partition in range(bus.partitions):
            for one in bus.records(topic, partition):
                frame = codec.encode(topic, one)
                full, key = topic.full(prefix), key_of(topic, one)
                producer.produce(full, frame, key, partition, on_delivery=delivered)
    assert producer.flush(20) == 0
    assert refused == []
