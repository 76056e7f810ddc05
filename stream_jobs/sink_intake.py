"""What stands on the topics of a run: records, and of the busiest topic columns.

Waits for: records (bounded by `timeout_s`), the acknowledgement of dead letters. Unblocked by: the
broker's answer. Invariants: in log order within a partition; a record that does not decode is
buried before anything behind it is given, whichever way its neighbours are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from consumers.client import message_of
from schemas.codec import Codec
from schemas.enums import Role
from schemas.ports import Context, FrameReader, Frames, Message
from schemas.topics import BY_NAME, Topic
from stream_jobs.core.sink_batches import Place
from stream_jobs.core.sink_slabs import BULK, Held, Slab, in_bulk, merged
from stream_jobs.reading import Sieve, delivered

_ALONE_MAX = 500
"""Records decoded one by one before others get the event loop."""


class Intake(Sieve):
    """Reads all topics of the sink."""

    def __init__(
        self,
        context: Context,
        role: Role,
        codec: Codec,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        *,
        bulk: Collection[str] = tuple(BULK),
    ) -> None:
        """Read from `starts`. bulk: the topics of which columns are read, not records."""
        super().__init__(context, role)
        self._codec = codec
        self._prefixes = {name: codec.frame(BY_NAME[name]) for name in bulk}
        self.reader: FrameReader = context.consumers.frames(
            starts, framed=[BY_NAME[name] for name in bulk]
        )

    async def poll(self, *, records_max: int, timeout_s: float) -> tuple[list[Held], int]:
        """Return what is there of the run, and how many records were looked at."""
        found = await self.reader.poll(records_max=records_max, timeout_s=timeout_s)
        framed: dict[Place, list[Frames]] = {}
        alone: list[Message] = []
        looked_at = 0
        for one in found:
            if isinstance(one, Frames):
                framed.setdefault((one.topic, one.partition), []).append(one)
                looked_at += len(one)
            else:
                alone.append(one)
        held: list[Held] = [*delivered(await self.sift(alone))]
        for some in framed.values():
            held += await self._read(merged(some))
        return held, looked_at + len(alone)

    async def close(self) -> None:
        """Release the client."""
        await self.reader.close()

    async def _read(self, frames: Frames) -> list[Held]:
        held: list[Held] = []
        for one in in_bulk(frames, self._context.run_id, self._prefixes[frames.topic]):
            if isinstance(one, Slab):
                held.append(one)
                continue
            for begin in range(0, len(one), _ALONE_MAX):
                held += delivered(await self.sift(self._decoded(one[begin : begin + _ALONE_MAX])))
                await asyncio.sleep(0)
        return held

    def _decoded(self, frames: Frames) -> list[Message]:
        places = ((frames.topic, frames.partition, offset) for offset in frames.offsets)
        rows = zip(places, frames.timestamps_ms, frames.keys, frames.raws, strict=True)
        return [
            message_of(self._codec, place, at, key=key, raw=raw) for place, at, key, raw in rows
        ]
