"""Kafka without us, for the other arm of a measurement: raw produce and raw consume with the same
client settings as the doors.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as RawProducer

from benchmarks.broker import Broker
from consumers.core.config import reader_config
from consumers.settings import ConsumerSettings
from producers.core.config import client_config
from producers.core.routing import key_of, partition_for
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.topics import PARTITIONS_DEFAULT, Record, Topic

R = TypeVar("R", bound=Record)
_TAKE_MAX = 500
_FLUSH_S = 60.0
_POLL_EVERY = 250


class Frame(NamedTuple):
    """One record as bytes, with its place."""

    full: str
    partition: int
    key: bytes
    body: bytes


def frame_of(topic: Topic[R], record: R, codec: Codec, prefix: str) -> Frame:
    """Return what our door would send for a record."""
    partition = partition_for(topic, record, PARTITIONS_DEFAULT)
    return Frame(topic.full(prefix), partition, key_of(topic, record), codec.encode(topic, record))


def raw_producer(broker: Broker, topic: Topic[Any]) -> RawProducer:
    """Return a producer with the settings that our door uses for this topic."""
    settings = ProducerSettings(bootstrap=broker.bootstrap, prefix=broker.prefix, client_id="raw")
    config = client_config(
        settings,
        compression=topic.compression.value,
        linger_ms=topic.linger_ms,
        host=socket.gethostname(),
        pid=0,
    )
    return RawProducer({**config, "stats_cb": lambda _: None})


class RawDoor:
    """One producer and one consumer on topics that are empty when it is made."""

    def __init__(self, broker: Broker, topics: Sequence[Topic[Any]]) -> None:
        self._producer = raw_producer(broker, topics[0])
        settings = ConsumerSettings(
            bootstrap=broker.bootstrap, prefix=broker.prefix, client_id="raw"
        )
        config = reader_config(settings, host=socket.gethostname(), pid=0)
        self._consumer = Consumer({**config, "enable.partition.eof": False})
        self._consumer.assign(
            [
                TopicPartition(topic.full(broker.prefix), partition, 0)
                for topic in topics
                for partition in range(PARTITIONS_DEFAULT)
            ]
        )

    def put_and_get(self, frames: Sequence[Frame]) -> int:
        """Produce and consume these frames at once; return the bytes that came back.

        Raises AssertionError when one was not delivered.
        """
        acked: list[int] = []

        def delivered(error: object, message: Any) -> None:
            if error is None:
                acked.append(message.offset())

        got = size = 0
        for number, frame in enumerate(frames, 1):
            self._producer.produce(frame.full, frame.body, frame.key, frame.partition, delivered)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)
                for message in self._consumer.consume(_TAKE_MAX, 0):
                    got, size = got + 1, size + len(message.value() or b"")
        self._producer.flush(_FLUSH_S)
        while got < len(frames):
            for message in self._consumer.consume(_TAKE_MAX, 1.0):
                got, size = got + 1, size + len(message.value() or b"")
        assert len(acked) == len(frames), "every record was acknowledged"
        return size

    def close(self) -> None:
        """Release both clients."""
        self._consumer.close()
