"""The environment worker: runs the episodes that the scheduler leases to it, many at once.

Consumes: `episodes` (leases, pauses, abandonments), `tool-events` (read-backs), `workers` (which
gateways there are, and who has its name), each by one tail over all partitions. Produces:
`episodes` (Progress, Paused, Ended), `tool-events`, `verify-requests`, `workers`; HTTP to gateways.
Waits for: leases, a free place, and what `environments/runner.py` names. Unblocked by: a lease; the
stop signal drains it: running turns get a moment, the rest is recorded as Paused.

Invariants: only a lease that names this process is run, and each attempt once; a lease read from
before this process began is left alone; a higher attempt, an Abandoned or the worker's own lease
clock ends an attempt without another record; a failing task ends its episode, never the worker. A
process that reads of a younger one under its name ends: it was taken for dead and replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from consumers.dead_letters import bury
from environments.core.attempts import Attempts
from environments.core.episode_state import Budgets, Episode
from environments.gateway_client import GatewayClient
from environments.lease_facts import Lease, Start, Writer
from environments.ports import Done
from environments.preparing import prepare
from environments.replicas import Replicas
from environments.runner import EpisodeRunner
from environments.settings import EnvironmentSettings
from environments.shared import Shared
from environments.tool_log import ToolLogShell
from producers.metrics import Metrics
from producers.presence import Presence
from schemas.codec import Codec
from schemas.enums import EpisodeEventKind, Role, StopCause, WorkerStatus
from schemas.errors import BusUnreachableError, FencedError, SluiceError
from schemas.ids import EpisodeId
from schemas.ports import Context, Delivered, LogReader, Message, Poisoned
from schemas.records.episode_event import EpisodeEvent
from schemas.records.worker_state import WorkerState
from schemas.rules.episodes import SchedulerFences
from schemas.rules.workers import is_successor
from schemas.topics import EPISODES, TOOL_EVENTS, WORKERS, Topic

_log = logging.getLogger(__name__)
_RETRY_S = 1.0
_LAST_S = 5.0


async def run(context: Context, settings: EnvironmentSettings, *, codec: Codec) -> None:
    """Run episodes until the stop signal, then drain inside `drain_s` and a few seconds more.

    Raises InvariantError when a core refuses an event: the process's state is no longer believed;
    FencedError when a younger process has this worker's name.
    """
    gateway = GatewayClient(
        clock=context.clock,
        secret=context.secret,
        model=settings.model,
        connect_timeout_s=settings.connect_timeout_s,
    )
    shared = Shared(
        context=context,
        settings=settings,
        gateway=gateway,
        replicas=Replicas(
            context.run_id,
            context.clock,
            gone_ms=int(settings.worker_gone_s * 1000),
            turn_away_ms=int(settings.turn_away_s * 1000),
        ),
        tools=ToolLogShell(context, fences_max=settings.fences_max),
        metrics=Metrics(context),
    )
    worker = EnvironmentWorker(shared, codec)
    try:
        await worker.run()
    finally:
        await gateway.close()


class EnvironmentWorker:
    """The tails and the attempts of one process."""

    def __init__(self, shared: Shared, codec: Codec) -> None:
        self._shared = shared
        self._codec = codec
        self._context = shared.context
        self._places = asyncio.Semaphore(shared.settings.capacity)
        self._fences: dict[int, SchedulerFences] = defaultdict(SchedulerFences)
        self._runners: dict[EpisodeId, EpisodeRunner] = {}
        self._attempts = Attempts(
            shared.context.worker_id,
            shared.context.incarnation,
            episodes_max=shared.settings.fences_max,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._live_from: Mapping[int, int] = {}
        self._workers_from: Mapping[int, int] = {}
        self._failed: BaseException | None = None
        self._draining = False
        self._presence = Presence(shared.context, Role.ENVIRONMENT, "", shared.settings.capacity)

    async def run(self) -> None:
        """Read to the ends, then serve until the stop signal."""
        await self._presence.announce(WorkerStatus.STARTING)
        reader = await self._reader()
        try:
            while not self._has_caught_up(reader):
                await self._poll(reader)
            await self._await_gateway(reader)
            await self._presence.announce(WorkerStatus.READY)
            while self._goes_on():
                await self._poll(reader)
            if self._failed is not None:
                raise self._failed
            await self._drain(reader)
        finally:
            await self._let_go()
            await reader.close()
            status = WorkerStatus.STOPPED if self._failed is None else WorkerStatus.FAILED
            await self._presence.announce(status, detail=str(self._failed or ""))

    def _goes_on(self) -> bool:
        return not self._context.stop.is_set() and self._failed is None

    async def _await_gateway(self, reader: LogReader) -> None:
        """Take no leases before a gateway is ready: they would run out while an engine starts."""
        if not self._shared.replicas.is_any_ready:
            detail = "waits for an inference worker that is ready"
            await self._presence.announce(WorkerStatus.STARTING, detail=detail)
        while self._goes_on() and not self._shared.replicas.is_any_ready:
            await self._poll(reader)

    async def _reader(self) -> LogReader:
        consumers = self._context.consumers
        # The order matters: a tool fence above a lease of ours stands above these ends.
        tool_ends = await consumers.ends(TOOL_EVENTS)
        self._live_from = await consumers.ends(EPISODES)
        self._workers_from = await consumers.ends(WORKERS)
        return consumers.reader(
            {
                TOOL_EVENTS: tool_ends,
                EPISODES: await self._starts(EPISODES),
                WORKERS: await self._starts(WORKERS),
            }
        )

    async def _starts(self, topic: Topic[Any]) -> Mapping[int, int]:
        known = self._context.starts.get(topic.name)
        if known:
            return known
        return dict.fromkeys(range(await self._context.consumers.partitions(topic)), 0)

    def _has_caught_up(self, reader: LogReader) -> bool:
        positions = reader.positions()
        return all(
            positions.get((EPISODES.name, partition), 0) >= end
            for partition, end in self._live_from.items()
        )

    async def _poll(self, reader: LogReader) -> None:
        try:
            messages = await reader.poll(
                records_max=self._shared.settings.records_max,
                timeout_s=self._shared.settings.poll_ms / 1000,
            )
        except BusUnreachableError as error:
            _log.warning("the bus does not answer: %s", error)
            await asyncio.sleep(_RETRY_S)
            return
        for message in messages:
            await self._take(message)

    async def _take(self, message: Message) -> None:
        if message.topic == TOOL_EVENTS.name:
            self._shared.tools.take(message)
        elif isinstance(message, Poisoned):
            await self._bury(message)
        elif message.topic == WORKERS.name:
            self._take_worker(message)
        elif message.record.run_id == self._context.run_id:
            self._take_episode(message)

    async def _bury(self, message: Poisoned) -> None:
        if message.topic == EPISODES.name and message.offset < self._live_from[message.partition]:
            return
        try:
            await bury(self._context, message, role=Role.ENVIRONMENT)
        except SluiceError as error:
            # The tail commits nothing, so it owes nothing: owners of the partition bury it too.
            _log.warning("no dead letter for a poison record: %s", error)

    def _take_worker(self, message: Delivered[WorkerState]) -> None:
        self._shared.replicas.take(message)
        state = message.record
        # Words from before this process began are of one that may be dead; if it lives, it speaks
        # again. A clock that went back between two starts must not keep the second from working.
        if message.offset < self._workers_from[message.partition]:
            return
        ours = self._presence.state()
        is_namesake = (state.run_id, state.worker_id, state.role) == (
            ours.run_id, ours.worker_id, ours.role,
        )  # fmt: skip
        if is_namesake and is_successor(state, ours) and self._failed is None:
            self._failed = FencedError(
                f"another process ({state.incarnation}, pid {state.pid} on {state.host}) was "
                f"started as {ours.worker_id} after this one",
                hint="nothing to do if it was meant to replace this one; else give each its own id",
            )

    def _take_episode(self, message: Delivered[EpisodeEvent]) -> None:
        event = message.record
        if not self._fences[message.partition].take(event):
            return
        runner = self._runners.get(event.episode_id)
        match event.kind:
            case EpisodeEventKind.LEASED:
                if runner is not None and event.attempt > runner.attempt:
                    runner.lose(f"attempt {event.attempt} was leased")
                is_live = message.offset >= self._live_from[message.partition]
                if self._attempts.take(event) and is_live:
                    self._accept(message)
            case EpisodeEventKind.ABANDONED if runner is not None:
                runner.lose(f"the episode was abandoned: {event.abandon_reason}")
            case EpisodeEventKind.PAUSE_REQUESTED if runner is not None:
                runner.pause(at_once=True)
            case _:
                pass

    def _accept(self, message: Delivered[EpisodeEvent]) -> None:
        clock = self._context.clock
        lease = Lease.of(message, read_ms=clock.monotonic_ms(), now_us=clock.now_us())
        bound = self._shared.settings.capacity + self._shared.settings.waiting_max
        if self._draining or len(self._tasks) >= bound:
            # The lease runs out for lack of progress and goes elsewhere.
            _log.warning("no place for attempt %d of %s", lease.attempt, lease.episode_id)
            return
        start = prepare(lease, self._codec)
        if isinstance(start, str):
            work = self._refuse(lease, start)
        else:
            runner = EpisodeRunner(self._shared, start)
            self._runners[lease.episode_id] = runner
            work = self._run(start, runner)
        running = asyncio.create_task(work, name=lease.episode_id)
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _run(self, start: Start, runner: EpisodeRunner) -> None:
        try:
            async with self._places:
                await runner.run()
        except Exception as error:  # noqa: BLE001  the outermost loop: the process ends with it
            _log.exception("attempt of %s broke an invariant", start.lease.episode_id)
            self._failed = self._failed or error
        finally:
            if self._runners.get(start.lease.episode_id) is runner:
                del self._runners[start.lease.episode_id]

    async def _refuse(self, lease: Lease, reason: str) -> None:
        """End an attempt that cannot begin."""
        _log.error("attempt %d of %s cannot begin: %s", lease.attempt, lease.episode_id, reason)
        context = self._context
        writer = Writer(lease=lease, worker_id=context.worker_id, incarnation=context.incarnation)
        budgets = Budgets(tokens_max=0, turn_tokens_max=0, turns_max=0, seconds_max=0.0)
        episode = Episode(episode_id=lease.episode_id, attempt=lease.attempt, budgets=budgets)
        done = Done(cause=StopCause.ENVIRONMENT_ERROR, detail=reason)
        deadline = self._shared.deadline(
            self._shared.settings.send_deadline_s, f"the end of {lease.episode_id}"
        )
        try:
            ended = writer.ended(episode, done, context.clock.now_us())
            await context.producer.send(EPISODES, ended, deadline=deadline)
        except SluiceError as error:
            # The lease runs out instead, which leads to the same next attempt.
            _log.warning("the end of %s was not acknowledged: %s", lease.episode_id, error)

    async def _drain(self, reader: LogReader) -> None:
        """Give running turns `drain_s`, then pause what is left at once; see the tail meanwhile."""
        self._draining = True
        await self._presence.announce(WorkerStatus.DRAINING)
        for at_once, seconds in ((False, self._shared.settings.drain_s), (True, _LAST_S)):
            deadline = self._shared.deadline(seconds, "running episodes")
            for runner in self._runners.values():
                runner.pause(at_once=at_once)
            while self._tasks and not deadline.is_over(now_ms=self._context.clock.monotonic_ms()):
                await self._poll(reader)

    async def _let_go(self) -> None:
        """Drop what still runs, without a record: the leases run out."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_S)
