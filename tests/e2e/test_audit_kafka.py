"""Audit and replay read a real broker as they read the bus in memory."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import Producer as RawProducer

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.audit.audit import audit
from infra.replay import replay, to_json
from infra.topic_admin import create_topics
from schemas.topics import ALL
from tests.conftest import LocalPlatform
from tests.support.memory_bus import MemoryBus
from tests.support.recorded_run import RESUMED, RecordedRun
from tests.support.run_records import RUN


def _copy(bus: MemoryBus, bootstrap: str, prefix: str) -> None:
    producer = RawProducer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for topic in ALL:
        for stored in bus.log(topic.name, 0):
            producer.produce(topic.full(prefix), stored.raw, key=stored.key, partition=0)
    assert producer.flush(20) == 0


def _timeless(tree: dict[str, Any]) -> dict[str, Any]:
    for moment in (*tree["timeline"], *tree["commits"]):
        del moment["timestamp_ms"]
    return tree


@pytest.mark.kafka
async def test_a_run_on_a_real_broker_is_audited_and_replayed_the_same(
    local_platform: LocalPlatform,
) -> None:
    prefix = f"audit-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=1)
    bus = RecordedRun().write()
    _copy(bus, local_platform.bootstrap, prefix)
    settings = ConsumerSettings(
        bootstrap=local_platform.bootstrap, prefix=prefix, client_id="audit"
    )
    consumers = KafkaConsumers(settings, bus.codec)
    try:
        real, memory = await audit(consumers, RUN), await audit(bus.consumers(), RUN)
        assert real.to_json() == memory.to_json()
        assert real.is_clean
        told = _timeless(to_json(await replay(consumers, RUN, RESUMED)))
        remembered = _timeless(to_json(await replay(bus.consumers(), RUN, RESUMED)))
        assert told["commits"] == remembered["commits"]
        assert told["step"] == remembered["step"]
    finally:
        await consumers.close()
