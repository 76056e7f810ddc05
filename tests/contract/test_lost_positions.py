"""A position that the log does not hold any more ends the stream by name: nobody begins at zero or
at the end in silence.
"""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient

from infra.topic_admin import create_topics
from schemas.errors import InvariantError
from schemas.ports import Assigned, Floor, GroupReader
from schemas.topics import TRAJECTORIES
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS, Harness, KafkaHarness
from tests.support.records import within

TOPIC = TRAJECTORIES


def member(bus: Harness, group: str, starts: dict[int, int]) -> GroupReader:
    return bus.consumers().group(
        TOPIC, group=group, member="one", starts=starts, floors=lambda _: {}
    )


async def owning(reader: GroupReader) -> None:
    """Poll until the member has partitions, and take what lies there."""
    until = time.monotonic() + 25
    seen = False
    while not seen:
        assert time.monotonic() < until, "no partition came"
        events = await reader.poll(records_max=100, timeout_s=0.5)
        seen = any(isinstance(one, Assigned) for one in events)


async def drain(reader: GroupReader) -> None:
    """Poll until the stream ends with an error, at most 25 s."""
    until = time.monotonic() + 25
    while time.monotonic() < until:
        await reader.poll(records_max=100, timeout_s=0.5)


async def ends_by_name(reader: GroupReader, hint: str) -> None:
    """Require that the stream ends with an error of ours that says what and what to do."""
    with pytest.raises(InvariantError, match=TOPIC.name) as ended:
        await drain(reader)
    assert hint in ended.value.hint


@pytest.mark.timeout(60)
async def test_a_member_whose_floor_lies_below_the_log_start_ends_by_name(own_bus: Harness) -> None:
    own_bus.append_raw(TOPIC, 0, *[b"a"] * 5)
    group = f"g-{uuid.uuid4().hex[:6]}"
    first = member(own_bus, group, {})
    await owning(first)
    await first.commit({0: Floor(offset=1, metadata="")})
    await first.close()
    own_bus.trim(TOPIC, 0, 3)
    second = member(own_bus, group, {})
    await ends_by_name(second, "trimmed")
    await second.close()


@pytest.mark.timeout(60)
async def test_a_member_that_is_told_to_start_beyond_the_end_ends_by_name(own_bus: Harness) -> None:
    reader = member(own_bus, f"g-{uuid.uuid4().hex[:6]}", {0: 1_000})
    await ends_by_name(reader, "another log")
    await reader.close()


@pytest.mark.timeout(60)
async def test_a_member_of_a_topic_that_was_created_anew_ends_by_name(own_bus: Harness) -> None:
    own_bus.append_raw(TOPIC, 0, *[b"a"] * 5)
    reader = member(own_bus, f"g-{uuid.uuid4().hex[:6]}", {})
    await owning(reader)
    own_bus.recreate(TOPIC)
    await ends_by_name(reader, "start")
    await reader.close()


@pytest.mark.kafka
async def test_a_topic_deleted_under_readers_and_members_ends_them_by_name(
    local_platform: LocalPlatform,
) -> None:
    prefix = f"deleted-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    bus = KafkaHarness(local_platform.bootstrap, prefix)
    bus.append_raw(TOPIC, 0, b"a")
    in_group = member(bus, f"g-{uuid.uuid4().hex[:6]}", {})
    await owning(in_group)
    alone = bus.consumers().reader({TOPIC: {0: 0}})
    assert len(await alone.poll(records_max=5, timeout_s=10)) == 1
    # Its id is learnt while nothing comes; from then on its absence is noticed.
    assert len(await alone.poll(records_max=5, timeout_s=1)) == 0
    name = TOPIC.full(prefix)
    admin = AdminClient({"bootstrap.servers": local_platform.bootstrap})
    admin.delete_topics([name], operation_timeout=10)[name].result(10)
    await ends_by_name(in_group, "start a new run")
    with pytest.raises(InvariantError, match=rf"{TOPIC.name} has the id gone"):
        await alone.read_to({(TOPIC.name, 0): 2}, deadline=within(20_000))
    await in_group.close()
    await alone.close()
    await bus.close()
