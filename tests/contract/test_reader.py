"""What every log reader keeps, on the memory bus and on Kafka alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.codec import Codec
from schemas.errors import InvariantError, TransientError
from schemas.ports import Delivered, Frames, LogReader, Message, Poisoned, Position
from schemas.topics import DEAD_LETTERS, TOKENS
from tests.contract.conftest import Harness
from tests.support.records import commit, within

CODEC = Codec.local()


async def write(bus: Harness, count: int, *, partition: int, first: int = 0) -> None:
    producer = bus.producer()
    offers = [
        producer.offer(TOKENS, commit(first + seq), partition=partition) for seq in range(count)
    ]
    for offer in offers:
        await offer


async def take(reader: LogReader, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = within(10_000)
    while len(found) < count and not deadline.is_over(now_ms=within(0).at_ms):
        found += await reader.poll(records_max=count - len(found), timeout_s=1)
    return found


def seqs(messages: Sequence[Message]) -> list[int]:
    return [one.record.seq for one in messages if isinstance(one, Delivered)]


async def test_a_reader_delivers_every_record_from_its_start_in_order(bus: Harness) -> None:
    consumers = bus.consumers()
    await write(bus, 2, partition=1)
    start = dict(await consumers.ends(TOKENS))
    await write(bus, 700, partition=1, first=100)
    reader = consumers.reader({TOKENS: {1: start[1]}})
    found = await take(reader, 700)
    assert seqs(found) == list(range(100, 800))
    assert [one.offset for one in found] == list(range(start[1], start[1] + 700))
    assert reader.positions() == {(TOKENS.name, 1): start[1] + 700}
    await reader.close()


async def test_a_poll_returns_at_most_what_is_asked_for_and_nothing_when_nothing_is_there(
    bus: Harness,
) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    reader = consumers.reader({TOKENS: start})
    assert list(await reader.poll(records_max=10, timeout_s=0.05)) == []
    await write(bus, 5, partition=2)
    assert len(await take(reader, 3)) == 3
    assert reader.positions()[TOKENS.name, 2] == start[2] + 3
    assert len(await reader.poll(records_max=10, timeout_s=5)) == 2
    await reader.close()


async def test_a_waiting_poll_is_woken_by_a_record(bus: Harness) -> None:
    consumers = bus.consumers()
    reader = consumers.reader({TOKENS: await consumers.ends(TOKENS)})
    await reader.poll(records_max=1, timeout_s=0.2)
    pending = bus.producer().offer(TOKENS, commit(42))
    assert seqs(await reader.poll(records_max=10, timeout_s=10)) == [42]
    await pending
    await reader.close()


async def test_read_to_returns_all_up_to_the_ends_and_keeps_the_rest_for_the_next_poll(
    bus: Harness,
) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 10, partition=0)
    await write(bus, 10, partition=1, first=100)
    reader = consumers.reader({TOKENS: {0: start[0], 1: start[1]}})
    read = await reader.read_to({(TOKENS.name, 0): start[0] + 6}, deadline=within(10_000))
    assert seqs(read) == list(range(6))
    assert reader.positions()[TOKENS.name, 0] == start[0] + 6
    rest = seqs(await take(reader, 14))
    assert [seq for seq in rest if seq < 100] == [6, 7, 8, 9]
    assert [seq for seq in rest if seq >= 100] == list(range(100, 110))
    await reader.close()


async def test_read_to_ends_that_are_reached_already_returns_at_once(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    reader = consumers.reader({TOKENS: start})
    ends = {(TOKENS.name, partition): end for partition, end in start.items()}
    assert list(await reader.read_to(ends, deadline=within(1_000))) == []
    await reader.close()


async def test_read_to_gives_up_at_the_deadline_and_loses_nothing(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 3, partition=3)
    reader = consumers.reader({TOKENS: {3: start[3]}})
    with pytest.raises(TransientError, match="the fence"):
        await reader.read_to({(TOKENS.name, 3): start[3] + 9}, deadline=within(700, "the fence"))
    assert reader.positions()[TOKENS.name, 3] == start[3]
    assert seqs(await take(reader, 3)) == [0, 1, 2]
    await reader.close()


async def test_partitions_can_be_added_and_removed_while_reading(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 3, partition=0)
    await write(bus, 3, partition=1, first=100)
    reader = consumers.reader({TOKENS: {0: start[0]}})
    assert seqs(await take(reader, 3)) == [0, 1, 2]
    reader.add(TOKENS, {1: start[1] + 1})
    assert seqs(await take(reader, 2)) == [101, 102]
    reader.remove(TOKENS, [0])
    await write(bus, 1, partition=0, first=7)
    await write(bus, 1, partition=1, first=107)
    assert seqs(await take(reader, 1)) == [107]
    assert set(reader.positions()) == {(TOKENS.name, 1)}
    reader.add(TOKENS, {0: start[0] + 2})
    assert seqs(await take(reader, 2)) == [2, 7]
    await reader.close()


async def test_a_partition_added_again_is_read_from_its_new_start_only(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 200, partition=2)
    reader = consumers.reader({TOKENS: {2: start[2] + 100}})
    assert seqs(await take(reader, 10)) == list(range(100, 110))
    reader.add(TOKENS, {2: start[2] + 50})
    assert seqs(await take(reader, 150)) == list(range(50, 200))
    await reader.close()


async def test_ends_are_those_of_now_for_partitions_not_read_too(bus: Harness) -> None:
    consumers = bus.consumers()
    before = await consumers.ends(TOKENS)
    reader = consumers.reader({TOKENS: {0: before[0]}})
    await write(bus, 4, partition=3)
    assert (await reader.ends(TOKENS, [3])) == {3: before[3] + 4}
    assert (await reader.ends(TOKENS)) == {**before, 3: before[3] + 4}
    assert await consumers.partitions(TOKENS) == bus.partitions
    await reader.close()


async def test_what_does_not_decode_is_delivered_as_poison_in_its_place(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 1, partition=1)
    bus.append_raw(TOKENS, 1, b"junk")
    bus.append_raw(TOKENS, 1, b"\x00\x00\x00\x03\xe7rest")
    await write(bus, 1, partition=1, first=1)
    reader = consumers.reader({TOKENS: {1: start[1]}})
    first, junk, foreign, last = await take(reader, 4)
    assert seqs([first, last]) == [0, 1]
    assert isinstance(junk, Poisoned)
    assert (junk.raw, junk.schema_id, junk.offset) == (b"junk", None, start[1] + 1)
    assert isinstance(foreign, Poisoned)
    assert foreign.schema_id == 999
    assert foreign.error_class == "PoisonRecordError"
    await reader.close()


async def test_an_offset_beyond_the_end_stops_the_reader(bus: Harness) -> None:
    consumers = bus.consumers()
    ends = await consumers.ends(TOKENS)
    reader = consumers.reader({TOKENS: {0: ends[0] + 1_000}})
    with pytest.raises(InvariantError, match="not in the log"):
        await reader.poll(records_max=1, timeout_s=10)
    await reader.close()


async def test_an_offset_below_the_log_start_stops_the_reader_and_the_fetch(
    own_bus: Harness,
) -> None:
    consumers = own_bus.consumers()
    await write(own_bus, 5, partition=0)
    own_bus.trim(TOKENS, 0, 3)
    reader = consumers.reader({TOKENS: {0: 1}})
    with pytest.raises(InvariantError):
        await reader.poll(records_max=1, timeout_s=10)
    with pytest.raises(InvariantError):
        await consumers.fetch(Position(TOKENS.name, 0, 1), deadline=within(10_000))
    kept = await consumers.fetch(Position(TOKENS.name, 0, 3), deadline=within(10_000))
    assert seqs([kept]) == [3]
    await reader.close()


async def test_a_topic_created_anew_stops_the_reader_of_the_old_one(own_bus: Harness) -> None:
    consumers = own_bus.consumers()
    await write(own_bus, 5, partition=0)
    reader = consumers.reader({TOKENS: {0: 0}})
    assert len(await take(reader, 5)) == 5
    own_bus.recreate(TOKENS)
    with pytest.raises(InvariantError):
        await take(reader, 1)
    await reader.close()


async def test_fetch_returns_the_record_at_a_position_in_any_order(bus: Harness) -> None:
    consumers = bus.consumers()
    start = await consumers.ends(TOKENS)
    await write(bus, 20, partition=0)
    await write(bus, 20, partition=1, first=100)
    for partition, seq in ((0, 3), (0, 4), (1, 2), (0, 19), (0, 0)):
        position = Position(TOKENS.name, partition, start[partition] + seq)
        read = await consumers.fetch(position, deadline=within(10_000))
        assert (read.partition, read.offset) == (partition, position.offset)
        assert seqs([read]) == [partition * 100 + seq]


async def test_fetch_of_what_is_not_there_yet_gives_up_at_the_deadline(bus: Harness) -> None:
    consumers = bus.consumers()
    ends = await consumers.ends(TOKENS)
    with pytest.raises(TransientError, match="a late record"):
        await consumers.fetch(
            Position(TOKENS.name, 2, ends[2]), deadline=within(300, "a late record")
        )


async def test_a_reader_of_frames_gives_the_bytes_of_some_topics_and_decodes_the_rest(
    bus: Harness,
) -> None:
    consumers = bus.consumers()
    start = dict(await consumers.ends(TOKENS))
    letters = dict(await consumers.ends(DEAD_LETTERS))
    await write(bus, 300, partition=1)
    bus.append_raw(TOKENS, 1, b"no frame at all")
    await write(bus, 300, partition=1, first=300)
    bus.append_raw(DEAD_LETTERS, 2, b"no frame either")
    reader = consumers.frames({TOKENS: start, DEAD_LETTERS: letters}, framed=[TOKENS])
    raws: dict[int, bytes] = {}
    others: list[Message] = []
    deadline = within(10_000)
    while len(raws) + len(others) < 602 and not deadline.is_over(now_ms=within(0).at_ms):
        for one in await reader.poll(records_max=100, timeout_s=1):
            if not isinstance(one, Frames):
                others.append(one)
                continue
            assert (one.topic, one.partition, one.offset) == (TOKENS.name, 1, one.offsets[-1])
            assert len(one) == len(one.raws) == len(one.timestamps_ms) == len(one.keys)
            assert list(one.offsets) == sorted(one.offsets)
            assert min(one.offsets) > max(raws, default=-1)
            raws.update(zip(one.offsets, one.raws, strict=True))
    assert list(raws) == list(range(start[1], start[1] + 601))
    expected = [b"no frame at all" if seq is None else seq for seq in [*range(300), None]]
    found = [
        raw if raw == b"no frame at all" else CODEC.decode(TOKENS, raw).seq
        for raw in list(raws.values())
    ]
    assert found == [*expected, *range(300, 600)]
    assert [type(one) for one in others] == [Poisoned]
    assert reader.positions()[TOKENS.name, 1] == start[1] + 601
    await reader.close()
