"""The trajectory assembler: seals each ended episode as one Trajectory, its heavy fields before it.

Consumes: `episodes` (as a member of its consumer group), and the same partitions of `tokens`,
`tool-events`, `verdicts` and `trajectories`; `policies`, `control`. Produces: `payloads`,
`trajectories`. Waits for: the final Ended, what it rests on, and the verdict that names its
attempt. Unblocked by: those records, or the verdict's deadline; EndOfStream or the stop signal end
it.

A Trajectory is written only after the acknowledgement of its chunks, and an episode is closed only
when its first Trajectory is read back. After an unknown outcome the episode is sealed again: of two
copies the first counts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from producers.metrics import Metrics
from producers.presence import Presence
from schemas.codec import Codec
from schemas.enums import Role, VersionSwitch, WorkerStatus
from schemas.errors import PoisonRecordError, TransientError, UnknownOutcomeError
from schemas.ids import EpisodeId, Version
from schemas.ports import (
    Assigned,
    Context,
    Delivered,
    Floor,
    GroupEvent,
    Message,
    Poisoned,
    Revoked,
)
from schemas.records.control_event import ControlEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.topics import (
    CONTROL,
    EPISODES,
    PAYLOADS,
    POLICIES,
    TASKS,
    TOKENS,
    TRAJECTORIES,
    VERDICTS,
    Topic,
)
from stream_jobs.core.assembly import BESIDE, AssemblerPartition, Assembly
from stream_jobs.core.floors import Floors
from stream_jobs.core.run_control import RunControl
from stream_jobs.core.sealing import SealRules, oldest_version, seal
from stream_jobs.reading import RunLog, all_starts, episode_partitions, run_starts, settled
from stream_jobs.settings import AssemblerSettings

_LOG = logging.getLogger("sluice.assembler")
_SHARED: tuple[Topic[Any], ...] = (POLICIES, CONTROL)
_LOOK_MS = 250
_COLLECTOR_PACE = (100_000, 50, 100)


async def run(context: Context, settings: AssemblerSettings, *, codec: Codec) -> None:
    """Seal until the stream ends or the process is asked to stop."""
    # Commits live until their episode is sealed; at its usual pace the collector walks them all
    # again and again, which costs a fifth of the throughput.
    gc.set_threshold(*_COLLECTOR_PACE)
    await Assembler(context, settings, codec).run()


class Assembler:
    """See the module."""

    def __init__(self, context: Context, settings: AssemblerSettings, codec: Codec) -> None:
        self._context = context
        self._settings = settings
        self._codec = codec
        self._rules = SealRules(
            run_id=context.run_id,
            worker_id=context.worker_id,
            fault_reward=settings.fault_reward,
            switch=VersionSwitch.PINNED if settings.pinned else VersionSwitch.SPANNING,
        )
        self.partitions: dict[int, AssemblerPartition] = {}
        self.control = RunControl()
        self.registry: dict[Version, str] = {}
        self._presence = Presence(context, Role.ASSEMBLER, "", 0)
        self._metrics = Metrics(context)
        self._log: RunLog
        self._seals: set[asyncio.Task[None]] = set()
        self._is_producer_lost = False
        self._committed_ms = 0
        self._looked_ms = 0

    async def run(self) -> None:
        """Join the group and seal."""
        context, settings = self._context, self._settings
        self._log = RunLog(
            context,
            Role.ASSEMBLER,
            await all_starts(context, _SHARED),
            deadline_ms=int(settings.bus_deadline_s * 1000),
        )
        partitions = await episode_partitions(context)
        group = context.consumers.group(
            EPISODES,
            group=f"assembler-{context.run_id}",
            member=context.worker_id,
            starts=run_starts(context, EPISODES, range(partitions)),
            floors=self._floors,
        )
        try:
            self.take(await self._log.read_past(dict.fromkeys(_SHARED)))
            await self._presence.announce(WorkerStatus.READY)
            wait_s = 0.0
            while not (self.control.end_of_stream or context.stop.is_set()):
                events = await group.poll(records_max=settings.records_max, timeout_s=wait_s)
                await self._take_events(events)
                beside = await self._log.poll(records_max=settings.records_max, timeout_s=wait_s)
                self.take(beside)
                # Each wait is half the time, since there are two readers to hear.
                wait_s = 0.0 if events or beside else settings.poll_s / 2
                await self._look()
                await self._seal_ready()
                await self._commit(group.commit)
        finally:
            await self._stop_seals()
            await group.close()
            await self._presence.announce(WorkerStatus.STOPPED)
            await self._log.close()

    def take(self, messages: Collection[Message]) -> None:
        """Take what was read beside `episodes`."""
        partitions = self.partitions
        tokens = TOKENS.name
        for message in messages:
            owned = partitions.get(message.partition)
            if message.topic == tokens:
                if owned is None:
                    continue
                if isinstance(message, Delivered):
                    owned.take_commit(message.offset, message.record)
                else:
                    owned.take_bad_commit(message.offset, _episode_of(message))
            elif isinstance(message, Poisoned):
                if owned is not None:
                    owned.skip(message.topic, message.offset)
            else:
                self._take_other(message, owned)

    def _take_other(self, message: Delivered[Any], owned: AssemblerPartition | None) -> None:
        offset, at_ms = message.offset, message.timestamp_ms
        match message.record:
            case ToolEvent() as event if owned is not None:
                owned.take_tool(offset, event)
            case VerifierResult() as verdict if owned is not None:
                owned.take_verdict(offset, at_ms, verdict)
            case Trajectory() as trajectory if owned is not None:
                owned.take_trajectory(offset, trajectory)
            case PolicyVersion() as policy:
                self.registry.setdefault(Version(policy.epoch, policy.number), policy.digest)
            case ControlEvent() as control:
                self.control.take(offset, at_ms, control)
            case TokenCommit() | _:
                pass

    async def _take_events(self, events: Collection[GroupEvent]) -> None:
        for event in events:
            match event:
                case Assigned():
                    await self._begin(event)
                case Revoked():
                    for partition in event.partitions:
                        self.partitions.pop(partition, None)
                    for topic in BESIDE:
                        self._log.reader.remove(topic, event.partitions)
                case Poisoned() | Delivered() if event.partition in self.partitions:
                    await self._take_episode(event, self.partitions[event.partition])
                case _:
                    pass

    async def _take_episode(self, message: Message, owned: AssemblerPartition) -> None:
        if isinstance(message, Poisoned):
            await self._log.bury(message)
            owned.skip(EPISODES.name, message.offset)
        elif message.record.run_id == self._context.run_id:
            owned.take_episode(message.offset, message.timestamp_ms, message.record)
        else:
            owned.skip(EPISODES.name, message.offset)

    async def _begin(self, assigned: Assigned) -> None:
        """Learn what is sealed from `trajectories`, then read the rest from its floors."""
        for partition in assigned.partitions:
            starts = {
                topic.name: run_starts(self._context, topic, (partition,))[partition]
                for topic in (EPISODES, *BESIDE)
            }
            floors = Floors.read(
                assigned.committed.get(partition), starts=starts, joined=EPISODES.name
            )
            self.partitions[partition] = AssemblerPartition(
                floors, verdict_deadline_ms=int(self._settings.verdict_deadline_s * 1000)
            )
            for topic in BESIDE:
                self._log.reader.add(topic, {partition: floors.others[topic.name]})
        self.take(await self._log.read_past({TRAJECTORIES: assigned.partitions}))

    async def _look(self) -> None:
        """Sample ends where a verdict is overdue or a stranger is to be told."""
        now_ms = self._context.clock.monotonic_ms()
        if now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        wall_ms = self._context.clock.now_us() // 1000
        overdue = [p for p, owned in self.partitions.items() if owned.overdue(wall_ms=wall_ms)]
        if overdue:
            for partition, end in (await self._log.reader.ends(VERDICTS, overdue)).items():
                self.partitions[partition].take_verdicts_end(end, sampled_ms=wall_ms)
        strange = [p for p, owned in self.partitions.items() if owned.has_strangers]
        if strange:
            for partition, end in (await self._log.reader.ends(EPISODES, strange)).items():
                self.partitions[partition].take_episodes_end(end)

    async def _seal_ready(self) -> None:
        if self._is_producer_lost:
            self._is_producer_lost = False
            await self._context.producer.renew()
        free = self._settings.seals_max - len(self._seals)
        ready = [
            (owned, assembly) for owned in self.partitions.values() for assembly in owned.ready()
        ][: max(0, free)]
        versions = {oldest_version(assembly) for _, assembly in ready} - {None}
        if not versions <= self.registry.keys():
            # A version is announced before it is served, so that an end sampled now lies behind it.
            self.take(await self._log.read_past({POLICIES: None}))
        for _, assembly in ready:
            assembly.is_sealing = True
            task = asyncio.create_task(self._seal(assembly))
            self._seals.add(task)
        for task in [task for task in self._seals if task.done()]:
            self._seals.discard(task)
            task.result()

    async def _seal(self, assembly: Assembly) -> None:
        sealed = seal(
            assembly,
            self._task(assembly),
            registry=self.registry,
            rules=self._rules,
            at_us=self._context.clock.now_us(),
        )
        producer = self._context.producer
        try:
            acked = await settled(
                [producer.offer(PAYLOADS, chunk) for chunk in sealed.chunks],
                clock_ms=self._context.clock.monotonic_ms(),
                deadline=self._log.deadline("acknowledgements of payload chunks"),
            )
            if len(acked) < len(sealed.chunks):
                raise TransientError("the queue was full")
            places = [(ack.partition, ack.offset) for ack in acked]
            await producer.send(
                TRAJECTORIES,
                sealed.placed(places),
                deadline=self._log.deadline("the acknowledgement of a trajectory"),
            )
        except UnknownOutcomeError as error:
            _LOG.warning("%s: %s is sealed again", error, assembly.episode_id)
            self._is_producer_lost = True
            assembly.is_sealing = False
        except TransientError as error:
            _LOG.warning("%s: %s is sealed again", error, assembly.episode_id)
            assembly.is_sealing = False

    def _task(self, assembly: Assembly) -> Task | None:
        try:
            return self._codec.decode(TASKS, assembly.task_frame)
        except PoisonRecordError as error:
            _LOG.error("the task of %s cannot be read: %s", assembly.episode_id, error)
            return None

    async def _stop_seals(self) -> None:
        for task in self._seals:
            task.cancel()
        await asyncio.gather(*self._seals, return_exceptions=True)

    async def _commit(self, commit: Callable[[Mapping[int, Floor]], Awaitable[None]]) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if now_ms - self._committed_ms < self._settings.commit_interval_s * 1000:
            return
        self._committed_ms = now_ms
        try:
            await commit(self._floors(tuple(self.partitions)))
        except TransientError as error:
            _LOG.warning("floors are not committed: %s; the next look tries again", error)
        unsealed = sum(owned.unsealed for owned in self.partitions.values())
        late = sum(owned.late for owned in self.partitions.values())
        self._metrics.observe("assembler_unsealed_episodes", float(unsealed), "episodes")
        self._metrics.observe("assembler_late_records", float(late), "records")

    def _floors(self, partitions: Collection[int]) -> Mapping[int, Floor]:
        return {
            partition: self.partitions[partition].floors().to_floor()
            for partition in partitions
            if partition in self.partitions
        }


def _episode_of(message: Poisoned) -> EpisodeId:
    return EpisodeId((message.key or b"").decode(errors="replace"))
