"""The client library's settings, as one pure function: values in, a dictionary out.

Source of the values: shared notes on Kafka 4.3 and librdkafka 2.16, each with its reason there.
None of them is a knob, since every one of them decides about loss, order or duplicates.
"""

from __future__ import annotations

from producers.settings import ProducerSettings

BATCH_BYTES = 262_144
MESSAGE_BYTES_MAX = 1_000_000


def client_config(
    settings: ProducerSettings, *, compression: str, linger_ms: int, host: str, pid: int
) -> dict[str, str | int | bool]:
    """Return the settings of one librdkafka producer, callbacks apart."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"{settings.client_id}-{host}-{pid}",
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight": 5,
        "linger.ms": linger_ms,
        # Far below the broker's limit on a batch: a record too many would take the others with it.
        "batch.size": BATCH_BYTES,
        "batch.num.messages": 10_000,
        "compression.type": compression,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        # Every other client of these topics hashes with murmur2; librdkafka's default is CRC32.
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": settings.queue_records_max,
        "queue.buffering.max.kbytes": settings.queue_kib_max,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        "request.timeout.ms": min(10_000, settings.delivery_timeout_ms),
        "socket.timeout.ms": 15_000,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        # The library's default grows to 10 s and more: a client would sleep on after the broker is
        # back.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "statistics.interval.ms": 5_000,
        # The error callback says the same once, where the library's log repeats it many times a
        # second.
        "log_level": 2,
        "log.connection.close": False,
        **settings.security,
    }
