"""Fetches the payload chunks of a step: sorted ranges per partition, through one long-lived reader.

Consumes: `payloads`. Waits for: the broker, inside the caller's deadline. Unblocked by: its answer.
A payload that is gone, of something else or fails its checksum is lost, and is said so, never
repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.deadline import Deadline
from schemas.enums import PayloadContent
from schemas.errors import InvariantError
from schemas.ids import EpisodeId
from schemas.packing import crc32c
from schemas.ports import Context, Delivered, LogReader, Message, Position
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.trajectory import Trajectory
from schemas.topics import PAYLOADS

# Chunks of skipped trajectories lie between; reading over a few of them is cheaper than a new seek.
_GAP_RECORDS = 64


@dataclass(frozen=True, slots=True)
class Lost:
    """A payload that cannot be had, and why."""

    why: str


class PayloadFetcher:
    """Reads payloads by position; keeps its reader over the life of the learner."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reader: LogReader | None = None
        self._partitions: set[int] = set()

    async def fetch(
        self, trajectories: Sequence[Trajectory], *, deadline: Deadline
    ) -> dict[EpisodeId, bytes | Lost]:
        """Return each trajectory's payload, joined and checked, or why it is lost.

        Raises TransientError when the deadline passes first.
        """
        wanted: dict[int, set[int]] = {}
        for trajectory in trajectories:
            for chunk in trajectory.chunks:
                wanted.setdefault(chunk.partition, set()).add(chunk.offset)
        found: dict[tuple[int, int], Message] = {}
        for partition, offsets in sorted(wanted.items()):
            for first, last in _ranges(sorted(offsets)):
                await self._read(partition, first, last, offsets, found, deadline)
        return {t.episode_id: _join(t, found) for t in trajectories}

    async def _read(
        self,
        partition: int,
        first: int,
        last: int,
        offsets: set[int],
        found: dict[tuple[int, int], Message],
        deadline: Deadline,
    ) -> None:
        reader = self._seek(partition, first)
        try:
            messages = await reader.read_to(
                {(PAYLOADS.name, partition): last + 1}, deadline=deadline
            )
        except InvariantError:
            # Trimmed below, or past the end: what is not there is lost to these trajectories, not
            # to the run.
            await self._forget()
            return
        for message in messages:
            if message.offset in offsets:
                found[partition, message.offset] = message

    def _seek(self, partition: int, first: int) -> LogReader:
        starts = {partition: first}
        if self._reader is None:
            self._reader = self._context.consumers.reader({PAYLOADS: starts}, jumps=True)
        elif partition not in self._partitions:
            self._reader.add(PAYLOADS, starts)
        else:
            at = self._reader.positions().get((PAYLOADS.name, partition), -1)
            if not first - _GAP_RECORDS <= at <= first:
                self._reader.remove(PAYLOADS, [partition])
                self._reader.add(PAYLOADS, starts)
        self._partitions.add(partition)
        return self._reader

    async def _forget(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        self._reader, self._partitions = None, set()

    async def close(self) -> None:
        """Release the reader."""
        await self._forget()


def _ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return closed ranges that cover sorted offsets, joined over small gaps."""
    out: list[tuple[int, int]] = []
    for offset in offsets:
        if out and offset - out[-1][1] <= _GAP_RECORDS:
            out[-1] = (out[-1][0], offset)
        else:
            out.append((offset, offset))
    return out


def _join(trajectory: Trajectory, found: Mapping[tuple[int, int], Message]) -> bytes | Lost:
    bodies = []
    for part, chunk in enumerate(trajectory.chunks):
        place = Position(PAYLOADS.name, chunk.partition, chunk.offset)
        message = found.get((chunk.partition, chunk.offset))
        if not isinstance(message, Delivered):
            return Lost(f"{place} holds no chunk that can be read")
        record: PayloadChunk = message.record
        if (
            record.episode_id != trajectory.episode_id
            or record.content is not PayloadContent.TRAJECTORY_TOKENS
            or record.part != part
        ):
            return Lost(f"{place} holds part {record.part} of {record.episode_id}")
        if len(record.body) != chunk.length or crc32c(record.body) != chunk.crc32c:
            return Lost(f"{place} fails the checksum that its trajectory names")
        bodies.append(record.body)
    blob = b"".join(bodies)
    if len(blob) != trajectory.payload_length or crc32c(blob) != trajectory.payload_crc32c:
        return Lost("the joined payload fails the checksum of its trajectory")
    return blob
