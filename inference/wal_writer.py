"""The token WAL writer of one worker: sessions are fenced and read, commits offered, unknown
outcomes settled.

Consumes: tokens.v1, one partition from an episode's floor to its fence. Produces: tokens.v1. Waits
for: the fence's acknowledgement and the read up to it, inside the caller's deadline. Unblocked by:
the broker, or `refence`, which makes the environment name a higher number; the writer never takes
one itself and never produces a record again blindly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inference.refusals import Code, RefusedError, refence
from inference.wal_reading import Prefix, floor_of, read_prefix
from inference.wal_stream import EpisodeStream, FenceIdentity
from schemas.deadline import Deadline
from schemas.enums import TokenKind
from schemas.errors import RejectedError, TransientError, UnknownOutcomeError
from schemas.ids import EpisodeId, RunId, WorkerId, group_of_episode
from schemas.partition import partition_of
from schemas.ports import Context, Pending
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import FenceId, Verdict
from schemas.topics import TOKENS

_READERS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """What the environment names when it turns to this worker."""

    episode_id: EpisodeId
    attempt: int
    fence_number: int
    tokens_floor: int
    """End offset of the partition before the episode's first lease; -1 when not known."""
    is_first: bool
    """The environment states that it has sent no request for this episode before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A fenced episode: the right to write, and what counts so far."""

    stream: EpisodeStream
    prefix: Prefix | None
    """None for a first attempt's first fence, before which nothing can count."""


class WalWriter:
    """Writes the token WAL of all episodes of one worker through one producer."""

    def __init__(
        self, context: Context, *, digests: str, measure: Callable[[int], None] | None = None
    ) -> None:
        """`digests` stand in every Fence; `measure` is given each commit's latency in us."""
        self._context = context
        self._digests = digests
        self._measure = measure
        self._streams: set[EpisodeStream] = set()
        self._partitions = 0
        self._renewal: asyncio.Task[None] | None = None
        self._readers = asyncio.Semaphore(_READERS_MAX)
        self.unknown_outcomes = 0
        """How often an outcome was unknown and the producer was renewed."""

    @property
    def run_id(self) -> RunId:
        """The run."""
        return self._context.run_id

    @property
    def worker_id(self) -> WorkerId:
        """This worker."""
        return self._context.worker_id

    @property
    def incarnation(self) -> str:
        """This start of the worker."""
        return self._context.incarnation

    @property
    def producer_number(self) -> int:
        """How often this process has opened a producer."""
        return self._context.producer.number

    @property
    def live(self) -> int:
        """Streams that may write."""
        return len(self._streams)

    @property
    def uncommitted(self) -> int:
        """Commits handed over and not yet durable, over all streams."""
        return sum(stream.unsettled for stream in self._streams)

    def now_us(self) -> int:
        """The wall clock of the worker. Unit: us."""
        return self._context.clock.now_us()

    def monotonic_us(self) -> int:
        """What lengths of time are taken from. Unit: us."""
        return self._context.clock.monotonic_us()

    def offer(self, record: TokenCommit) -> Pending:
        """Hand a record to the producer."""
        return self._context.producer.offer(TOKENS, record)

    def measure(self, latency_us: int) -> None:
        """Note the time from offer to acknowledgement of one commit."""
        if self._measure is not None:
            self._measure(latency_us)

    def forget(self, stream: EpisodeStream) -> None:
        """Drop a stream that has ended."""
        self._streams.discard(stream)

    async def open(self, request: OpenRequest, *, deadline: Deadline) -> Opened:
        """Fence an episode and read what counts before the fence.

        Raises RefusedError: `refence` when the fence is void or its outcome unknown, `fenced` if a
        higher attempt holds the episode; TransientError when the deadline passes.
        """
        await self._renewed(deadline)
        group = group_of_episode(request.episode_id)
        if not self._partitions:
            self._partitions = await self._context.consumers.partitions(TOKENS)
        identity = FenceIdentity(
            episode_id=request.episode_id,
            group_id=group,
            attempt=request.attempt,
            fence_number=request.fence_number,
            partition=partition_of(group, self._partitions),
            producer_number=self.producer_number,
        )
        fence = self._fence(identity)
        offset = await self._append(fence, deadline)
        if request.is_first and request.attempt == 1:
            # Nothing of the episode can stand before its first attempt's first fence.
            return Opened(stream=self._stream(identity, offset, None), prefix=None)
        prefix = await self._read(identity, fence, offset, request.tokens_floor, deadline)
        if prefix.verdict is not Verdict.CURRENT:
            raise _void(prefix, identity)
        if self.producer_number != identity.producer_number:
            raise refence("the producer was renewed meanwhile", highest=identity.fence_number)
        stream = self._stream(identity, prefix.fence_offset, prefix)
        return Opened(stream=stream, prefix=prefix)

    def unknown(self, why: str) -> None:
        """Discard the producer after an unknown outcome; every live stream ends with `refence`."""
        if self._renewal is not None and not self._renewal.done():
            return
        self.unknown_outcomes += 1
        self._renewal = asyncio.get_running_loop().create_task(self._renew(why))

    async def close(self, *, deadline: Deadline) -> int:
        """Wait for the acknowledgements of all streams; return how many commits stay unsettled."""
        clock = self._context.clock
        while self.uncommitted and not deadline.is_over(now_ms=clock.monotonic_ms()):
            await asyncio.sleep(0.005)
        left = self.uncommitted
        for stream in tuple(self._streams):
            stream.close(refence("the worker is stopping", highest=stream.identity.fence_number))
        return left

    def _fence(self, identity: FenceIdentity) -> TokenCommit:
        return TokenCommit(
            run_id=self.run_id,
            episode_id=identity.episode_id,
            group_id=identity.group_id,
            attempt=identity.attempt,
            fence_number=identity.fence_number,
            writer_id=self.worker_id,
            incarnation=self.incarnation,
            producer_number=identity.producer_number,
            kind=TokenKind.FENCE,
            digests=self._digests,
            crc32c=0,
            at_us=self.now_us(),
        )

    async def _append(self, fence: TokenCommit, deadline: Deadline) -> int:
        try:
            acked = await self._context.producer.send(TOKENS, fence, deadline=deadline)
        except UnknownOutcomeError as error:
            self.unknown(str(error))
            raise refence(
                "whether the fence is in the log is unknown", highest=fence.fence_number
            ) from error
        except RejectedError as error:
            raise RefusedError(
                Code.ENGINE_FAILED, f"the log refused the fence: {error}", hint="ask again"
            ) from error
        return acked.offset

    async def _read(
        self,
        identity: FenceIdentity,
        fence: TokenCommit,
        offset: int,
        tokens_floor: int,
        deadline: Deadline,
    ) -> Prefix:
        starts = self._context.starts.get(TOKENS.name, {})
        async with self._readers:
            return await read_prefix(
                self._context.consumers,
                partition=identity.partition,
                floor=floor_of(starts, identity.partition, tokens_floor),
                fence=fence,
                fence_offset=offset,
                deadline=deadline,
            )

    def _stream(self, identity: FenceIdentity, offset: int, prefix: Prefix | None) -> EpisodeStream:
        wal = None if prefix is None else prefix.wal
        stream = EpisodeStream(
            self,
            identity,
            fence_offset=offset,
            length=0 if wal is None else wal.length,
            branch=0 if wal is None else wal.branch,
            last_offset=-1 if wal is None else wal.last_offset,
        )
        self._streams.add(stream)
        return stream

    async def _renew(self, why: str) -> None:
        for stream in tuple(self._streams):
            stream.close(refence(why, highest=stream.identity.fence_number))
        await self._context.producer.renew()

    async def _renewed(self, deadline: Deadline) -> None:
        if self._renewal is None:
            return
        left_ms = deadline.left_ms(now_ms=self._context.clock.monotonic_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                await asyncio.shield(self._renewal)
        except TimeoutError as error:
            raise TransientError(
                f"gave up on {deadline.waiting_for}", hint="is the broker up?"
            ) from error


def _void(prefix: Prefix, identity: FenceIdentity) -> RefusedError:
    own = FenceId(identity.attempt, identity.fence_number)
    current = prefix.wal.fence
    if current is not None and current.attempt > own.attempt:
        return RefusedError(
            Code.FENCED,
            f"attempt {current.attempt} holds the episode; attempt {own.attempt} may not write",
            hint="this attempt is over: stop it",
            fence_number=current.number,
            attempt=current.attempt,
        )
    highest = max(own.number, current.number if current is not None else own.number)
    return refence(f"fence {own.number} is void: {highest} was read", highest=highest)
