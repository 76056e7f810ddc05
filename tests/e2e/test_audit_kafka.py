"""Audit and replay read a real broker as they read the bus in memory."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.audit import processes
from infra.audit.audit import audit
from infra.registry import register_all, resolve_codec
from infra.replay import replay, to_json
from infra.run.bus import BusAddress, Doors
from infra.run.proof import prove, record
from infra.topic_admin import create_topics, delete_below
from schemas.topics import ALL, PAYLOADS, TOKENS, TOOL_EVENTS
from tests.conftest import LocalPlatform
from tests.support.copied_run import copy_onto
from tests.support.recorded_run import RESUMED, RecordedRun
from tests.support.run_records import RUN


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
    copy_onto(bus, local_platform.bootstrap, prefix, bus.codec)
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


@pytest.mark.kafka
async def test_a_recorded_audit_stands_for_what_is_trimmed_and_processes_share_the_next_one(
    local_platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"proof-{uuid.uuid4().hex[:8]}"
    bootstrap, registry = local_platform.bootstrap, local_platform.registry_url
    create_topics(bootstrap, prefix=prefix, partitions=3)
    register_all(registry, prefix=prefix)
    bus = RecordedRun(partitions=3).write()
    copy_onto(bus, bootstrap, prefix, resolve_codec(registry, prefix=prefix))
    starts = {topic.name: dict.fromkeys(range(3), 0) for topic in ALL}
    doors = Doors(BusAddress(bootstrap=bootstrap, registry=registry, prefix=prefix))
    try:
        before = await prove(doors, RUN, starts)
        assert before.is_clean
        await record(doors, before)
        delete_below(
            bootstrap,
            prefix=prefix,
            floors={
                (topic.name, partition): end
                for topic in (TOKENS, TOOL_EVENTS, PAYLOADS)
                for partition, end in before.cut[topic.name].items()
                if end
            },
        )
        monkeypatch.setattr(processes, "RECORDS_ALONE_MAX", 0)
        after = await prove(doors, RUN, starts)
    finally:
        await doors.close()
    assert [one.to_json() for one in after.violations] == []
    assert len(after.peaks) > 1
    assert after.counts["episodes trimmed"] == 4
    assert after.counts["trained"] == before.counts["trained"]
