"""What every write door keeps, on the memory bus and on Kafka alike."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import FieldTypeError, RejectedError
from schemas.partition import partition_of
from schemas.ports import Acked, Delivered, Position, Rejected
from schemas.topics import COMMIT_BYTES_MAX, CONTROL, METRICS, TOKENS
from tests.contract.conftest import Harness
from tests.support.records import commit, within


async def test_an_acked_record_stands_at_the_named_position_as_it_was_sent(bus: Harness) -> None:
    sent = commit(7, tokens=b"\x01\x00\x00\x00")
    acked = await bus.producer().send(TOKENS, sent, deadline=within(10_000))
    assert acked.partition == partition_of(sent.group_id, bus.partitions)
    position = Position(TOKENS.name, acked.partition, acked.offset)
    read = await bus.consumers().fetch(position, deadline=within(10_000))
    assert isinstance(read, Delivered)
    assert read.record == sent
    assert read.key == sent.episode_id.encode()


async def test_records_of_a_group_land_in_one_partition_in_the_order_of_their_offers(
    bus: Harness,
) -> None:
    producer = bus.producer()
    offers = [
        producer.offer(TOKENS, commit(seq, episode=f"run-1.0.{seq % 3}")) for seq in range(300)
    ]
    outcomes = [await offer for offer in offers]
    assert all(isinstance(outcome, Acked) for outcome in outcomes)
    assert len({outcome.partition for outcome in outcomes if isinstance(outcome, Acked)}) == 1
    offsets = [outcome.offset for outcome in outcomes if isinstance(outcome, Acked)]
    first = offsets[0]
    assert offsets == list(range(first, first + 300))
    assert producer.queued == 0


async def test_an_acknowledgement_never_comes_within_the_offer(bus: Harness) -> None:
    producer = bus.producer()
    pending = producer.offer(TOKENS, commit())
    assert not pending.done()
    assert producer.queued == 1
    await pending


async def test_a_named_partition_overrides_the_one_of_the_group(bus: Harness) -> None:
    record = commit()
    other = (partition_of(record.group_id, bus.partitions) + 1) % bus.partitions
    acked = await bus.producer().send(TOKENS, record, partition=other, deadline=within(10_000))
    assert acked.partition == other


async def test_an_oversized_record_is_rejected_and_not_written(bus: Harness) -> None:
    producer = bus.producer()
    before = await bus.consumers().ends(TOKENS)
    large = commit(tokens=b"\x00" * COMMIT_BYTES_MAX)
    assert isinstance(await producer.offer(TOKENS, large), Rejected)
    with pytest.raises(RejectedError, match="over the limit"):
        await producer.send(TOKENS, large, deadline=within(10_000))
    assert await bus.consumers().ends(TOKENS) == before


async def test_a_value_that_the_schema_does_not_allow_is_named_and_not_written(
    bus: Harness,
) -> None:
    before = await bus.consumers().ends(TOKENS)
    wrong = commit(seq="one")  # type: ignore[arg-type]
    with pytest.raises(FieldTypeError, match="seq"):
        bus.producer().offer(TOKENS, wrong)
    assert await bus.consumers().ends(TOKENS) == before


async def test_a_renewed_producer_has_a_higher_number_and_writes_on(bus: Harness) -> None:
    producer = bus.producer()
    assert producer.number == 1
    await producer.send(TOKENS, commit(0), deadline=within(10_000))
    await producer.renew()
    assert producer.number == 2
    await producer.send(TOKENS, commit(1), deadline=within(10_000))


async def test_a_closed_producer_leaves_nothing_unknown_and_takes_nothing_more(
    bus: Harness,
) -> None:
    producer = bus.producer()
    offers = [producer.offer(TOKENS, commit(seq)) for seq in range(50)]
    assert await producer.close(deadline=within(10_000)) == 0
    assert all(isinstance(offer.result(), Acked) for offer in offers)
    after = producer.offer(TOKENS, commit(50))
    assert isinstance(await after, Rejected)


async def test_a_cancelled_sender_does_not_take_its_record_back(bus: Harness) -> None:
    producer, consumers = bus.producer(), bus.consumers()
    await producer.send(TOKENS, commit(0), deadline=within(10_000))
    before = sum((await consumers.ends(TOKENS)).values())
    task = asyncio.create_task(producer.send(TOKENS, commit(1), deadline=within(10_000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await producer.close(deadline=within(10_000)) == 0
    assert sum((await consumers.ends(TOKENS)).values()) == before + 1


async def test_topics_of_other_classes_are_written_beside_one_another(bus: Harness) -> None:
    from schemas.enums import ControlKind
    from schemas.ids import WorkerId
    from schemas.records.control_event import ControlEvent
    from schemas.records.metric_point import MetricPoint
    from tests.support.records import RUN

    producer = bus.producer()
    me = WorkerId("w")
    control = ControlEvent(run_id=RUN, kind=ControlKind.PAUSE, at_us=1, writer_id=me)
    metric = MetricPoint(run_id=RUN, name="wait_s", unit="s", value=1.0, at_us=1, writer_id=me)
    outcomes = await asyncio.gather(
        producer.offer(CONTROL, control),
        producer.offer(METRICS, metric),
        producer.offer(TOKENS, commit()),
    )
    assert all(isinstance(outcome, Acked) for outcome in outcomes)
