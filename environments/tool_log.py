"""The tool log as one worker writes and reads it: durable writes, read-backs, fences of an attempt.

Consumes `tool-events` (one tail per process, and a reader of its own for the fence of a new
attempt); produces `tool-events`. It waits for acknowledgements and for the tail to pass an offset;
each wait has the caller's Deadline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import TypeVar

from environments.lease_facts import Lease, Writer
from schemas.deadline import Deadline
from schemas.enums import ToolEventKind
from schemas.errors import Boundary, FencedError, TransientError
from schemas.ids import EpisodeId
from schemas.ports import Context, Delivered, Message
from schemas.records.tool_event import ToolEvent
from schemas.rules.tools import ToolLog
from schemas.topics import TOOL_EVENTS

F = TypeVar("F")
_READERS_MAX = 4


class ToolLogShell:
    """Writes tool records, and knows from the tail what stands in the log."""

    def __init__(self, context: Context, *, fences_max: int) -> None:
        self._context = context
        self._fences_max = fences_max
        self._fences: OrderedDict[EpisodeId, int] = OrderedDict()
        self._next: dict[int, int] = {}
        self._passing: dict[int, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)
        self._readers = asyncio.Semaphore(_READERS_MAX)

    def take(self, message: Message) -> None:
        """Take the next record of the tail, poisoned ones included: they only move it on."""
        if isinstance(message, Delivered):
            self._note(message.record)
        partition, offset = message.partition, message.offset
        self._next[partition] = offset + 1
        still = []
        for wanted, future in self._passing[partition]:
            if wanted > offset:
                still.append((wanted, future))
            elif not future.done():
                future.set_result(None)
        self._passing[partition] = still

    def _note(self, event: ToolEvent) -> None:
        if event.run_id != self._context.run_id:
            return
        if event.kind is ToolEventKind.FENCE:
            highest = max(event.attempt, self._fences.pop(event.episode_id, 0))
            self._fences[event.episode_id] = highest
            if len(self._fences) > self._fences_max:
                self._fences.popitem(last=False)

    async def write(self, event: ToolEvent, *, deadline: Deadline) -> int:
        """Append a record and return its offset.

        Raises RejectedError, UnknownOutcomeError.
        """
        return (await self._context.producer.send(TOOL_EVENTS, event, deadline=deadline)).offset

    async def is_clear(self, lease: Lease, offset: int, *, deadline: Deadline) -> bool:
        """Read back to an Intent and return whether no higher Fence stands before it.

        A higher Fence after it is seen too when the tail has passed it: refusing is safe either
        way.
        """
        if self._next.get(lease.partition, 0) <= offset:
            passing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._passing[lease.partition].append((offset, passing))
            await self._within(passing, deadline)
        return self._fences.get(lease.episode_id, 0) <= lease.attempt

    async def _within(self, future: asyncio.Future[F], deadline: Deadline) -> F:
        left_s = deadline.left_ms(now_ms=self._context.clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(left_s):
                return await future
        except TimeoutError as error:
            raise TransientError(
                f"gave up waiting for {deadline.waiting_for}",
                boundary=Boundary.BUS,
                hint="the reader of tool-events lags; see its offsets",
            ) from error

    async def fence(self, writer: Writer, *, deadline: Deadline) -> tuple[int, ToolLog]:
        """Append the Fence of an attempt, read up to it and return its offset with the log.

        Raises FencedError when a Fence of this or a higher attempt stood there first.
        """
        lease = writer.lease
        event = writer.tool(ToolEventKind.FENCE, self._context.clock.now_us())
        await self.write(event, deadline=deadline)
        async with self._readers:
            consumers = self._context.consumers
            ends = await consumers.ends(TOOL_EVENTS)
            reader = consumers.reader({TOOL_EVENTS: {lease.partition: lease.tool_events_floor}})
            try:
                name = (TOOL_EVENTS.name, lease.partition)
                messages = await reader.read_to({name: ends[lease.partition]}, deadline=deadline)
            finally:
                await reader.close()
        return self._fenced(lease, event, messages)

    def _fenced(
        self, lease: Lease, fence: ToolEvent, messages: Sequence[Message]
    ) -> tuple[int, ToolLog]:
        log = ToolLog()
        own = -1
        for message in messages:
            if not isinstance(message, Delivered) or message.record.episode_id != lease.episode_id:
                continue
            counts = log.take(message.offset, message.record)
            is_own = message.record == fence
            own = message.offset if is_own and counts else own
        if own < 0 or log.fence_attempt > lease.attempt:
            raise FencedError(
                f"the tool fence of attempt {lease.attempt} does not count: attempt "
                f"{log.fence_attempt} stands in the log",
                hint="the later attempt goes on",
            )
        return own, log
