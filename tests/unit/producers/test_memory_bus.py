"""The faults of the memory bus do what they say: tests of other parts rest on them."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import FencedError, RejectedError, UnknownOutcomeError
from schemas.ports import Acked, Assigned, Floor, Rejected, Revoked, Unknown
from schemas.topics import TOKENS, TRAJECTORIES
from tests.support.clocks import HeldClock
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.memory_readers import MemoryGroupReader
from tests.support.records import commit, within


async def test_each_fault_writes_or_not_as_it_says() -> None:
    bus = MemoryBus(partitions=1)
    producer = bus.producer()
    written: dict[Fault, int] = {}
    for fault in Fault:
        bus.faults.next(fault, topic=TOKENS)
        before = len(bus.records(TOKENS))
        outcome = await producer.offer(TOKENS, commit())
        written[fault] = len(bus.records(TOKENS)) - before
        match fault:
            case Fault.REJECTED:
                assert isinstance(outcome, Rejected)
            case _:
                assert isinstance(outcome, Unknown)
    assert [fault for fault, count in written.items() if count] == [Fault.UNKNOWN_WRITTEN]
    assert bus.land_late() == 1
    assert len(bus.records(TOKENS)) == 2
    assert isinstance(await producer.offer(TOKENS, commit()), Acked)


async def test_a_fault_of_one_topic_does_not_touch_another() -> None:
    bus = MemoryBus(partitions=1)
    bus.faults.next(Fault.REJECTED, topic=TRAJECTORIES)
    assert isinstance(await bus.producer().offer(TOKENS, commit()), Acked)


async def test_held_acknowledgements_come_in_order_and_become_unknown_at_a_renewal() -> None:
    bus = MemoryBus(partitions=1)
    producer = bus.producer()
    bus.faults.hold_acks()
    offers = [producer.offer(TOKENS, commit(seq)) for seq in range(3)]
    await asyncio.sleep(0)
    assert len(bus.records(TOKENS)) == 3
    assert producer.queued == 3
    bus.faults.release_acks(1)
    assert [offer.done() for offer in offers] == [True, False, False]
    await producer.renew()
    assert [type(offer.result()) for offer in offers] == [Acked, Unknown, Unknown]
    bus.faults.release_acks()
    assert [type(offer.result()) for offer in offers] == [Acked, Unknown, Unknown]


async def test_a_full_queue_is_offered_again_until_the_deadline() -> None:
    bus = MemoryBus(partitions=1)
    producer = bus.producer()
    bus.faults.is_full = True
    with pytest.raises(RejectedError, match="queue full"):
        await producer.send(TOKENS, commit(), deadline=within(20))
    asyncio.get_running_loop().call_later(0.02, setattr, bus.faults, "is_full", False)
    assert isinstance(await producer.send(TOKENS, commit(), deadline=within(5_000)), Acked)


async def test_a_send_that_outlasts_its_deadline_has_an_unknown_outcome() -> None:
    bus = MemoryBus(partitions=1)
    bus.faults.hold_acks()
    with pytest.raises(UnknownOutcomeError, match="the fence"):
        await bus.producer().send(TOKENS, commit(), deadline=within(20, "the fence"))
    assert len(bus.records(TOKENS)) == 1


async def test_records_are_stamped_by_the_clock_of_the_bus() -> None:
    clock = HeldClock()
    bus = MemoryBus(partitions=1, clock=clock)
    bus.append(TOKENS, commit(0))
    clock.advance(250)
    bus.append(TOKENS, commit(1))
    first, second = bus.messages(TOKENS)
    assert second.timestamp_ms - first.timestamp_ms == 250


async def test_an_expelled_member_learns_that_its_partitions_are_lost_and_joins_again() -> None:
    bus = MemoryBus(partitions=2)
    asked: list[object] = []

    def floors(partitions: object) -> dict[int, Floor]:
        asked.append(partitions)
        return {}

    reader = bus.consumers().group(
        TOKENS, group="g", member="a", starts={0: 0, 1: 0}, floors=floors
    )
    (first,) = await reader.poll(records_max=10, timeout_s=0)
    assert isinstance(first, Assigned)
    bus.expel("g", "a")
    lost, again = await reader.poll(records_max=10, timeout_s=0)
    assert lost == Revoked(partitions=(0, 1), lost=True)
    assert isinstance(again, Assigned)
    assert again.generation > first.generation
    assert asked == []


async def test_a_member_whose_name_was_taken_commits_nothing_more_and_leaves_no_loss_behind() -> (
    None
):
    bus = MemoryBus(partitions=1)

    def joined() -> MemoryGroupReader:
        return bus.consumers().group(
            TOKENS, group="g", member="a", starts={0: 0}, floors=lambda _: {}
        )

    old = joined()
    await old.poll(records_max=10, timeout_s=0)
    bus.expel("g", "a")
    new = joined()
    assert all(isinstance(e, Assigned) for e in await new.poll(records_max=10, timeout_s=0))
    with pytest.raises(FencedError):
        await old.commit({0: Floor(offset=7)})
    assert not bus.groups["g"].committed
    assert new.owned == {0}
