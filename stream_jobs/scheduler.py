"""The rollout scheduler: issues groups inside the lag bound, leases their episodes to environment
workers, ends the run.

Consumes: `tasks`, `episodes`, `gate-decisions`, `trajectories`, `learner-steps`, `workers`,
`control`, and at the end `gated`. Produces: `episodes` (SchedulerFence, Issued, Leased,
PauseRequested, Resumed, Abandoned) and `control` (Draining, EndOfStream, Snapshot). Waits for:
tasks, seats at environment workers, freed capacity (a decision, a Skipped or a Step), the end of
leases; at the end for the last decisions and for Closed. Unblocked by: the records that say so;
every other wait has a deadline.

What it knows is the log: each round writes its commands, waits for their acknowledgements and reads
them back before it decides again. After an unknown outcome it claims a new epoch, which settles
what was written. A restart reads the heavier topics from the floors of the newest Snapshot.
"""

from __future__ import annotations

import logging
from typing import Any

from producers.metrics import Metrics
from producers.presence import HEARTBEAT_S, Presence
from schemas import topics
from schemas.codec import Codec
from schemas.enums import ControlKind, Role, StopCause, WorkerStatus
from schemas.errors import TransientError, UnknownOutcomeError
from schemas.ports import Context, Message
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.records.worker_state import WorkerState
from schemas.rules.episodes import Floors
from schemas.topics import CONTROL, EPISODES, TASKS, TOKENS, TOOL_EVENTS
from stream_jobs.core.authorship import Author
from stream_jobs.core.issue import (
    BeginDraining,
    Command,
    EndStream,
    GiveLease,
    GiveUp,
    IssueGroup,
    IssueRules,
    RequestPause,
    Round,
    decide,
)
from stream_jobs.core.leases import LeaseLimits
from stream_jobs.core.ledger import LEASE_EXPIRED, WORKER_LOST, Ledger
from stream_jobs.core.partial import PartialRules
from stream_jobs.core.snapshot import FLOORED
from stream_jobs.leadership import Leadership
from stream_jobs.reading import RunLog, all_starts, delivered, episode_partitions, settled
from stream_jobs.settings import SchedulerSettings
from stream_jobs.snapshots import Snapshots
from stream_jobs.stream_end import StreamEnd

_LOG = logging.getLogger("sluice.scheduler")
_LIGHT = (topics.CONTROL, topics.LEARNER_STEPS, topics.WORKERS)
_READS = (*_LIGHT, *FLOORED)
_RECORDS_MAX = 5_000
_REPORT_MS = 1_000
_EXPIRY_LOOK_MS = 250
_ALARM_MS = 15_000
_BEATS_LOST = 4


async def run(context: Context, settings: SchedulerSettings, *, codec: Codec) -> None:
    """Schedule until the run is closed or the process is asked to stop.

    Raises FencedError when a newer scheduler took over, TransientError when the end of the run
    passes its deadline.
    """
    await RolloutScheduler(context, settings, codec).run()


def rules_of(settings: SchedulerSettings) -> IssueRules:
    """Return the numbers that the core needs."""
    return IssueRules(
        batch=settings.batch,
        eta=settings.eta,
        max_concurrent=settings.max_concurrent,
        steps=settings.steps,
        drain_ms=int(settings.drain_s * 1000),
        group_deadline_ms=int(settings.group_deadline_s * 1000),
        retries_max={
            StopCause.ENVIRONMENT_ERROR.value: settings.environment_errors_max,
            StopCause.INFRASTRUCTURE_ERROR.value: settings.infrastructure_errors_max,
            LEASE_EXPIRED: settings.expired_leases_max,
            WORKER_LOST: settings.lost_workers_max,
        },
        retry_delay_ms=int(settings.retry_delay_s * 1000),
        pause_iterations_max=settings.pause_iterations_max,
        partial=PartialRules(
            share=settings.partial_share,
            prompts=max(1, settings.batch // settings.group_size),
            completions=settings.group_size,
        ),
    )


class RolloutScheduler:
    """See the module."""

    def __init__(self, context: Context, settings: SchedulerSettings, codec: Codec) -> None:
        self._context = context
        self._settings = settings
        self._codec = codec
        self._rules = rules_of(settings)
        self._gone_ms = int(settings.worker_gone_s * 1000)
        self.ledger = Ledger(
            context.run_id,
            worker_gone_ms=self._gone_ms,
            limits=LeaseLimits(
                request_deadline_ms=int(settings.request_deadline_s * 1000),
                call_max_ms=int(settings.call_max_s * 1000),
            ),
        )
        self._ending = StreamEnd(context, settings, self.ledger)
        self._snapshots = Snapshots(context, self.ledger, every_ms=int(settings.snapshot_s * 1000))
        # A leader is taken for gone after some beats, whatever the setting is.
        beat_s = min(HEARTBEAT_S, settings.worker_gone_s / _BEATS_LOST)
        self._presence = Presence(context, Role.SCHEDULER, "", 0, heartbeat_s=beat_s)
        self._metrics = Metrics(context)
        self._log: RunLog
        self._leadership: Leadership
        self._partitions = 0
        self._stops_after = -1
        self._reported_ms = 0
        self._moved_ms = context.clock.monotonic_ms()
        self._looked_ms = 0
        self._standing = ""
        self._is_alarmed = False

    async def run(self) -> None:
        """Follow the log; claim the lead when nobody has it; lead; end."""
        context = self._context
        self._partitions = await episode_partitions(context)
        self._log = RunLog(
            context,
            Role.SCHEDULER,
            await all_starts(context, _LIGHT),
            deadline_ms=int(self._settings.bus_deadline_s * 1000),
        )
        self._leadership = Leadership(
            context, self._log, self.ledger, self._take, gone_ms=self._gone_ms
        )
        try:
            self._take(await self._log.read_past(dict.fromkeys(_LIGHT)))
            await self._snapshots.begin(self._log, partitions=self._partitions)
            self._take(await self._log.read_past(dict.fromkeys(_READS)))
            stopped_at = self.ledger.control.stop_offset
            self._stops_after = -1 if stopped_at is None else stopped_at
            while not self._is_over():
                await self._follow()
                try:
                    if not self._is_over() and await self._leadership.claim(self._partitions):
                        await self._lead()
                except UnknownOutcomeError as error:
                    _LOG.warning("%s: claims a new epoch, which settles it", error)
                    await context.producer.renew()
                    self._take(await self._log.read_past(dict.fromkeys(_READS)))
        finally:
            await self._presence.announce(WorkerStatus.STOPPED)
            await self._log.close()

    def _is_over(self) -> bool:
        if self._context.stop.is_set() or self.ledger.learner.closed is not None:
            return True
        stop = self.ledger.control.stop_offset
        # A Stop that was there when this process started belongs to the part of the run that was
        # resumed.
        return stop is not None and stop > self._stops_after

    async def _follow(self) -> None:
        await self._presence.announce(WorkerStatus.READY, detail="standby")
        clock = self._context.clock
        if not self._leadership.is_vacant(now_ms=clock.monotonic_ms()):
            _LOG.info("stands by while %s leads", self._leadership.leader)
        while not self._is_over() and not self._leadership.is_vacant(now_ms=clock.monotonic_ms()):
            self._take(
                await self._log.poll(records_max=_RECORDS_MAX, timeout_s=self._settings.poll_s)
            )

    async def _lead(self) -> None:
        await self._presence.announce(WorkerStatus.READY, detail="leads")
        while not self._is_over():
            messages = await self._log.poll(
                records_max=_RECORDS_MAX, timeout_s=self._settings.poll_s
            )
            self._take(messages)
            await self._expire_leases()
            self._leadership.check()
            clock = self._context.clock
            done = decide(
                self.ledger,
                self._rules,
                now_ms=clock.monotonic_ms(),
                wall_ms=clock.now_us() // 1000,
            )
            self._check_stall(done)
            self._report(done)
            await self._obey(done.commands)
            self._ending.check_deadlines()
            snapshot = self._snapshots.due(self._log, self._author())
            if snapshot is not None:
                self._take(await self._log.read_to(await self._send([(CONTROL, snapshot)])))

    def _take(self, messages: list[Message]) -> None:
        clock = self._context.clock
        now_ms, wall_ms = clock.monotonic_ms(), clock.now_us() // 1000
        ledger = self.ledger
        for message in delivered(messages):
            offset, at_ms = message.offset, message.timestamp_ms
            place = (message.partition, offset)
            match message.record:
                case EpisodeEvent() as event:
                    ledger.take_episode(message.partition, offset, at_ms, event, read_at_ms=now_ms)
                case Task() as task:
                    ledger.take_task(place, task)
                case GateDecision() as decision:
                    ledger.take_decision(place, decision)
                case Trajectory() as trajectory:
                    ledger.take_trajectory(place, trajectory)
                case LearnerEvent() as learner_event:
                    ledger.take_learner(offset, at_ms, learner_event)
                case WorkerState() as state:
                    seen_ms = now_ms - max(0, wall_ms - at_ms)
                    ledger.take_worker(state, seen_ms=seen_ms)
                    self._leadership.schedulers.take(state, seen_ms=seen_ms)
                case ControlEvent() as control_event:
                    ledger.take_control(offset, at_ms, control_event)
                case _:
                    pass

    async def _expire_leases(self) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if now_ms - self._looked_ms < _EXPIRY_LOOK_MS:
            return
        self._looked_ms = now_ms
        partitions = self.ledger.overdue(now_ms=now_ms)
        if partitions:
            self._take(await self._log.read_past({EPISODES: partitions}))
            expired = self.ledger.expire(partitions, sampled_at_ms=now_ms)
            if expired:
                _LOG.warning("%d leases ran out", expired)

    async def _obey(self, commands: tuple[Command, ...]) -> None:
        if not commands:
            return
        records = await self._records(commands)
        acked = await self._send([(EPISODES, record) for record in records])
        if any(isinstance(command, BeginDraining) for command in commands):
            acked |= await self._send(
                [
                    (
                        CONTROL,
                        self._author().control(
                            ControlKind.DRAINING, at_us=self._context.clock.now_us()
                        ),
                    )
                ]
            )
        if any(isinstance(command, EndStream) for command in commands):
            acked |= await self._send([(CONTROL, await self._ending.event(self._author()))])
        self._take(await self._log.read_to(acked))

    async def _records(self, commands: tuple[Command, ...]) -> list[EpisodeEvent]:
        author = self._author()
        floors = await self._first_floors(commands)
        at_us = self._context.clock.now_us()
        records: list[EpisodeEvent] = []
        for command in commands:
            match command:
                case IssueGroup():
                    ordinal = self.ledger.learner.surviving_ordinal
                    records += author.issued(command, ordinal=ordinal, at_us=at_us)
                case GiveLease():
                    known = command.rollout.life.floors
                    records += author.leased(
                        command,
                        lease_ms=self._settings.lease_ms,
                        floors=known or floors[command.rollout.group.partition],
                        frame=self._codec.encode(TASKS, command.task),
                        at_us=at_us,
                    )
                case RequestPause():
                    records.append(author.pause_requested(command, at_us=at_us))
                case GiveUp():
                    _LOG.info(
                        "gives up %s (%s): %s",
                        command.rollout.episode_id,
                        command.reason,
                        command.detail,
                    )
                    records.append(author.abandoned(command, at_us=at_us))
                case BeginDraining() | EndStream():
                    pass
        return records

    async def _first_floors(self, commands: tuple[Command, ...]) -> dict[int, Floors]:
        # Read just before the first lease is written: no record of these episodes can lie below.
        partitions = {
            command.rollout.group.partition
            for command in commands
            if isinstance(command, GiveLease) and command.rollout.life.floors is None
        }
        if not partitions:
            return {}
        tokens = await self._log.reader.ends(TOKENS, partitions)
        tools = await self._log.reader.ends(TOOL_EVENTS, partitions)
        return {p: Floors(tokens=tokens[p], tool_events=tools[p]) for p in partitions}

    async def _send(
        self, records: list[tuple[topics.Topic[Any], Any]]
    ) -> dict[tuple[str, int], int]:
        """Write records and return how far each partition must be read to see them again."""
        if not records:
            return {}
        topic = records[0][0]
        pending = [self._context.producer.offer(topic, record) for topic, record in records]
        acks = await settled(
            pending,
            clock_ms=self._context.clock.monotonic_ms(),
            deadline=self._log.deadline(f"acknowledgements of {topic.name}"),
        )
        ends: dict[tuple[str, int], int] = {}
        for ack in acks:
            place = (topic.name, ack.partition)
            ends[place] = max(ends.get(place, 0), ack.offset + 1)
        return ends

    def _author(self) -> Author:
        author = self._leadership.author
        assert author is not None
        return author

    def _check_stall(self, done: Round) -> None:
        now_ms = self._context.clock.monotonic_ms()
        untrained = self.ledger.held - len(self.ledger.learner.trained)
        if not (done.standing.is_stalled and untrained > 0):
            self._moved_ms = now_ms
        waited_s = (now_ms - self._moved_ms) / 1000
        if waited_s > self._settings.stall_deadline_s:
            pending = [rollout.episode_id for rollout in self.ledger.rollouts()]
            raise TransientError(
                f"{done.standing} for {waited_s:.0f} s ({done.reason}); "
                f"{untrained} episodes are pending, of these not settled: {pending[:20]}",
                hint="is the worker or learner that it waits for running? its log says why not",
            )

    def _report(self, done: Round) -> None:
        now_ms = self._context.clock.monotonic_ms()
        standing = f"{done.standing}: {done.reason}"
        if done.standing != self._standing:
            self._standing, self._is_alarmed = done.standing, False
            _LOG.info("%s", standing)
        elif now_ms - self._moved_ms >= _ALARM_MS and not self._is_alarmed:
            self._is_alarmed = True
            _LOG.warning("stands still: %s", standing)
        if now_ms - self._reported_ms < _REPORT_MS:
            return
        self._reported_ms = now_ms
        observe = self._metrics.observe
        observe("scheduler_leased_episodes", float(done.leased), "episodes")
        observe("scheduler_waiting_episodes", float(done.waiting), "episodes")
        observe("scheduler_paused_episodes", float(done.paused), "episodes")
        observe("scheduler_held_episodes", float(self.ledger.held), "episodes")
        observe("scheduler_capacity_episodes", float(done.capacity), "episodes")
        observe(
            "scheduler_settled_cursor_tasks", float(self.ledger.closed.lowest_open - 1), "tasks"
        )
        observe(
            "scheduler_stalled_state",
            float(done.standing.is_stalled),
            "state",
            standing=done.standing.value,
        )
