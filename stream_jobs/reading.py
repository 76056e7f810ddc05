"""How stream jobs read the topics of one run: from its Start, only its own records, poison buried
and handed on.

Waits for: the bus, each time with a deadline that names the wait. Unblocked by: the broker's
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from consumers.dead_letters import bury
from schemas.deadline import Deadline
from schemas.enums import Role
from schemas.errors import RejectedError, UnknownOutcomeError
from schemas.ports import (
    Acked,
    Acknowledgement,
    Context,
    Delivered,
    LogReader,
    Message,
    Pending,
    Poisoned,
    Rejected,
    Unknown,
)
from schemas.topics import EPISODES, Topic

Places: TypeAlias = Mapping[Topic[Any], Collection[int] | None]
"""Topics with the partitions that are meant; None is all of them."""


class Sieve:
    """Lets through the records of one run; what could not be decoded is buried."""

    def __init__(self, context: Context, role: Role) -> None:
        self._context = context
        self._role = role
        self.poisoned = 0
        """Records that could not be decoded. Unit: records."""

    async def sift(self, messages: Iterable[Message]) -> list[Message]:
        """Leave other runs' records out and bury what could not be decoded; it stays in the
        result.
        """
        kept: list[Message] = []
        for message in messages:
            if isinstance(message, Poisoned):
                await self.bury(message)
                kept.append(message)
            elif message.record.run_id == self._context.run_id:
                kept.append(message)
        return kept

    async def bury(self, poisoned: Poisoned) -> None:
        """Write a dead letter and count it."""
        self.poisoned += 1
        await bury(self._context, poisoned, role=self._role)


class RunLog(Sieve):
    """A LogReader on the records of one run."""

    def __init__(
        self,
        context: Context,
        role: Role,
        starts: Mapping[Topic[Any], Mapping[int, int]],
        *,
        deadline_ms: int,
    ) -> None:
        """Read from `starts`; `deadline_ms` bounds each wait for the bus. Unit: ms."""
        super().__init__(context, role)
        self.reader: LogReader = context.consumers.reader(starts)
        self._deadline_ms = deadline_ms

    async def poll(self, *, records_max: int, timeout_s: float) -> list[Message]:
        """Return what is there, waiting at most `timeout_s` for the first record."""
        return await self.sift(await self.reader.poll(records_max=records_max, timeout_s=timeout_s))

    async def read_past(self, places: Places) -> list[Message]:
        """Read these partitions past the ends that they have now, and return what was read."""
        found = await asyncio.gather(
            *(self.reader.ends(topic, partitions) for topic, partitions in places.items())
        )
        ends = {
            (topic.name, partition): end
            for topic, its_ends in zip(places, found, strict=True)
            for partition, end in its_ends.items()
        }
        return await self.read_to(ends)

    async def read_to(self, ends: Mapping[tuple[str, int], int]) -> list[Message]:
        """Read up to the given ends, exclusive."""
        positions = self.reader.positions()
        wanted = {place: end for place, end in ends.items() if positions.get(place, -1) < end}
        if not wanted:
            return []
        deadline = self.deadline(f"records of {', '.join(sorted({name for name, _ in wanted}))}")
        return await self.sift(await self.reader.read_to(wanted, deadline=deadline))

    def deadline(self, waiting_for: str) -> Deadline:
        """Return the deadline of one wait for the bus that begins now."""
        return Deadline.after(
            self._deadline_ms,
            now_ms=self._context.clock.monotonic_ms(),
            waiting_for=waiting_for,
        )

    async def close(self) -> None:
        """Release the client."""
        await self.reader.close()


def run_starts(context: Context, topic: Topic[Any], partitions: Iterable[int]) -> dict[int, int]:
    """Return where the run begins in these partitions of a topic."""
    starts = context.starts.get(topic.name, {})
    return {partition: starts.get(partition, 0) for partition in partitions}


async def all_starts(
    context: Context, topics: Sequence[Topic[Any]]
) -> dict[Topic[Any], dict[int, int]]:
    """Return where the run begins in every partition of these topics."""
    found: dict[Topic[Any], dict[int, int]] = {}
    for topic in topics:
        count = await context.consumers.partitions(topic)
        found[topic] = run_starts(context, topic, range(count))
    return found


async def episode_partitions(context: Context) -> int:
    """Return n, the number of partitions of every topic that is partitioned by group."""
    return await context.consumers.partitions(EPISODES)


async def settled(pending: Sequence[Pending], *, clock_ms: int, deadline: Deadline) -> list[Acked]:
    """Wait for acknowledgements and return those of what was written; a full queue leaves a record
    out.

    Raises UnknownOutcomeError when one is unknown or does not come in time, RejectedError when the
    bus refuses one for another reason than a full queue. clock_ms: monotonic time now. Unit: ms.
    """
    acked: list[Acked] = []
    try:
        async with asyncio.timeout(deadline.left_ms(now_ms=clock_ms) / 1000):
            outcomes: list[Acknowledgement] = [await one for one in pending]
    except TimeoutError as error:
        raise UnknownOutcomeError(f"gave up on {deadline.waiting_for}") from error
    for outcome in outcomes:
        match outcome:
            case Acked():
                acked.append(outcome)
            case Unknown(reason):
                raise UnknownOutcomeError(f"{deadline.waiting_for}: {reason}")
            case Rejected(reason) if reason.startswith("queue full"):
                pass
            case Rejected(reason):
                raise RejectedError(f"{deadline.waiting_for}: {reason}")
    return acked


def delivered(messages: Iterable[Message]) -> list[Delivered[Any]]:
    """Return only what could be decoded."""
    return [message for message in messages if isinstance(message, Delivered)]
