"""The learner's side of the bus: its own log, `control`, and what it writes.

Consumes: `learner-steps`, `control`, `workers`, `refreshes`, `policies`. Produces: `learner-steps`,
`policies`, `payloads`, and a dead letter for each record that it cannot read. Waits for:
acknowledgements and its own records, each inside `send_s`. Unblocked by: the broker's answer.
Invariants: every record of ours is read back before anything rests on it, and a higher epoch ends
this process; an acknowledgement that stays unknown ends it too, since only the next epoch's fence
can settle it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consumers.dead_letters import bury
from learner.core.run_state import RunControl
from learner.settings import LearnerSettings
from schemas.deadline import Deadline
from schemas.enums import LearnerEventKind, PayloadContent, RefreshEventKind, Role, WorkerStatus
from schemas.errors import FencedError, InvariantError, UnknownOutcomeError
from schemas.ids import EpisodeId, GroupId, Version
from schemas.packing import crc32c
from schemas.ports import Context, Delivered, LogReader, Message, Poisoned
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.worker_state import WorkerState
from schemas.rules.lineage import LearnerLog
from schemas.topics import (
    CHUNK_BYTES_MAX,
    CONTROL,
    LEARNER_STEPS,
    PAYLOADS,
    POLICIES,
    REFRESHES,
    WORKERS,
)

_RECORDS_MAX = 5_000
_SENDS_MAX = 5


class LearnerBus:
    """Reads and writes everything but trajectories and their payloads."""

    def __init__(self, context: Context, settings: LearnerSettings) -> None:
        self._context, self._settings = context, settings
        self.log = LearnerLog()
        self.control = RunControl()
        self.checkpoint_names: dict[int, str] = {}
        """Folder name by offset of its Checkpointed record."""
        self.restored_epoch = 0
        """Epoch of the last Restored that counts."""
        self.epoch = 0
        """Ours; 0 before `fence`."""
        self._loading: dict[str, Version] = {}
        self._serving: dict[str, Version] = {}
        starts = context.starts
        self._reader: LogReader = context.consumers.reader(
            {topic: starts[topic.name] for topic in (LEARNER_STEPS, CONTROL, WORKERS, REFRESHES)}
        )

    @property
    def served(self) -> frozenset[Version]:
        """Versions that a worker serves or was told to load."""
        return frozenset(self._loading.values()) | frozenset(self._serving.values())

    def deadline(self, waiting_for: str, *, budget_s: float | None = None) -> Deadline:
        """Return a deadline of `send_s`, or of another budget, from now."""
        budget_ms = int(1000 * (self._settings.send_s if budget_s is None else budget_s))
        now_ms = self._context.clock.monotonic_ms()
        return Deadline.after(budget_ms, now_ms=now_ms, waiting_for=waiting_for)

    async def catch_up(self, *, budget_s: float | None = None) -> None:
        """Read the learner's log and `control` to their ends as they are now."""
        ends = {
            (topic.name, partition): end
            for topic in (LEARNER_STEPS, CONTROL)
            for partition, end in (await self._reader.ends(topic)).items()
            if partition in self._context.starts[topic.name]
        }
        waiting = self.deadline("the learner's log", budget_s=budget_s)
        self._take(await self._sound(await self._reader.read_to(ends, deadline=waiting)))

    async def observe(self) -> None:
        """Take what has arrived, without waiting; raise FencedError once a newer learner has
        started.
        """
        arrived = await self._reader.poll(records_max=_RECORDS_MAX, timeout_s=0.0)
        self._take(await self._sound(arrived))

    async def _sound(self, messages: Sequence[Message]) -> list[Delivered[Any]]:
        """Return what could be read, once there is a dead letter for each that could not."""
        for message in messages:
            if isinstance(message, Poisoned):
                await bury(self._context, message, role=Role.LEARNER)
        return [message for message in messages if isinstance(message, Delivered)]

    def _take(self, messages: Sequence[Delivered[Any]]) -> list[tuple[int, bool]]:
        taken = []
        for message in messages:
            if getattr(message.record, "run_id", None) != self._context.run_id:
                continue
            match message.topic:
                case LEARNER_STEPS.name:
                    taken.append((message.offset, self._take_learner(message)))
                case CONTROL.name:
                    self.control.take(message.record)
                case WORKERS.name:
                    self._take_worker(message.record)
                case _:
                    self._take_refresh(message.record)
        if self.epoch and self.log.epoch > self.epoch:
            raise FencedError(
                f"learner epoch {self.log.epoch} ({self.log.learner_id}) has started, ours is "
                f"{self.epoch}",
                hint="the newer learner goes on; this one ends",
            )
        return taken

    def _take_learner(self, message: Delivered[LearnerEvent]) -> bool:
        event = message.record
        counts = self.log.take(message.offset, message.timestamp_ms, event)
        if counts and event.kind is LearnerEventKind.CHECKPOINTED:
            self.checkpoint_names[message.offset] = event.checkpoint_id
        if counts and event.kind is LearnerEventKind.RESTORED:
            self.restored_epoch = event.epoch
        return counts

    def _take_worker(self, state: WorkerState) -> None:
        if state.status in (WorkerStatus.STOPPED, WorkerStatus.FAILED):
            self._serving.pop(state.worker_id, None)
            self._loading.pop(state.worker_id, None)

    def _take_refresh(self, event: RefreshEvent) -> None:
        version = Version(event.epoch, event.number)
        if event.kind is RefreshEventKind.PREPARE:
            self._loading[event.worker_id] = version
        elif event.kind in (RefreshEventKind.LOADED, RefreshEventKind.SERVING):
            self._serving[event.worker_id] = version

    async def fence(self) -> int:
        """Start our epoch and read to it; return it. Raises FencedError when another learner was
        first.
        """
        await self.catch_up(budget_s=self._settings.start_s)
        epoch = self.log.epoch + 1
        event = self.event(LearnerEventKind.EPOCH_STARTED, epoch=epoch)
        _, is_first = await self._append(event)
        # Of two processes under one worker id that start at once, the log tells by the record alone
        # which was first: both name the same learner.
        if not is_first or self.log.epoch != epoch:
            raise FencedError(
                f"learner {self.log.learner_id} has started epoch {self.log.epoch}",
                hint="one learner serves a run; the other goes on",
            )
        self.epoch = epoch
        return epoch

    def event(
        self, kind: LearnerEventKind, *, epoch: int | None = None, **values: object
    ) -> LearnerEvent:
        """Return a record of ours."""
        return LearnerEvent(
            run_id=self._context.run_id,
            kind=kind,
            epoch=self.epoch if epoch is None else epoch,
            learner_id=self._context.worker_id,
            at_us=self._context.clock.now_us(),
            writer_id=self._context.worker_id,
            **values,  # type: ignore[arg-type]  # checked field by field when the record is encoded
        )

    async def append(self, event: LearnerEvent) -> int:
        """Write a record of ours, read up to it, and return its offset.

        Raises FencedError when it does not count, UnknownOutcomeError when it may or may not stand
        in the log.
        """
        offset, counts = await self._append(event)
        if not counts:
            raise FencedError(
                f"our {event.kind} at offset {offset} does not count",
                hint="a newer learner has started, or the log does not continue as we believe",
            )
        return offset

    async def _append(self, event: LearnerEvent) -> tuple[int, bool]:
        waiting = self.deadline(f"the acknowledgement of {event.kind}")
        acked = await self._context.producer.send(LEARNER_STEPS, event, deadline=waiting)
        end = acked.offset + 1
        messages = await self._sound(
            await self._reader.read_to(
                {(LEARNER_STEPS.name, acked.partition): end}, deadline=waiting
            )
        )
        verdicts = dict(self._take(messages))
        for message in messages:
            if message.offset == acked.offset and message.record == event:
                return message.offset, verdicts[message.offset]
        raise InvariantError(
            f"our {event.kind} was acknowledged below offset {end} and is not there",
            hint="was the topic created anew?",
        )

    async def publish(self, policy: PolicyVersion) -> None:
        """Announce a version. Its key names it and its content never changes, so sending it again
        is harmless.
        """
        for attempt in range(_SENDS_MAX):
            try:
                waiting = self.deadline(f"the acknowledgement of version {policy.number}")
                await self._context.producer.send(POLICIES, policy, deadline=waiting)
                return
            except UnknownOutcomeError:
                if attempt + 1 == _SENDS_MAX:
                    raise

    async def policies(self) -> dict[Version, tuple[int, PolicyVersion]]:
        """Return the versions announced so far with their broker time. Unit: ms."""
        reader = self._context.consumers.reader({POLICIES: self._context.starts[POLICIES.name]})
        try:
            ends = await reader.ends(POLICIES)
            known = self._context.starts[POLICIES.name]
            messages = await reader.read_to(
                {(POLICIES.name, p): end for p, end in ends.items() if p in known},
                deadline=self.deadline("the policies", budget_s=self._settings.start_s),
            )
        finally:
            await reader.close()
        found = {}
        for message in await self._sound(messages):
            if message.record.run_id == self._context.run_id:
                policy: PolicyVersion = message.record
                found[Version(policy.epoch, policy.number)] = (message.timestamp_ms, policy)
        return found

    async def put_list(
        self, blob: bytes, *, episode: EpisodeId, group: GroupId
    ) -> tuple[ChunkRef, ...]:
        """Write a list of rejected tokens as chunks and return where they stand.

        Chunks that nothing points at do not count, so one whose acknowledgement stays unknown is
        written again.
        """
        parts = max(1, -(-len(blob) // CHUNK_BYTES_MAX))
        refs = []
        for part in range(parts):
            body = blob[part * CHUNK_BYTES_MAX : (part + 1) * CHUNK_BYTES_MAX]
            chunk = PayloadChunk(
                run_id=self._context.run_id,
                episode_id=episode,
                group_id=group,
                content=PayloadContent.REJECTED_TOKENS,
                part=part,
                parts=parts,
                body=body,
                crc32c=crc32c(body),
                at_us=self._context.clock.now_us(),
                writer_id=self._context.worker_id,
            )
            refs.append(await self._put_chunk(chunk))
        return tuple(refs)

    async def _put_chunk(self, chunk: PayloadChunk) -> ChunkRef:
        for _ in range(_SENDS_MAX):
            waiting = self.deadline("the acknowledgement of rejected tokens")
            try:
                acked = await self._context.producer.send(PAYLOADS, chunk, deadline=waiting)
            except UnknownOutcomeError:
                continue
            return ChunkRef(
                partition=acked.partition,
                offset=acked.offset,
                length=len(chunk.body),
                crc32c=chunk.crc32c,
            )
        raise UnknownOutcomeError(
            "the list of rejected tokens could not be written", hint="is the broker in trouble?"
        )

    async def close(self) -> None:
        """Release the reader."""
        await self._reader.close()
