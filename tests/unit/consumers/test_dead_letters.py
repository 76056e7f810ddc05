"""A poison record is kept whole, with its place, before it may be skipped."""

from __future__ import annotations

import pytest

from consumers.dead_letters import bury, whole
from schemas.enums import Role
from schemas.errors import UnknownOutcomeError
from schemas.ports import Poisoned
from schemas.topics import DEAD_LETTER_PART_BYTES, DEAD_LETTERS, TOKENS
from tests.support.contexts import context_on
from tests.support.memory_bus import Fault, MemoryBus


async def poison(bus: MemoryBus, raw: bytes) -> Poisoned:
    bus.append_raw(TOKENS, partition=1, raw=raw, key=b"k")
    reader = bus.consumers().reader({TOKENS: {1: 0}})
    (found,) = await reader.poll(records_max=1, timeout_s=1)
    assert isinstance(found, Poisoned)
    return found


async def test_a_small_record_is_one_letter_that_names_its_place_and_error() -> None:
    bus = MemoryBus(partitions=2)
    await bury(context_on(bus), await poison(bus, b"junk"), role=Role.GATE)
    (letter,) = bus.records(DEAD_LETTERS)
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == (
        "tokens.v1", 1, 0
    )  # fmt: skip
    assert (letter.raw, letter.origin_key, letter.consumer) == (b"junk", b"k", "gate")
    assert letter.schema_id == -1
    assert letter.error_class == "PoisonRecordError"
    assert "magic" in letter.error


async def test_a_large_record_is_kept_in_parts_that_make_it_whole_again() -> None:
    bus = MemoryBus(partitions=2)
    raw = bytes(range(256)) * (DEAD_LETTER_PART_BYTES // 256) + b"rest" * 500
    await bury(context_on(bus), await poison(bus, raw), role=Role.SINK)
    parts = bus.records(DEAD_LETTERS)
    assert [(one.part, one.parts) for one in parts] == [(0, 2), (1, 2)]
    assert whole(parts) == raw
    with pytest.raises(ValueError, match="not all"):
        whole(parts[1:])


async def test_a_letter_without_an_acknowledgement_is_not_a_letter() -> None:
    bus = MemoryBus(partitions=2)
    found = await poison(bus, b"junk")
    bus.faults.next(Fault.UNKNOWN_LOST)
    with pytest.raises(UnknownOutcomeError):
        await bury(context_on(bus), found, role=Role.GATE)
