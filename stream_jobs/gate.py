"""The gate: decides each group once, and hands what was admitted to the learner.

Consumes: `trajectories` (as a member of its consumer group), and the same partitions of `episodes`
and `gate-decisions`; `policies`, `learner-steps`, `control`. Produces: `gate-decisions`, `gated`.
Waits for: trajectories, and Abandoned that complete a group; for what it reads beside them up to
ends sampled when a trajectory arrived. Unblocked by: those records; EndOfStream or the stop signal
end it.

After an unknown outcome it reads on: a decision that stands is found and followed, one that does
not is made again, and a `gated` record that was written twice is a repeat to the learner.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from producers.metrics import Metrics
from producers.presence import Presence
from schemas.codec import Codec
from schemas.enums import DropReason, Role, WorkerStatus
from schemas.errors import TransientError, UnknownOutcomeError
from schemas.ids import EpisodeId, Version
from schemas.ports import (
    Assigned,
    Context,
    Delivered,
    Floor,
    GroupEvent,
    GroupReader,
    Message,
    Poisoned,
    Revoked,
)
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.rules.lineage import LearnerLog
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    POLICIES,
    TRAJECTORIES,
    Topic,
)
from stream_jobs.core.deciding import Writer, decision_on, gated_record
from stream_jobs.core.floors import Floors
from stream_jobs.core.gate import Arrived, GatePartition, Owed
from stream_jobs.core.run_control import RunControl
from stream_jobs.core.staleness import Bounds, Judged, constant, exponential, inverse, judge
from stream_jobs.reading import (
    Places,
    RunLog,
    all_starts,
    episode_partitions,
    run_starts,
    settled,
)
from stream_jobs.settings import GateSettings, LagWeight

_LOG = logging.getLogger("sluice.gate")
_SHARED: tuple[Topic[Any], ...] = (POLICIES, LEARNER_STEPS, CONTROL)
_BESIDE: tuple[Topic[Any], ...] = (EPISODES, GATE_DECISIONS)
_JOINED = TRAJECTORIES.name
_BESIDE_MAX = 5_000


async def run(context: Context, settings: GateSettings, *, codec: Codec) -> None:
    """Decide until the stream ends or the process is asked to stop."""
    await Gate(context, settings, codec).run()


def bounds_of(settings: GateSettings) -> Bounds:
    """Return what the core needs."""
    rate = settings.lag_weight_rate
    weights = {
        LagWeight.CONSTANT: constant,
        LagWeight.INVERSE: inverse(rate),
        LagWeight.EXPONENTIAL: exponential(rate),
    }
    return Bounds(
        max_lag_steps=settings.max_lag_steps,
        max_age_ms=int(settings.max_age_s * 1000),
        weight=weights[settings.lag_weight],
    )


class Gate:
    """See the module."""

    def __init__(self, context: Context, settings: GateSettings, codec: Codec) -> None:
        self._context = context
        self._settings = settings
        self._codec = codec
        self._bounds = bounds_of(settings)
        self.learner = LearnerLog()
        self.control = RunControl()
        self.registry: dict[Version, str] = {}
        self.partitions: dict[int, GatePartition] = {}
        self._presence = Presence(context, Role.GATE, "", 0)
        self._metrics = Metrics(context)
        self._log: RunLog
        self._committed_ms = 0
        self._skewed = 0

    async def run(self) -> None:
        """Join the group and decide."""
        context, settings = self._context, self._settings
        self._log = RunLog(
            context,
            Role.GATE,
            await all_starts(context, _SHARED),
            deadline_ms=int(settings.bus_deadline_s * 1000),
        )
        partitions = await episode_partitions(context)
        group = context.consumers.group(
            TRAJECTORIES,
            group=f"gate-{context.run_id}",
            member=context.worker_id,
            starts=run_starts(context, TRAJECTORIES, range(partitions)),
            floors=self._floors,
        )
        try:
            await self._presence.announce(WorkerStatus.READY)
            ended = False
            while not (ended or context.stop.is_set()):
                # One more look after EndOfStream: what was complete by then is decided.
                ended = self.control.end_of_stream is not None
                events = await group.poll(
                    records_max=settings.records_max, timeout_s=settings.poll_s
                )
                await self._look(events)
                await self._commit(group)
        finally:
            await group.close()
            await self._presence.announce(WorkerStatus.STOPPED)
            await self._log.close()

    async def _look(self, events: Collection[GroupEvent]) -> None:
        arrivals: list[tuple[int, Arrived | None]] = []
        for event in events:
            match event:
                case Assigned():
                    await self._begin(event)
                case Revoked():
                    self._give_up(event)
                    arrivals = [one for one in arrivals if one[0] not in event.partitions]
                case Delivered() | Poisoned() if event.partition in self.partitions:
                    arrivals.append((event.partition, await self._arrived(event)))
                case _:
                    pass
        owned = tuple(self.partitions)
        if arrivals:
            beside: Places = {**dict.fromkeys(_SHARED), **dict.fromkeys(_BESIDE, owned)}
            self._take(await self._log.read_past(beside))
        else:
            self._take(await self._log.poll(records_max=_BESIDE_MAX, timeout_s=0.0))
        await self._place_strangers()
        for partition, arrived in arrivals:
            if arrived is not None and partition in self.partitions:
                self.partitions[partition].take_trajectory(arrived)
        try:
            await self._decide()
            await self._hand_over()
        except UnknownOutcomeError as error:
            _LOG.warning("%s: reads on, and writes again what is not there", error)
            await self._context.producer.renew()

    async def _begin(self, assigned: Assigned) -> None:
        """Read decisions first, then episodes, both to their ends; trajectories follow from their
        floor.
        """
        for partition in assigned.partitions:
            starts = {
                topic.name: run_starts(self._context, topic, (partition,))[partition]
                for topic in (TRAJECTORIES, *_BESIDE)
            }
            floors = Floors.read(assigned.committed.get(partition), starts=starts, joined=_JOINED)
            self.partitions[partition] = GatePartition(floors)
            for topic in _BESIDE:
                self._log.reader.add(topic, {partition: floors.others[topic.name]})
        for topic in (GATE_DECISIONS, EPISODES):
            self._take(await self._log.read_past({topic: assigned.partitions}))
        for partition in assigned.partitions:
            self.partitions[partition].place_strangers()

    def _give_up(self, revoked: Revoked) -> None:
        for partition in revoked.partitions:
            self.partitions.pop(partition, None)
        for topic in _BESIDE:
            self._log.reader.remove(topic, revoked.partitions)

    async def _arrived(self, message: Message) -> Arrived | None:
        match message:
            case Poisoned():
                await self._log.bury(message)
                return Arrived(
                    offset=message.offset,
                    timestamp_ms=message.timestamp_ms,
                    episode_id=EpisodeId((message.key or b"").decode(errors="replace")),
                    trajectory=None,
                    error=message.error,
                )
            case Delivered(record=trajectory) if trajectory.run_id == self._context.run_id:
                return Arrived(
                    offset=message.offset,
                    timestamp_ms=message.timestamp_ms,
                    episode_id=trajectory.episode_id,
                    trajectory=trajectory,
                )
            case _:
                return None

    def _take(self, messages: Collection[Message]) -> None:
        for message in messages:
            if not isinstance(message, Delivered):
                continue
            offset, at_ms = message.offset, message.timestamp_ms
            owned = self.partitions.get(message.partition)
            match message.record:
                case EpisodeEvent() as event if owned is not None:
                    owned.take_episode(offset, at_ms, event)
                case GateDecision() as decision if owned is not None:
                    owned.take_decision(offset, decision)
                case LearnerEvent() as learner_event:
                    self.learner.take(offset, at_ms, learner_event)
                case PolicyVersion() as policy:
                    version = Version(policy.epoch, policy.number)
                    self.registry.setdefault(version, policy.digest)
                case ControlEvent() as control:
                    self.control.take(offset, at_ms, control)
                case _:
                    pass

    async def _place_strangers(self) -> None:
        strange = [p for p, owned in self.partitions.items() if owned.has_strangers]
        if strange:
            self._take(await self._log.read_past({EPISODES: strange}))
            for partition in strange:
                self.partitions[partition].place_strangers()

    def _writer(self) -> Writer:
        context = self._context
        return Writer(
            run_id=context.run_id, worker_id=context.worker_id, at_us=context.clock.now_us()
        )

    async def _decide(self) -> None:
        writer = self._writer()
        judging = partial(self._judge, now_ms=writer.at_us // 1000)
        decisions = [
            decision_on(
                group,
                judge=judging,
                rule=self._settings.group_rule,
                learner=self.learner,
                is_draining=self.control.is_draining,
                writer=writer,
            )
            for owned in self.partitions.values()
            for group in owned.complete()
        ]
        if not decisions:
            return
        pending = [self._context.producer.offer(GATE_DECISIONS, one) for one in decisions]
        await settled(
            pending,
            clock_ms=self._context.clock.monotonic_ms(),
            deadline=self._log.deadline("acknowledgements of decisions"),
        )
        # Only what is read back is followed: another gate's decision may stand before ours.
        self._take(await self._log.read_past({GATE_DECISIONS: tuple(self.partitions)}))

    def _judge(self, arrived: Arrived, *, now_ms: int) -> Judged:
        if arrived.trajectory is None:
            return Judged(reason=DropReason.INVALID_RECORD, detail=arrived.error)
        judged = judge(
            arrived.trajectory,
            timestamp_ms=arrived.timestamp_ms,
            now_ms=now_ms,
            learner=self.learner,
            registry=self.registry,
            bounds=self._bounds,
            is_draining=self.control.is_draining,
        )
        observe = self._metrics.observe
        if judged.is_skewed:
            self._skewed += 1
            observe("gate_clock_skew_records", float(self._skewed), "records")
        if not judged.is_valid:
            _LOG.info("drops %s (%s) %s", arrived.episode_id, judged.reason, judged.detail)
        return judged

    async def _hand_over(self) -> None:
        """Write one `gated` record per Admit that was read, whoever decided."""
        owed = [(p, one) for p, owned in self.partitions.items() for one in owned.owed()]
        if not owed:
            return
        producer, writer = self._context.producer, self._writer()
        pending = [
            producer.offer(GATED, self._gated(partition, one, writer)) for partition, one in owed
        ]
        acked = await settled(
            pending,
            clock_ms=self._context.clock.monotonic_ms(),
            deadline=self._log.deadline("acknowledgements of gated records"),
        )
        if len(acked) < len(owed):
            # The queue was full for some; all are written again, and the learner counts those as
            # repeats.
            return
        for partition, one in owed:
            self.partitions[partition].sent(one)

    def _gated(self, partition: int, owed: Owed, writer: Writer) -> GatedTrajectory:
        trajectory = owed.arrived.trajectory
        assert trajectory is not None, "what could not be decoded is never admitted"
        return gated_record(
            owed,
            committed=self.partitions[partition].committed,
            frame=self._codec.encode(TRAJECTORIES, trajectory),
            writer=writer,
        )

    async def _commit(self, group: GroupReader) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if now_ms - self._committed_ms < self._settings.commit_interval_s * 1000:
            return
        self._committed_ms = now_ms
        floors = self._floors(tuple(self.partitions))
        try:
            await group.commit(floors)
        except TransientError as error:
            _LOG.warning("floors are not committed: %s; the next look tries again", error)
            return
        for partition in group.owned & floors.keys():
            floor = floors[partition]
            # Only now may `gated` records name it: what lies below is finished even for whoever
            # takes over.
            self.partitions[partition].committed = floor.offset
        observe = self._metrics.observe
        groups = sum(owned.open_groups for owned in self.partitions.values())
        superseded = sum(owned.superseded for owned in self.partitions.values())
        observe("gate_open_groups", float(groups), "groups")
        observe("gate_superseded_trajectories", float(superseded), "trajectories")

    def _floors(self, partitions: Collection[int]) -> Mapping[int, Floor]:
        return {
            partition: self.partitions[partition].floors().to_floor()
            for partition in partitions
            if partition in self.partitions
        }
