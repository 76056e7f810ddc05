"""Reads what counts of one episode's WAL: everything in its partition up to a fence (design section
5, fencing).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.deadline import Deadline
from schemas.ports import Consumers, Delivered, Poisoned
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, Verdict
from schemas.topics import TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """An episode's WAL up to and including a fence."""

    wal: EpisodeWal
    delivered: dict[int, Delivered[Any]]
    """The episode's records by offset."""
    fence_offset: int
    """Offset of our fence. Unit: records."""
    verdict: Verdict
    """What our fence counts as: current or void."""


async def read_prefix(
    consumers: Consumers,
    *,
    partition: int,
    floor: int,
    fence: TokenCommit,
    fence_offset: int,
    deadline: Deadline,
) -> Prefix:
    """Read [floor, fence] of the partition and return what counts of the fence's episode.

    Raises TransientError when the deadline passes.
    """
    reader = consumers.reader({TOKENS: {partition: floor}})
    try:
        place = (TOKENS.name, partition)
        messages = await reader.read_to({place: fence_offset + 1}, deadline=deadline)
    finally:
        await reader.close()
    wal = EpisodeWal()
    delivered: dict[int, Delivered[Any]] = {}
    key = fence.episode_id.encode()
    for message in messages:
        if isinstance(message, Poisoned):
            if message.key == key:
                wal.take_bad(offset=message.offset)
            continue
        record: TokenCommit = message.record
        if record.episode_id != fence.episode_id:
            continue
        delivered[message.offset] = message
        verdict = wal.take(message.offset, record)
        if message.offset == fence_offset and same_record(record, fence):
            return Prefix(wal=wal, delivered=delivered, fence_offset=fence_offset, verdict=verdict)
    # The fence was acknowledged, so its bytes must have been damaged in the log: it counts for
    # nobody.
    return Prefix(wal=wal, delivered=delivered, fence_offset=-1, verdict=Verdict.UNDECODABLE)


def same_record(one: TokenCommit, other: TokenCommit) -> bool:
    """Whether two records are the same write: episode, fence, writer and seq agree."""
    return (
        one.episode_id == other.episode_id
        and one.attempt == other.attempt
        and one.fence_number == other.fence_number
        and one.seq == other.seq
        and one.kind == other.kind
        and one.writer_id == other.writer_id
        and one.incarnation == other.incarnation
        and one.producer_number == other.producer_number
    )


def floor_of(starts: Mapping[int, int], partition: int, tokens_floor: int) -> int:
    """Return where to read from: the floor of the episode's first lease, else the run's start."""
    return tokens_floor if tokens_floor >= 0 else starts.get(partition, 0)
