"""What every group reader keeps, on the memory bus and on Kafka alike."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping

import pytest

from schemas.errors import FencedError
from schemas.ports import Assigned, Consumers, Delivered, Floor, GroupEvent, GroupReader, Revoked
from schemas.topics import TRAJECTORIES, VERIFY_REQUESTS
from tests.contract.conftest import Harness
from tests.support.records import within

TOPIC = VERIFY_REQUESTS
assert TRAJECTORIES.is_grouped
Floors = Callable[[Collection[int]], Mapping[int, Floor]]


class Member:
    """A member that keeps its own floors, as a role does."""

    def __init__(
        self, consumers: Consumers, group: str, name: str, starts: Mapping[int, int]
    ) -> None:
        self.floors: dict[int, Floor] = {}
        self.events: list[GroupEvent] = []
        self.asked: list[tuple[int, ...]] = []
        self.reader: GroupReader = consumers.group(
            TOPIC, group=group, member=name, starts=starts, floors=self._floors_of
        )

    def _floors_of(self, partitions: Collection[int]) -> Mapping[int, Floor]:
        self.asked.append(tuple(sorted(partitions)))
        return {p: self.floors[p] for p in partitions if p in self.floors}

    async def poll(self, timeout_s: float = 0.2) -> list[GroupEvent]:
        found = list(await self.reader.poll(records_max=100, timeout_s=timeout_s))
        self.events += found
        return found

    @property
    def raws(self) -> list[tuple[int, int]]:
        return [
            (e.partition, e.offset) for e in self.events if not isinstance(e, Assigned | Revoked)
        ]


async def until(members: Collection[Member], holds: Callable[[], bool]) -> None:
    deadline = within(25_000)
    while not holds():
        assert not deadline.is_over(now_ms=within(0).at_ms), "the group did not come so far"
        for member in members:
            await member.poll()


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


async def start_of(bus: Harness) -> tuple[Consumers, dict[int, int]]:
    consumers = bus.consumers()
    return consumers, dict(await consumers.ends(TOPIC))


async def test_a_lone_member_owns_all_and_reads_from_the_starts(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    bus.append_raw(TOPIC, 2, b"a")
    one = Member(consumers, new_group(), "one", starts)
    await until([one], lambda: len(one.raws) == 1)
    first = one.events[0]
    assert isinstance(first, Assigned)
    assert set(first.partitions) == set(range(bus.partitions))
    assert dict(first.committed) == {}
    assert one.raws == [(2, starts[2])]
    assert one.reader.owned == frozenset(range(bus.partitions))
    await one.reader.close()


async def test_floors_and_their_metadata_outlive_the_member(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    for _ in range(3):
        bus.append_raw(TOPIC, 1, b"a")
    group = new_group()
    one = Member(consumers, group, "one", starts)
    await until([one], lambda: len(one.raws) == 3)
    await one.reader.commit({1: Floor(offset=starts[1] + 1, metadata='{"episodes":5}')})
    one.floors = {1: Floor(offset=starts[1] + 2, metadata='{"episodes":7}')}
    await one.reader.close()
    two = Member(consumers, group, "two", starts)
    await until([two], lambda: len(two.raws) == 1)
    assigned = next(e for e in two.events if isinstance(e, Assigned) and 1 in e.partitions)
    assert assigned.committed[1] == Floor(offset=starts[1] + 2, metadata='{"episodes":7}')
    assert two.raws == [(1, starts[1] + 2)]
    await two.reader.close()


async def test_a_second_member_takes_over_what_the_first_gave_floors_for(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    group = new_group()
    one = Member(consumers, group, "one", starts)
    await until([one], lambda: len(one.reader.owned) == bus.partitions)
    one.floors = {p: Floor(offset=starts[p], metadata=f"p{p}") for p in starts}
    two = Member(consumers, group, "two", starts)
    half = bus.partitions // 2
    await until([one, two], lambda: len(one.reader.owned) == half == len(two.reader.owned))
    assert one.reader.owned | two.reader.owned == set(range(bus.partitions))
    assert not one.reader.owned & two.reader.owned
    revoked = [e for e in one.events if isinstance(e, Revoked)]
    assert [set(e.partitions) for e in revoked] == [two.reader.owned]
    assert not revoked[0].lost
    assert one.asked == [tuple(sorted(two.reader.owned))]
    assigned = [e for e in two.events if isinstance(e, Assigned)]
    assert {p: f.metadata for e in assigned for p, f in e.committed.items()} == {
        p: f"p{p}" for p in two.reader.owned
    }
    await one.reader.close()
    await until([two], lambda: len(two.reader.owned) == bus.partitions)
    generations = [e.generation for e in two.events if isinstance(e, Assigned)]
    assert generations == sorted(set(generations))
    await two.reader.close()


async def test_every_record_reaches_exactly_one_owner(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    group = new_group()
    members = [Member(consumers, group, name, starts) for name in ("one", "two")]
    await until(members, lambda: all(len(m.reader.owned) == 2 for m in members))
    for partition in range(bus.partitions):
        for _ in range(5):
            bus.append_raw(TOPIC, partition, b"a")
    await until(members, lambda: sum(len(m.raws) for m in members) >= 20)
    places = [place for member in members for place in member.raws]
    assert sorted(places) == [(p, starts[p] + i) for p in range(bus.partitions) for i in range(5)]
    for member in members:
        await member.reader.close()


async def test_a_commit_for_a_partition_that_is_not_owned_is_left_out(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    group = new_group()
    one = Member(consumers, group, "one", starts)
    two = Member(consumers, group, "two", starts)
    await until([one, two], lambda: len(one.reader.owned) == 2 == len(two.reader.owned))
    bogus = {p: Floor(offset=starts[p], metadata="not mine") for p in two.reader.owned}
    mine = {p: Floor(offset=starts[p], metadata="mine") for p in one.reader.owned}
    theirs = two.reader.owned
    await one.reader.commit(bogus | mine)
    await one.reader.close()
    await two.reader.close()
    three = Member(consumers, group, "three", starts)
    await until([three], lambda: len(three.reader.owned) == bus.partitions)
    found = {
        p: f.metadata
        for e in three.events
        if isinstance(e, Assigned)
        for p, f in e.committed.items()
    }
    assert found == {p: "mine" for p in range(bus.partitions) if p not in theirs}
    await three.reader.close()


async def test_a_paused_member_gets_no_records_and_after_resume_all_of_them(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    one = Member(consumers, new_group(), "one", starts)
    await until([one], lambda: len(one.reader.owned) == bus.partitions)
    one.reader.pause()
    for _ in range(4):
        bus.append_raw(TOPIC, 0, b"a")
    for _ in range(3):
        assert await one.poll(0.2) == []
    one.reader.resume()
    await until([one], lambda: len(one.raws) == 4)
    assert one.raws == [(0, starts[0] + i) for i in range(4)]
    await one.reader.close()


async def test_a_second_process_under_the_same_member_id_fences_the_first(bus: Harness) -> None:
    consumers, starts = await start_of(bus)
    group = new_group()
    one = Member(consumers, group, "same", starts)
    await until([one], lambda: len(one.reader.owned) == bus.partitions)
    two = Member(bus.consumers(), group, "same", starts)
    with pytest.raises(FencedError):
        await until([two, one], lambda: False)
    await until([two], lambda: len(two.reader.owned) == bus.partitions)
    await one.reader.close()
    assert not any(isinstance(e, Delivered) for e in one.events)
    await two.reader.close()


async def test_what_is_marked_for_a_group_that_nobody_joined_is_what_it_has_committed(
    bus: Harness,
) -> None:
    consumers, starts = await start_of(bus)
    group = new_group()
    for metadata in ("first", "second"):
        floors = {p: Floor(offset=starts[p], metadata=metadata) for p in (0, 1)}
        await consumers.mark(TOPIC, group=group, floors=floors)
    late = Member(consumers, group, "late", starts)
    await until([late], lambda: len(late.reader.owned) == bus.partitions)
    committed = {
        p: floor for e in late.events if isinstance(e, Assigned) for p, floor in e.committed.items()
    }
    assert committed == {p: Floor(offset=starts[p], metadata="second") for p in (0, 1)}
    await late.reader.close()
