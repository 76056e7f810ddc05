"""The verifier worker: judges ended attempts with the rubrics that live with their tasks.

Consumes: `verify-requests` as a member of a consumer group. Produces: `verdicts`, `workers`, and
dead letters. Waits for: requests, a free judging process, a judgement (bounded by `judge_s` and
`tries_max`), acknowledgements. Unblocked by: those, or by the stop signal, which lets running
judgements end inside `drain_s`.

Invariants: one verdict per (episode, attempt, verifier digest) and process; an offset is committed
once every request below it has its verdict in the log or its dead letter; a rubric that hangs
costs its own process and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence

from consumers.core.frontier import Frontier
from consumers.dead_letters import bury
from producers.presence import Presence
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import Role, WorkerStatus
from schemas.errors import (
    BusUnreachableError,
    PoisonRecordError,
    RejectedError,
    TransientError,
    UnknownOutcomeError,
)
from schemas.ports import (
    Assigned,
    Context,
    Delivered,
    Floor,
    GroupEvent,
    GroupReader,
    Poisoned,
    Revoked,
)
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest
from schemas.topics import TASKS, VERDICTS, VERIFY_REQUESTS
from verifier.core.memory import Received, VerdictKey, VerdictMemory
from verifier.core.verdicts import Again, Outcome, Refused, Verdict, decide
from verifier.judge import PROGRAM, Judge
from verifier.settings import VerifierSettings

_log = logging.getLogger(__name__)
_RETRY_S = 1.0
_SENDS_MAX = 3


async def run(context: Context, settings: VerifierSettings, *, codec: Codec) -> None:
    """Judge until the stop signal; running judgements may end inside `drain_s`."""
    await VerifierWorker(context, settings, codec).run()


class VerifierWorker:
    """The group membership, the queue and the judges of one process."""

    def __init__(
        self,
        context: Context,
        settings: VerifierSettings,
        codec: Codec,
        *,
        program: str = PROGRAM,
    ) -> None:
        """program: the module that judging processes run."""
        self._context = context
        self._program = program
        self._settings = settings
        self._codec = codec
        self._frontier = Frontier()
        self._starts: Mapping[int, int] = {}
        self._memory = VerdictMemory(settings.remembered_max)
        # Polling stops at `waiting_max`, and one poll brings `records_max` at most.
        self._waiting: asyncio.Queue[Delivered[VerifyRequest]] = asyncio.Queue(
            settings.waiting_max + settings.records_max
        )
        self._failed: BaseException | None = None
        self._presence = Presence(context, Role.VERIFIER, "", settings.processes)

    async def run(self) -> None:
        """See the module."""
        context, settings = self._context, self._settings
        await self._presence.announce(WorkerStatus.STARTING)
        partitions = await context.consumers.partitions(VERIFY_REQUESTS)
        known = context.starts.get(VERIFY_REQUESTS.name, {})
        self._starts = {partition: known.get(partition, 0) for partition in range(partitions)}
        group = context.consumers.group(
            VERIFY_REQUESTS,
            group=f"verifier-{context.run_id}",
            member=context.worker_id,
            starts=self._starts,
            floors=self._floors,
        )
        judging = [
            asyncio.create_task(
                self._judge_all(Judge(settings, program=self._program)), name=f"judge {number}"
            )
            for number in range(settings.processes)
        ]
        for task in judging:
            task.add_done_callback(self._note_failure)
        try:
            await self._presence.announce(WorkerStatus.READY)
            await self._serve(group)
            await self._drain(group)
        finally:
            for task in judging:
                task.cancel()
            await asyncio.wait(judging, timeout=settings.drain_s + 1)
            await group.close()
            status = WorkerStatus.STOPPED if self._failed is None else WorkerStatus.FAILED
            await self._presence.announce(status, detail=str(self._failed or ""))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed = self._failed or task.exception()

    def _floors(self, partitions: Collection[int]) -> Mapping[int, Floor]:
        offsets = self._frontier.offsets()
        return {p: Floor(offset=offsets[p]) for p in partitions if p in offsets}

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()

    async def _serve(self, group: GroupReader) -> None:
        commit_ms = self._now_ms()
        is_paused = False
        while not self._context.stop.is_set():
            if self._failed is not None:
                raise self._failed
            is_full = self._waiting.qsize() >= self._settings.waiting_max
            if is_full != is_paused:
                (group.pause if is_full else group.resume)()
                is_paused = is_full
            await self._poll(group)
            if self._now_ms() - commit_ms >= self._settings.commit_interval_s * 1000:
                commit_ms = self._now_ms()
                await self._commit(group)

    async def _poll(self, group: GroupReader) -> None:
        try:
            events = await group.poll(
                records_max=self._settings.records_max, timeout_s=self._settings.poll_ms / 1000
            )
        except BusUnreachableError as error:
            _log.warning("the bus does not answer: %s", error)
            await asyncio.sleep(_RETRY_S)
            return
        await self._take(events)

    async def _take(self, events: Sequence[GroupEvent]) -> None:
        for event in events:
            match event:
                case Assigned(partitions=partitions, committed=committed):
                    floors = {p: floor.offset for p, floor in committed.items()}
                    self._frontier.assign(
                        {p: floors.get(p, self._starts.get(p, 0)) for p in partitions}
                    )
                case Revoked(partitions=partitions):
                    self._frontier.revoke(partitions)
                case Poisoned():
                    self._frontier.begin(event.partition, event.offset)
                    await bury(self._context, event, role=Role.VERIFIER)
                    self._frontier.finish(event.partition, event.offset)
                case Delivered():
                    self._frontier.begin(event.partition, event.offset)
                    self._receive(event)

    def _receive(self, message: Delivered[VerifyRequest]) -> None:
        request = message.record
        place = (message.partition, message.offset)
        if request.run_id != self._context.run_id:
            self._frontier.finish(*place)
            return
        match self._memory.receive(_key(request), place):
            case Received.NEW:
                self._waiting.put_nowait(message)
            case Received.SETTLED:
                self._frontier.finish(*place)
            case Received.IN_HAND:
                pass

    async def _commit(self, group: GroupReader) -> None:
        try:
            await group.commit(self._floors(group.owned))
        except TransientError as error:
            _log.warning("offsets were not committed, which only repeats work: %s", error)

    async def _drain(self, group: GroupReader) -> None:
        await self._presence.announce(WorkerStatus.DRAINING)
        deadline = self._deadline(self._settings.drain_s, "running judgements")
        group.pause()
        while self._frontier.unfinished and not deadline.is_over(now_ms=self._now_ms()):
            await self._poll(group)
        await self._commit(group)

    def _deadline(self, seconds: float, waiting_for: str) -> Deadline:
        return Deadline.after(int(seconds * 1000), now_ms=self._now_ms(), waiting_for=waiting_for)

    async def _judge_all(self, judge: Judge) -> None:
        """Judge what waits, one at a time, until cancelled."""
        try:
            while True:
                message = await self._waiting.get()
                is_given = False
                try:
                    await self._publish(await self._judged(judge, message))
                    is_given = True
                finally:
                    if not is_given:
                        self._memory.drop(_key(message.record))
                for place in self._memory.give(_key(message.record)):
                    self._frontier.finish(*place)
        finally:
            await judge.close()

    async def _judged(self, judge: Judge, message: Delivered[VerifyRequest]) -> VerifierResult:
        request, clock = message.record, self._context.clock
        began_us = clock.monotonic_us()
        # Between the clocks of two machines, which need not agree: a wait is never below zero.
        queued_us = max(0, clock.now_us() - request.at_us)
        spent_us = 0
        outcomes: list[Outcome] = []
        while True:
            try_us = clock.monotonic_us()
            outcomes.append(await self._try(judge, request))
            spent_us += clock.monotonic_us() - try_us
            decided = decide(
                outcomes,
                tries_max=self._settings.tries_max,
                is_late=0 < request.deadline_us <= clock.now_us(),
            )
            if isinstance(decided, Verdict):
                break
            assert isinstance(decided, Again)
            _log.warning("%s is judged again after %r", request.episode_id, outcomes[-1])
            await asyncio.sleep(self._settings.back_off_ms / 1000)
        if decided.code.is_ours:
            _log.error("%s has no verdict: %s", request.episode_id, decided.evidence)
        evidence = decided.evidence.encode()[: self._settings.evidence_bytes_max].decode(
            errors="ignore"
        )
        return VerifierResult(
            run_id=request.run_id,
            episode_id=request.episode_id,
            group_id=request.group_id,
            attempt=request.attempt,
            verifier_digest=request.verifier_digest,
            code=decided.code,
            reward=decided.reward,
            components=decided.components,
            component_weights=decided.weights,
            evidence_id=hashlib.sha256(evidence.encode()).hexdigest(),
            evidence=evidence,
            clock_owner=decided.clock_owner,
            tries=len(outcomes),
            cost_s=spent_us / 1e6,
            request_offset=message.offset,
            queued_us=queued_us,
            duration_us=clock.monotonic_us() - began_us,
            at_us=clock.now_us(),
            writer_id=self._context.worker_id,
        )

    async def _try(self, judge: Judge, request: VerifyRequest) -> Outcome:
        try:
            task = self._codec.decode(TASKS, request.task_frame)
        except PoisonRecordError as error:
            return Refused(detail=f"the task of the request cannot be read: {error.message}")
        return await judge.judge(request, task)

    async def _publish(self, result: VerifierResult) -> None:
        """Make a verdict durable. A repeat is harmless: of two, the first counts.

        Raises UnknownOutcomeError or RejectedError at last; the process then ends, and the request
        is judged again by whoever owns its partition.
        """
        for tries_left in range(_SENDS_MAX - 1, -1, -1):
            deadline = self._deadline(
                self._settings.send_deadline_s, f"the verdict of {result.episode_id}"
            )
            number = self._context.producer.number
            try:
                await self._context.producer.send(VERDICTS, result, deadline=deadline)
            except (UnknownOutcomeError, RejectedError) as error:
                if not tries_left:
                    raise
                _log.warning("the verdict of %s is sent again: %s", result.episode_id, error)
                if self._context.producer.number == number:
                    await self._context.producer.renew()
            else:
                return


def _key(request: VerifyRequest) -> VerdictKey:
    return VerdictKey(request.episode_id, request.attempt, request.verifier_digest)
