"""Environment, inference, verifier and learner as one short writer each, for tests of the jobs
between them.

They write the records that the real ones write, with right checksums, spans and digests, and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from producers.presence import Presence
from schemas import topics
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import (
    EpisodeEventKind,
    LearnerEventKind,
    Purpose,
    Role,
    StopCause,
    TokenKind,
    VerdictCode,
    WorkerStatus,
)
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId, group_id, task_id
from schemas.packing import Span, crc32c, pack_floats, pack_ids, pack_logprobs, pack_spans
from schemas.ports import Clock, Context, Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import TrainedMember
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.verifier_result import VerifierResult
from tests.support.clocks import RealClock
from tests.support.memory_bus import MemoryBus

RUN = RunId("run-1")
DIGEST = "ab" * 32
DIGESTS = " ".join((DIGEST, "cd" * 32, "ef" * 32))
_SEND_MS = 5_000


def context_on(
    bus: MemoryBus,
    worker: str,
    *,
    run: RunId = RUN,
    incarnation: str = "a",
    stop: asyncio.Event | None = None,
    clock: Clock | None = None,
) -> Context:
    """Return the context of a worker on a memory bus; the run begins at the start of every log."""
    return Context(
        run_id=run,
        worker_id=WorkerId(worker),
        incarnation=incarnation,
        producer=bus.producer(),
        consumers=bus.consumers(),
        clock=clock or RealClock(),
        starts={topic.name: dict.fromkeys(range(bus.partitions), 0) for topic in topics.ALL},
        secret=b"secret",
        stop=stop or asyncio.Event(),
    )


@dataclass(kw_only=True)
class WalWriter:
    """Commits of one episode under one fence, as an inference worker writes them."""

    episode_id: EpisodeId
    group_id: GroupId
    attempt: int = 1
    fence_number: int = 1
    worker: str = "inference-0"
    run: RunId = RUN
    seq: int = 0
    length: int = 0
    turn: int = 0

    def fence(self) -> TokenCommit:
        """Return the Fence."""
        self.seq = 0
        return self._made(TokenKind.FENCE, seq=-1, digests=DIGESTS)

    def prompt(self, count: int) -> TokenCommit:
        """Return a Prompt of `count` tokens."""
        return self._tokens(TokenKind.PROMPT, count, digests=DIGESTS)

    def observation(self, count: int) -> TokenCommit:
        """Return an Observation of `count` tokens."""
        return self._tokens(TokenKind.OBSERVATION, count)

    def action(self, count: int, version: Version = Version(0, 0)) -> TokenCommit:  # noqa: B008  frozen
        """Return an Action of `count` tokens under one version."""
        span = Span(self.length, self.length + count, version)
        return self._tokens(
            TokenKind.ACTION,
            count,
            logprobs=pack_logprobs([-0.5] * count),
            spans=pack_spans([span]),
            sampling=pack_floats([0.7, 1.0, 0.0, 64.0]),
        )

    def _tokens(self, kind: TokenKind, count: int, **fields: Any) -> TokenCommit:
        ids = pack_ids(range(self.length, self.length + count))
        made = self._made(
            kind, seq=self.seq, start=self.length, count=count, token_ids=ids, **fields
        )
        self.seq += 1
        self.length += count
        return made

    def _made(self, kind: TokenKind, **fields: Any) -> TokenCommit:
        commit = TokenCommit(
            run_id=self.run,
            episode_id=self.episode_id,
            group_id=self.group_id,
            attempt=self.attempt,
            fence_number=self.fence_number,
            writer_id=WorkerId(self.worker),
            incarnation="a",
            producer_number=1,
            kind=kind,
            turn=self.turn,
            crc32c=0,
            at_us=1,
            **fields,
        )
        return replace(commit, crc32c=crc32c(commit.token_ids, commit.logprobs, commit.spans))


def ended(
    leased: EpisodeEvent,
    *,
    wal_position: int = -1,
    cause: StopCause = StopCause.POLICY_STOP,
    worker: str = "",
) -> EpisodeEvent:
    """Return the Ended of a lease."""
    return EpisodeEvent(
        run_id=leased.run_id,
        episode_id=leased.episode_id,
        group_id=leased.group_id,
        kind=EpisodeEventKind.ENDED,
        task_id=leased.task_id,
        ordinal=leased.ordinal,
        member=leased.member,
        purpose=leased.purpose,
        attempt=leased.attempt,
        stop_cause=cause,
        wal_position=wal_position,
        turns=1,
        at_us=1,
        writer_id=WorkerId(worker or leased.worker_id),
    )


def verdict(leased: EpisodeEvent, reward: float, *, digest: str = DIGEST) -> VerifierResult:
    """Return a verdict of 1.0 or less on a lease's attempt."""
    return VerifierResult(
        run_id=leased.run_id,
        episode_id=leased.episode_id,
        group_id=leased.group_id,
        attempt=leased.attempt,
        verifier_digest=digest,
        code=VerdictCode.CORRECT if reward >= 1.0 else VerdictCode.WRONG_ANSWER,
        reward=reward,
        components={"answer": reward},
        at_us=1,
        writer_id=WorkerId("verifier-0"),
    )


def policy(version: Version = Version(0, 0), ordinal: int = 0, run: RunId = RUN) -> PolicyVersion:  # noqa: B008  frozen
    """Return the registry record of a version; its digest names it."""
    return PolicyVersion(
        run_id=run,
        epoch=version.epoch,
        number=version.number,
        ordinal=ordinal,
        digest=digest_of(version),
        location="nowhere",
        at_us=1,
        writer_id=WorkerId("learner-0"),
    )


def digest_of(version: Version) -> str:
    """Return a digest that tells a version's weights apart."""
    return f"{version.epoch:032x}{version.number:032x}"


@dataclass(kw_only=True)
class FakeEnvironment:
    """Runs every lease it is given: fence, prompt, actions, verdict, Ended."""

    codec: Codec
    partitions: int
    context: Context
    capacity: int = 64
    reward: Callable[[EpisodeEvent], float] = lambda leased: float(leased.member % 2)
    cause: Callable[[EpisodeEvent], StopCause | None] = lambda _: StopCause.POLICY_STOP
    """How an attempt ends; None hangs for ever."""
    pace_s: float = 0.0
    seen: list[EpisodeEvent] = field(default_factory=list)
    lengths: dict[EpisodeId, int] = field(default_factory=dict)
    """Tokens written by earlier attempts."""

    async def run(self) -> None:
        """Serve until the context's stop is set."""
        presence = Presence(self.context, Role.ENVIRONMENT, "", self.capacity)
        await presence.announce(WorkerStatus.READY)
        starts = dict.fromkeys(range(self.partitions), 0)
        reader = self.context.consumers.reader({topics.EPISODES: starts})
        versions = self.context.consumers.reader({topics.POLICIES: starts})
        newest = Version(0, 0)
        running: set[asyncio.Task[None]] = set()
        while not self.context.stop.is_set():
            for message in await versions.poll(records_max=500, timeout_s=0.0):
                if isinstance(message, Delivered):
                    newest = max(newest, Version(message.record.epoch, message.record.number))
            for message in await reader.poll(records_max=500, timeout_s=0.02):
                if not isinstance(message, Delivered):
                    continue
                event = message.record
                if event.kind is EpisodeEventKind.LEASED and (
                    event.worker_id == self.context.worker_id
                ):
                    self.seen.append(event)
                    task = asyncio.create_task(self._episode(event, newest))
                    running.add(task)
                    task.add_done_callback(running.discard)
        await presence.announce(WorkerStatus.STOPPED)
        for task in running:
            task.cancel()

    async def _episode(self, leased: EpisodeEvent, version: Version) -> None:
        cause = self.cause(leased)
        if cause is None:
            return
        writer = WalWriter(
            episode_id=leased.episode_id,
            group_id=leased.group_id,
            attempt=leased.attempt,
            run=self.context.run_id,
        )
        if self.pace_s:
            await asyncio.sleep(self.pace_s)
        position = -1
        if leased.attempt == 1 or not cause.is_retried:
            for commit in (
                writer.fence(),
                *self._prefix(writer),
                writer.action(7, version),
                writer.action(5, version),
            ):
                position = await self._send(topics.TOKENS, commit)
            self.lengths[writer.episode_id] = writer.length
        digest = self.codec.decode(topics.TASKS, leased.task_frame).verifier_digest
        if not cause.is_retried:
            result = verdict(leased, self.reward(leased), digest=digest)
            await self._send(topics.VERDICTS, result)
        await self._send(topics.EPISODES, ended(leased, wal_position=position, cause=cause))

    def _prefix(self, writer: WalWriter) -> tuple[TokenCommit, ...]:
        # What an earlier attempt left is continued; a real worker reads it from the log.
        writer.length = self.lengths.get(writer.episode_id, 0)
        if writer.length:
            return ()
        return (writer.prompt(11),)

    async def _send(self, topic: topics.Topic[Any], record: Any) -> int:
        deadline = Deadline.after(
            _SEND_MS, now_ms=self.context.clock.monotonic_ms(), waiting_for="a test record"
        )
        acked = await self.context.producer.send(topic, record, deadline=deadline)
        return acked.offset


@dataclass(kw_only=True)
class FakeLearner:
    """Takes batches of gated trajectories, each id once; publishes, checkpoints and closes."""

    partitions: int
    context: Context
    batch: int
    checkpoint_every: int = 1
    epoch: int = 1
    number: int = 0
    taken: dict[EpisodeId, GatedTrajectory] = field(default_factory=dict)
    repeats: int = 0

    async def run(self) -> None:
        """Learn until EndOfStream was read, then close."""
        await self._send(topics.POLICIES, policy(run=self.context.run_id))
        await self._event(LearnerEventKind.EPOCH_STARTED)
        await self._event(LearnerEventKind.RESTORED)
        starts = dict.fromkeys(range(self.partitions), 0)
        gated = self.context.consumers.reader({topics.GATED: starts})
        control = self.context.consumers.reader({topics.CONTROL: starts})
        buffer: list[Delivered[GatedTrajectory]] = []
        while not self.context.stop.is_set():
            for message in await gated.poll(records_max=500, timeout_s=0.02):
                if isinstance(message, Delivered):
                    if message.record.episode_id in self.taken:
                        self.repeats += 1
                        continue
                    self.taken[message.record.episode_id] = message.record
                    buffer.append(message)
            while len(buffer) >= self.batch:
                await self._step(buffer[: self.batch])
                del buffer[: self.batch]
            for message in await control.poll(records_max=100, timeout_s=0.0):
                if isinstance(message, Delivered) and message.record.kind == "end_of_stream":
                    await self._event(LearnerEventKind.CLOSED)
                    return

    async def _step(self, batch: list[Delivered[GatedTrajectory]]) -> None:
        self.number += 1
        members = tuple(
            TrainedMember(
                episode_id=one.record.episode_id, partition=one.partition, offset=one.offset
            )
            for one in batch
        )
        await self._event(LearnerEventKind.STEP, trained=members)
        version = Version(self.epoch, self.number)
        await self._send(topics.POLICIES, policy(version, self.number, run=self.context.run_id))
        if self.number % self.checkpoint_every == 0:
            await self._event(LearnerEventKind.CHECKPOINTED)

    async def _event(self, kind: LearnerEventKind, **fields: Any) -> None:
        event = LearnerEvent(
            run_id=self.context.run_id,
            kind=kind,
            epoch=self.epoch,
            learner_id=self.context.worker_id,
            number=self.number,
            ordinal=self.number,
            at_us=1,
            writer_id=self.context.worker_id,
            **fields,
        )
        await self._send(topics.LEARNER_STEPS, event)

    async def _send(self, topic: topics.Topic[Any], record: Any) -> None:
        deadline = Deadline.after(
            _SEND_MS, now_ms=self.context.clock.monotonic_ms(), waiting_for="a test record"
        )
        await self.context.producer.send(topic, record, deadline=deadline)


def task(ordinal: int = 0, *, size: int = 2, run: RunId = RUN, **fields: Any) -> Task:
    """Return a Task of no package, for jobs that only pass it on."""
    values: dict[str, Any] = {
        "environment": "arithmetic",
        "environment_digest": DIGEST,
        "verifier_digest": DIGEST,
        "purpose": Purpose.TRAIN,
    }
    return Task(
        run_id=run,
        task_id=task_id(run, ordinal),
        group_id=group_id(run, ordinal),
        ordinal=ordinal,
        group_size=size,
        at_us=1,
        writer_id=WorkerId("task-source-0"),
        **(values | fields),
    )


async def until(is_true: Callable[[], bool], *jobs: Awaitable[Any], limit_s: float = 10.0) -> None:
    """Run jobs until a condition holds; fail when one of them fails, or when it takes too long."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        async with asyncio.timeout(limit_s):
            while not is_true():
                for one in tasks:
                    if one.done():
                        one.result()
                await asyncio.sleep(0.005)
    finally:
        for one in tasks:
            one.cancel()
        for one in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await one


CODEC = Codec.local()
