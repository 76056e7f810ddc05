"""The refresh coordinator: has every inference worker change to the newest version that counts.

Consumes: policies.v1, learner-steps.v1, workers.v1, refreshes.v1. Produces: refreshes.v1 (Prepare),
workers.v1, metrics.v1. Waits for: records, in short polls; Loaded, Serving or Failed of a worker it
asked, inside `prepare_timeout_s`. Unblocked by: the answer, that deadline, or the worker's silence.
Ends on the stop signal and once the learner has closed the run. All it knows is in the log: after a
restart it reads to the ends first and then goes on with the changes that are under way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from consumers.dead_letters import bury
from inference.core.refresh import (
    Event,
    Prepare,
    RefreshLimits,
    RefreshState,
    Reported,
    TargetChosen,
    Ticked,
    Trouble,
    Warn,
    WorkerSeen,
    behind,
    newest_servable,
    step,
)
from inference.refresh_settings import RefreshSettings
from producers.metrics import Metrics
from producers.presence import GONE_AFTER_MS, Presence
from schemas.deadline import Deadline
from schemas.enums import RefreshEventKind, Role, WorkerStatus
from schemas.errors import RejectedError, UnknownOutcomeError
from schemas.ids import Version
from schemas.ports import Context, Delivered, LogReader, Message
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.worker_state import WorkerState
from schemas.rules.lineage import LearnerLog
from schemas.topics import LEARNER_STEPS, POLICIES, REFRESHES, WORKERS

_LOG = logging.getLogger(__name__)
_TOPICS = (POLICIES, LEARNER_STEPS, WORKERS, REFRESHES)
_RECORDS_MAX = 2000
_READ_MS = 30_000
_SEND_MS = 10_000
_LAST_WORDS = (WorkerStatus.STOPPED, WorkerStatus.FAILED)


async def run(context: Context, settings: RefreshSettings) -> None:
    """Coordinate until the stop signal, or until the learner has closed the run."""
    coordinator = Coordinator(context, settings)
    presence = Presence(context, Role.REFRESH)
    await presence.announce(WorkerStatus.READY)
    starts = context.starts
    reader = context.consumers.reader({t: dict(starts.get(t.name, {})) for t in _TOPICS})
    try:
        await coordinator.catch_up(reader)
        while not context.stop.is_set() and not coordinator.is_over:
            messages = await reader.poll(
                records_max=_RECORDS_MAX, timeout_s=settings.tick_ms / 1000
            )
            await coordinator.take(messages)
            await coordinator.decide()
    finally:
        await reader.close()
        await presence.announce(WorkerStatus.STOPPED)


@dataclass(slots=True, kw_only=True)
class _Rollout:
    """The time in which workers serve different versions."""

    version: Version
    began_ms: int
    is_whole: bool = False
    is_late: bool = False


class Coordinator:
    """Feeds the core with records and obeys its commands."""

    def __init__(self, context: Context, settings: RefreshSettings) -> None:
        self._context = context
        self._settings = settings
        self._metrics = Metrics(context)
        self._limits = RefreshLimits(
            at_once_max=settings.at_once_max,
            prepare_timeout_ms=round(settings.prepare_timeout_s * 1000),
            gone_after_ms=GONE_AFTER_MS,
            backoff_ms=round(settings.backoff_s * 1000),
            backoff_max_ms=round(settings.backoff_max_s * 1000),
            tries_max=settings.tries_max,
        )
        self._state = RefreshState()
        self._learner = LearnerLog()
        self._digests: dict[Version, str] = {}
        self._rollout: _Rollout | None = None

    @property
    def is_over(self) -> bool:
        """Whether no version will follow: the learner has closed the run."""
        return self._learner.closed is not None

    async def catch_up(self, reader: LogReader) -> None:
        """Read everything up to the ends sampled now, so that no decision rests on half a log."""
        ends = {
            (topic.name, partition): end
            for topic in _TOPICS
            for partition, end in (await reader.ends(topic)).items()
            if partition in self._context.starts.get(topic.name, {})
        }
        now_ms = self._context.clock.monotonic_ms()
        deadline = Deadline.after(_READ_MS, now_ms=now_ms, waiting_for="the log of versions")
        await self.take(await reader.read_to(ends, deadline=deadline))

    async def take(self, messages: Sequence[Message]) -> None:
        """Take records in log order; what cannot be read is buried and skipped."""
        is_newer = False
        for message in messages:
            if not isinstance(message, Delivered):
                await bury(self._context, message, role=Role.REFRESH)
            elif message.record.run_id == self._context.run_id:
                is_newer |= self._take(message)
        if is_newer:
            self._choose()

    def _take(self, message: Delivered[Any]) -> bool:
        """Take one record; return whether it may change what is the newest version."""
        record = message.record
        match record:
            case PolicyVersion():
                # Versions are immutable, so the first announcement stands.
                self._digests.setdefault(Version(record.epoch, record.number), record.digest)
                return True
            case LearnerEvent():
                return self._learner.take(message.offset, message.timestamp_ms, record)
            case WorkerState() if record.role is Role.INFERENCE:
                self._feed(self._seen(message.timestamp_ms, record))
            case RefreshEvent():
                self._feed(
                    Reported(
                        worker_id=record.worker_id,
                        incarnation=record.incarnation,
                        kind=record.kind,
                        version=Version(record.epoch, record.number),
                    )
                )
            case _:
                pass
        return False

    def _seen(self, timestamp_ms: int, record: WorkerState) -> WorkerSeen:
        clock = self._context.clock
        # A record read late tells of a worker that was there then, not now.
        age_ms = max(0, clock.now_us() // 1000 - timestamp_ms)
        return WorkerSeen(
            worker_id=record.worker_id,
            incarnation=record.incarnation,
            version=Version(record.epoch, record.number),
            seen_ms=clock.monotonic_ms() - age_ms,
            started_us=record.started_us,
            is_ready=record.status is WorkerStatus.READY,
            is_over=record.status in _LAST_WORDS,
        )

    def _choose(self) -> None:
        target = newest_servable(self._learner, self._digests)
        if target is None or target == self._state.target:
            return
        self._feed(TargetChosen(target=target))
        now_ms = self._context.clock.monotonic_ms()
        self._rollout = _Rollout(version=target.version, began_ms=now_ms)

    def _feed(self, event: Event) -> None:
        self._state, commands = step(self._state, event, limits=self._limits)
        assert not commands, "only a tick has commands"

    async def decide(self) -> None:
        """Ask the workers whose turn it is, and watch how long versions stay mixed."""
        now_ms = self._context.clock.monotonic_ms()
        self._state, commands = step(self._state, Ticked(now_ms=now_ms), limits=self._limits)
        for command in commands:
            match command:
                case Prepare():
                    await self._prepare(command)
                case Warn(worker_id=worker_id, trouble=trouble, version=version):
                    _LOG.warning("worker %s, version %s: %s", worker_id, version, trouble.value)
                    if trouble is not Trouble.GONE:
                        self._metrics.observe(
                            "refresh_trouble_count", 1.0, "refreshes", trouble=trouble.value
                        )
        self._watch(now_ms)

    async def _prepare(self, command: Prepare) -> None:
        context, target = self._context, command.target
        event = RefreshEvent(
            run_id=context.run_id,
            worker_id=command.worker_id,
            incarnation=command.incarnation,
            kind=RefreshEventKind.PREPARE,
            epoch=target.version.epoch,
            number=target.version.number,
            digest=target.digest,
            at_us=context.clock.now_us(),
            writer_id=context.worker_id,
        )
        deadline = Deadline.after(
            _SEND_MS, now_ms=context.clock.monotonic_ms(), waiting_for="Prepare of a refresh"
        )
        try:
            await context.producer.send(REFRESHES, event, deadline=deadline)
        except (RejectedError, UnknownOutcomeError) as error:
            # Lost or not, the change's own deadline passes and the worker is asked again.
            _LOG.warning("Prepare of %s: %s", target.version, error)

    def _watch(self, now_ms: int) -> None:
        rollout = self._rollout
        if rollout is None or rollout.is_whole or not self._state.workers:
            return
        late = behind(self._state)
        took_s = (now_ms - rollout.began_ms) / 1000
        if not late:
            rollout.is_whole = True
            self._metrics.observe("refresh_mixed_fleet_s", took_s, "s")
        elif took_s > self._settings.mixed_fleet_s and not rollout.is_late:
            rollout.is_late = True
            _LOG.warning(
                "version %s is %.0f s old and %d workers do not serve it: %s",
                rollout.version,
                took_s,
                len(late),
                ", ".join(late),
            )
