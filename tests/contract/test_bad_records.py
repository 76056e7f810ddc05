"""Damaged bytes on any topic, of any kind: a reader gives them as poison in their place and goes
on, and a dead letter keeps every byte of them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from consumers.dead_letters import bury, whole
from schemas.codec import Codec
from schemas.enums import Role
from schemas.ids import RunId, WorkerId
from schemas.ports import Context, Delivered, Message, Poisoned
from schemas.records.dead_letter import DeadLetter
from schemas.topics import ALL, DEAD_LETTERS, EPISODES, TRAJECTORIES, VERIFY_REQUESTS, Topic
from tests.contract.conftest import Harness
from tests.support.clocks import RealClock
from tests.support.random_records import RecordBuilder
from tests.support.records import within

CODEC = Codec.local()
BROKER_BYTES_MAX = 1_000_000


def flipped(raw: bytes, dice: Random) -> bytes:
    place = dice.randrange(5, len(raw))
    return raw[:place] + bytes([raw[place] ^ (1 << dice.randrange(8))]) + raw[place + 1 :]


DAMAGE: dict[str, Callable[[bytes, Random], bytes]] = {
    "empty": lambda _raw, _dice: b"",
    "a part of the prefix": lambda raw, _dice: raw[:3],
    "nothing behind the prefix": lambda raw, _dice: raw[:5],
    "cut short": lambda raw, dice: raw[: dice.randrange(6, len(raw))],
    "another magic byte": lambda raw, _dice: b"\x01" + raw[1:],
    "a schema that nobody knows": lambda raw, _dice: (
        raw[:1] + (987_654).to_bytes(4, "big") + raw[5:]
    ),
    "more than the record": lambda raw, _dice: raw + b"\x00more",
    "no frame at all": lambda _raw, _dice: b"{'json': true}",
    "as large as a broker takes": lambda raw, dice: (
        raw + dice.randbytes(BROKER_BYTES_MAX - len(raw))
    ),
    "a flipped bit": flipped,
    "another flipped bit": flipped,
    "noise": lambda raw, dice: raw[:5] + dice.randbytes(40),
}
MAY_DECODE = {"a flipped bit", "another flipped bit", "noise"}
"""A flipped bit can make another good record: the codec has no checksum, those that need one do."""


def good(topic: Topic[Any], seed: int) -> bytes:
    return CODEC.encode(topic, RecordBuilder(seed, size_max=400).record(topic))


def damaged(topic: Topic[Any], seed: int) -> list[bytes]:
    """Return one of each kind, made of the topic's own records."""
    dice = Random(seed)
    return [harm(good(topic, seed + n), dice) for n, harm in enumerate(DAMAGE.values())]


def braided(topic: Topic[Any], bad: list[bytes], seed: int) -> list[bytes]:
    """Return bad records with a good one before, between and behind them."""
    found = [good(topic, seed)]
    for raw in bad:
        found += [raw, good(topic, seed)]
    return found


def check(topic: Topic[Any], raws: list[bytes], read: list[Message]) -> list[Poisoned]:
    """Hold what was read against what was written; return the poison."""
    assert len(read) == len(raws), topic.name
    names = list(DAMAGE)
    poison: list[Poisoned] = []
    for place, (raw, message) in enumerate(zip(raws, read, strict=True)):
        if place % 2 == 0:
            assert isinstance(message, Delivered), topic.name
            assert CODEC.encode(topic, message.record) == raw
        elif isinstance(message, Poisoned):
            assert (message.raw, message.topic) == (raw, topic.name)
            assert message.error
            poison.append(message)
        else:
            assert names[place // 2] in MAY_DECODE, f"{topic.name}: {names[place // 2]} was taken"
    return poison


async def read_all(bus: Harness, topics: list[Topic[Any]], count: int) -> dict[str, list[Message]]:
    reader = bus.consumers().reader({topic: {0: 0} for topic in topics})
    found: dict[str, list[Message]] = {topic.name: [] for topic in topics}
    deadline = within(30_000)
    while any(len(one) < count for one in found.values()):
        assert not deadline.is_over(now_ms=RealClock().monotonic_ms()), "the reader stands"
        for message in await reader.poll(records_max=500, timeout_s=1):
            found[message.topic].append(message)
    await reader.close()
    return found


def context_of(bus: Harness) -> Context:
    return Context(
        run_id=RunId("run-1"),
        worker_id=WorkerId("reader-0"),
        incarnation="a",
        producer=bus.producer(),
        consumers=bus.consumers(),
        clock=RealClock(),
        starts={},
        secret=b"",
        stop=asyncio.Event(),
    )


async def test_damage_of_any_kind_on_any_topic_stops_no_reader_and_is_kept_whole(
    own_bus: Harness,
) -> None:
    written = {
        topic.name: braided(topic, damaged(topic, n), n) for n, topic in enumerate(ALL, start=1)
    }
    for topic in ALL:
        own_bus.append_raw(topic, 0, *written[topic.name])
    read = await read_all(own_bus, list(ALL), 2 * len(DAMAGE) + 1)
    poison = [one for topic in ALL for one in check(topic, written[topic.name], read[topic.name])]
    assert len(poison) >= len(ALL) * (len(DAMAGE) - len(MAY_DECODE))
    context = context_of(own_bus)
    before = await context.consumers.ends(DEAD_LETTERS)
    for one in poison:
        await bury(context, one, role=Role.ASSEMBLER)
    reader = context.consumers.reader({DEAD_LETTERS: before})
    ends = {(DEAD_LETTERS.name, p): e for p, e in (await reader.ends(DEAD_LETTERS)).items()}
    parts: dict[tuple[str, int], list[DeadLetter]] = {}
    for message in await reader.read_to(ends, deadline=within(20_000)):
        assert isinstance(message, Delivered)
        letter = message.record
        parts.setdefault((letter.origin_topic, letter.origin_offset), []).append(letter)
    assert {place: whole(one) for place, one in parts.items()} == {
        (one.topic, one.offset): one.raw for one in poison
    }
    await reader.close()


@pytest.mark.parametrize("topic", [EPISODES, TRAJECTORIES, VERIFY_REQUESTS], ids=lambda t: t.name)
async def test_damage_on_a_topic_that_a_group_joins_stops_no_member(
    own_bus: Harness, topic: Topic[Any]
) -> None:
    raws = braided(topic, damaged(topic, 7), 7)
    own_bus.append_raw(topic, 0, *raws)
    reader = own_bus.consumers().group(
        topic, group=f"g-{uuid.uuid4().hex[:6]}", member="one", starts={}, floors=lambda _: {}
    )
    read: list[Message] = []
    deadline = within(30_000)
    while len(read) < len(raws):
        assert not deadline.is_over(now_ms=RealClock().monotonic_ms()), "the member stands"
        events = await reader.poll(records_max=100, timeout_s=1)
        read += [one for one in events if isinstance(one, Delivered | Poisoned)]
    assert check(topic, raws, read)
    await reader.close()
