"""How a scheduler comes to be the one that counts, and learns that it no longer is (design section
9).

Consumes: `episodes`, `control`, `workers`. Produces: SchedulerFence. Waits for: silence of the
present leader (its heartbeats in `workers`). Unblocked by: that silence, or its Stopped; a restart
of the same worker does not wait. Invariant: `claim` returns an author only after every partition
was read up to this scheduler's own fence.
"""

from __future__ import annotations

import logging
from typing import Protocol

from schemas.deadline import Deadline
from schemas.enums import ControlKind, Role
from schemas.errors import FencedError
from schemas.ids import WorkerId
from schemas.ports import Acked, Context, Message
from schemas.topics import CONTROL, EPISODES
from stream_jobs.core.authorship import Author
from stream_jobs.core.ledger import Ledger
from stream_jobs.core.roster import Roster
from stream_jobs.reading import RunLog

_LOG = logging.getLogger("sluice.scheduler")


class TakesMessages(Protocol):
    """Puts messages into the ledger."""

    def __call__(self, messages: list[Message]) -> None: ...


def scheduler_id(context: Context) -> WorkerId:
    """Return the id of this process as a scheduler: a restarted process is another one."""
    return WorkerId(f"{context.worker_id}:{context.incarnation}")


class Leadership:
    """The claim of one process; `author` is set while it leads."""

    def __init__(
        self, context: Context, log: RunLog, ledger: Ledger, take: TakesMessages, *, gone_ms: int
    ) -> None:
        """`gone_ms`: how long a leader may be silent. Unit: ms."""
        self._context = context
        self._log = log
        self._ledger = ledger
        self._take = take
        self._gone_ms = gone_ms
        self._me = scheduler_id(context)
        self._since_ms = context.clock.monotonic_ms()
        self.schedulers = Roster(Role.SCHEDULER, gone_ms=gone_ms)
        self.author: Author | None = None

    @property
    def leader(self) -> WorkerId:
        """The worker whose fence is current in partition 0; empty before the first."""
        return WorkerId(str(self._ledger.fence(0).current[1]).rpartition(":")[0])

    def is_vacant(self, *, now_ms: int) -> bool:
        """Whether this process may claim: nobody leads, this worker does, or the leader is
        silent.
        """
        leader = self.leader
        if leader in ("", self._context.worker_id):
            return True
        if not self.schedulers.incarnation(leader):
            return now_ms - self._since_ms >= self._gone_ms
        return self.schedulers.is_gone(leader, now_ms=now_ms)

    async def claim(self, partitions: int) -> Author | None:
        """Try to become the one that counts; return None when another was faster.

        Raises UnknownOutcomeError when a fence's fate is not known: read on and claim again under a
        higher epoch.
        """
        self.author = None
        author = Author(
            run_id=self._context.run_id,
            worker_id=self._context.worker_id,
            epoch=self._ledger.fence(0).current[0] + 1,
            scheduler_id=self._me,
        )
        if not await self._fence(author, 0):
            return None
        for partition in range(1, partitions):
            if not await self._fence(author, partition):
                return None
        if not await self._fence_control(author):
            return None
        self.author = author
        _LOG.info("leads as scheduler epoch %d", author.epoch)
        return author

    def check(self) -> None:
        """Raise FencedError when a newer scheduler's fence was read in any partition."""
        author = self.author
        assert author is not None
        mine = (author.epoch, author.scheduler_id)
        fences = [*self._ledger.fences.values(), self._ledger.control.fences]
        for fence in fences:
            if fence.current > mine or (fence.current[0] == mine[0] and fence.current != mine):
                raise FencedError(
                    f"scheduler epoch {author.epoch} was superseded by {fence.current}",
                    hint="nothing to do: the newer scheduler leads, this one restarts as a standby",
                )

    async def _fence(self, author: Author, partition: int) -> bool:
        record = author.fence(at_us=self._context.clock.now_us())
        acked = await self._context.producer.send(
            EPISODES, record, partition=partition, deadline=self._deadline()
        )
        await self._read_to(EPISODES.name, partition, acked)
        return self._ledger.fence(partition).current == (author.epoch, author.scheduler_id)

    async def _fence_control(self, author: Author) -> bool:
        record = author.control(
            ControlKind.SCHEDULER_FENCE, at_us=self._context.clock.now_us(), reason="takes over"
        )
        acked = await self._context.producer.send(CONTROL, record, deadline=self._deadline())
        await self._read_to(CONTROL.name, acked.partition, acked)
        return self._ledger.control.fences.current == (author.epoch, author.scheduler_id)

    async def _read_to(self, topic: str, partition: int, acked: Acked) -> None:
        self._take(await self._log.read_to({(topic, partition): acked.offset + 1}))

    def _deadline(self) -> Deadline:
        return self._log.deadline("the acknowledgement of a scheduler's fence")
