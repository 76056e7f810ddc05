"""The task source: offers seeded tasks of a mixture of environments, a bounded way ahead of what is
issued.

Consumes: `tasks` (its own cursor), `episodes` (what was issued), `control`. Produces: `tasks`.
Waits for: tasks being issued. Unblocked by: Issued; Draining, EndOfStream or the stop signal end
it.

It keeps nothing: the task at an ordinal is a pure function of the settings, and a restart continues
after the highest ordinal in `tasks`, which it reads from the floors of a scheduler's newest
snapshot. Two sources at once, or a repeat after an unknown outcome, write the same task twice; the
first counts.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from environments.ports import TaskPackage
from environments.registry import load
from producers.presence import Presence
from schemas import topics
from schemas.enums import Purpose, Role, WorkerStatus
from schemas.errors import UnknownOutcomeError
from schemas.ids import group_id, task_id
from schemas.ports import Context, Message
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.topics import TASKS
from stream_jobs.core.mixture import Draw, Mixture, digest_number
from stream_jobs.core.offering import Offering
from stream_jobs.core.run_control import RunControl
from stream_jobs.core.snapshot import read_snapshot
from stream_jobs.reading import RunLog, all_starts, delivered, episode_partitions, settled
from stream_jobs.settings import StreamSettings, TaskSourceSettings

T = TypeVar("T")
_LOG = logging.getLogger("sluice.task_source")
_READS = (topics.TASKS, topics.EPISODES, topics.CONTROL)
_RECORDS_MAX = 5_000


async def run(context: Context, settings: TaskSourceSettings) -> None:
    """Offer tasks until the run drains or the process is asked to stop.

    Raises SettingsError for an environment that is not there or a configuration that it refuses.
    """
    await TaskSource(context, settings).run()


class TaskSource:
    """See the module."""

    def __init__(self, context: Context, settings: TaskSourceSettings) -> None:
        self._context = context
        self._settings = settings
        self._packages: list[TaskPackage] = [load(s.environment) for s in settings.streams]
        self._mixture = Mixture(
            weights=tuple(stream.weight for stream in settings.streams),
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            held_out_first=settings.held_out_first,
            held_out_count=settings.held_out_count,
        )
        self._offering = Offering()
        self._control = RunControl()
        self._presence = Presence(context, Role.TASK_SOURCE, "", 0)

    async def run(self) -> None:
        """Read to the ends, then keep the look-ahead full."""
        context, settings = self._context, self._settings
        log = RunLog(
            context,
            Role.TASK_SOURCE,
            await all_starts(context, (topics.CONTROL,)),
            deadline_ms=int(settings.send_deadline_s * 1000),
        )
        try:
            self._take(await log.read_past({topics.CONTROL: None}))
            await self._begin(log)
            self._take(await log.read_past(dict.fromkeys(_READS)))
            await self._presence.announce(WorkerStatus.READY)
            while not (context.stop.is_set() or self._control.is_draining):
                if not await self._offer(log):
                    self._take(await log.poll(records_max=_RECORDS_MAX, timeout_s=settings.poll_s))
        finally:
            await self._presence.announce(WorkerStatus.STOPPED)
            await log.close()

    async def _begin(self, log: RunLog) -> None:
        """Read on from the newest snapshot of a scheduler, else from the run's start."""
        event, partitions = self._control.snapshot, await episode_partitions(self._context)
        snapshot = read_snapshot(event, partitions=partitions) if event is not None else None
        if snapshot is not None:
            self._offering.restore(snapshot)
        for topic, starts in (await all_starts(self._context, (TASKS, topics.EPISODES))).items():
            log.reader.add(topic, starts if snapshot is None else snapshot.begins(topic, starts))

    def _take(self, messages: list[Message]) -> None:
        for message in delivered(messages):
            match message.record:
                case Task() as task:
                    self._offering.take_task(task)
                case EpisodeEvent() as event:
                    self._offering.take_episode(message.partition, event)
                case ControlEvent() as control:
                    self._control.take(message.offset, message.timestamp_ms, control)
                case _:
                    pass

    async def _offer(self, log: RunLog) -> bool:
        wanted = self._offering.wanted(look_ahead=self._settings.look_ahead_tasks)
        if not wanted:
            return False
        producer = self._context.producer
        pending = [producer.offer(TASKS, self.task(ordinal)) for ordinal in wanted]
        try:
            await settled(
                pending,
                clock_ms=self._context.clock.monotonic_ms(),
                deadline=log.deadline("acknowledgements of tasks"),
            )
        except UnknownOutcomeError as error:
            _LOG.warning("%s: offers again what is not in the log", error)
            await producer.renew()
        self._take(await log.read_past({TASKS: None}))
        return True

    def task(self, ordinal: int) -> Task:
        """Return the task at an ordinal."""
        draw = self._mixture.at(ordinal)
        stream = self._settings.streams[draw.component]
        package = self._packages[draw.component]
        return _task(self._context, self._settings, ordinal, draw, stream, package)


def _task(
    context: Context,
    settings: TaskSourceSettings,
    ordinal: int,
    draw: Draw,
    stream: StreamSettings,
    package: TaskPackage,
) -> Task:
    run = context.run_id
    defaults = package.defaults
    is_train = draw.purpose is Purpose.TRAIN
    return Task(
        run_id=run,
        task_id=task_id(run, ordinal),
        group_id=group_id(run, ordinal),
        ordinal=ordinal,
        purpose=draw.purpose,
        stream=stream.label,
        environment=package.name,
        environment_digest=package.digest(stream.config),
        verifier_digest=package.verifier_digest(),
        payload=package.payload(stream.config, settings.seed, draw.index),
        group_size=settings.group_size if is_train else settings.evaluate_group_size,
        tokens_max=_given(stream.tokens_max, defaults.tokens_max),
        turn_tokens_max=_given(stream.turn_tokens_max, defaults.turn_tokens_max),
        turns_max=_given(stream.turns_max, defaults.turns_max),
        seconds_max=float(_given(stream.seconds_max, defaults.seconds_max)),
        temperature=float(_given(stream.temperature, defaults.temperature)),
        top_p=float(_given(stream.top_p, defaults.top_p)),
        top_k=_given(stream.top_k, defaults.top_k),
        seed=digest_number(f"{settings.seed}/{stream.label}/{draw.index}"),
        at_us=context.clock.now_us(),
        writer_id=context.worker_id,
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
