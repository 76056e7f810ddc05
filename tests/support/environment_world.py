"""A small world for tests of the environment worker: a bus in memory, gateways, leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from environments.settings import EnvironmentSettings
from environments.worker import run
from schemas.enums import EpisodeEventKind
from schemas.ids import EpisodeId, WorkerId, episode_id
from schemas.partition import partition_of
from schemas.ports import Clock, Context
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.topics import EPISODES, TASKS, TOOL_EVENTS, WORKERS
from tests.support.fake_gateway import FakeGateway, FakeWal, Policy
from tests.support.memory_bus import MemoryBus
from tests.support.task_records import RUN

SCHEDULER = WorkerId("scheduler-1")
SETTINGS = EnvironmentSettings(
    request_deadline_s=5.0,
    turn_deadline_s=5.0,
    connect_timeout_s=1.0,
    turn_away_s=1.0,
    back_off_ms=5,
    step_timeout_s=2.0,
    send_deadline_s=2.0,
    read_deadline_s=2.0,
    drain_s=0.2,
    poll_ms=10,
)


class World:
    """The bus with its scheduler's and gateways' records, and environment workers on demand."""

    def __init__(self, policy: Policy, *, partitions: int = 4, clock: Clock | None = None) -> None:
        self.bus = MemoryBus(partitions=partitions, clock=clock)
        self.wal = FakeWal(policy)
        self._workers: list[asyncio.Task[None]] = []
        for partition in range(partitions):
            fence = EpisodeEvent(
                run_id=RUN,
                episode_id=EpisodeId(""),
                group_id=RUN,  # type: ignore[arg-type]  # fences name no group
                kind=EpisodeEventKind.SCHEDULER_FENCE,
                scheduler_epoch=1,
                scheduler_id=SCHEDULER,
                at_us=1,
                writer_id=SCHEDULER,
            )
            self.bus.append(EPISODES, fence, partition=partition)

    def announce(self, gateway: FakeGateway, **changes: Any) -> None:
        """Let a gateway say that it is ready."""
        self.bus.append(WORKERS, gateway.state(RUN, **changes))

    def context(self, name: str = "environment-1", incarnation: str = "a") -> Context:
        """Return what a worker process is given."""
        return Context(
            run_id=RUN,
            worker_id=WorkerId(name),
            incarnation=f"{name}-{incarnation}",
            producer=self.bus.producer(),
            consumers=self.bus.consumers(),
            clock=self.bus.clock,
            starts={},
            secret=b"secret",
            stop=asyncio.Event(),
        )

    @asynccontextmanager
    async def worker(
        self,
        name: str = "environment-1",
        settings: EnvironmentSettings = SETTINGS,
        incarnation: str = "a",
    ) -> AsyncIterator[Context]:
        """Run an environment worker while the context lasts, and stop it in order."""
        context = self.context(name, incarnation)
        running = asyncio.create_task(run(context, settings, codec=self.bus.codec))
        await until(lambda: self._is_ready(context), running)
        try:
            yield context
        finally:
            assert isinstance(context.stop, asyncio.Event)
            context.stop.set()
            async with asyncio.timeout(10):
                await running

    def _is_ready(self, context: Context) -> bool:
        return any(
            state.incarnation == context.incarnation
            and (state.status == "ready" or state.detail.startswith("waits for"))
            for state in self.bus.records(WORKERS)
        )

    def lease(
        self,
        task: Task,
        *,
        member: int = 0,
        attempt: int = 1,
        worker: str = "environment-1",
        incarnation: str = "",
        lease_ms: int = 60_000,
    ) -> EpisodeId:
        """Lease an episode of a task to a worker, or to one process of it."""
        return self.event(
            task,
            EpisodeEventKind.LEASED,
            member=member,
            attempt=attempt,
            worker_id=WorkerId(worker),
            incarnation=f"{worker}-{incarnation}" if incarnation else "",
            lease_ms=lease_ms,
            task_frame=self.bus.codec.encode(TASKS, task),
            tokens_floor=0,
            tool_events_floor=0,
        )

    def event(
        self, task: Task, kind: EpisodeEventKind, *, member: int = 0, **fields: Any
    ) -> EpisodeId:
        """Append a scheduler's event."""
        episode = episode_id(RUN, task.ordinal, member)
        event = EpisodeEvent(
            run_id=RUN,
            episode_id=episode,
            group_id=task.group_id,
            task_id=task.task_id,
            ordinal=task.ordinal,
            member=member,
            kind=kind,
            scheduler_epoch=1,
            scheduler_id=SCHEDULER,
            at_us=1,
            writer_id=SCHEDULER,
            **fields,
        )
        self.bus.append(EPISODES, event)
        return episode

    def events(self, kind: EpisodeEventKind, episode: EpisodeId | None = None) -> list[Any]:
        """Return the events of a kind, of one episode or of all."""
        return [
            event
            for event in self.bus.records(EPISODES)
            if event.kind is kind and episode in (None, event.episode_id)
        ]

    async def ended(self, episode: EpisodeId, count: int = 1) -> EpisodeEvent:
        """Wait for the last of `count` Ended records of an episode."""
        await until(lambda: len(self.events(EpisodeEventKind.ENDED, episode)) >= count)
        last: EpisodeEvent = self.events(EpisodeEventKind.ENDED, episode)[count - 1]
        return last

    def tools(self, episode: EpisodeId) -> list[Any]:
        """Return the tool records of an episode."""
        return [event for event in self.bus.records(TOOL_EVENTS) if event.episode_id == episode]

    def partition(self, task: Task) -> int:
        """Return the partition of a task's group."""
        return partition_of(task.group_id, self.bus.partitions)


async def until(
    holds: Callable[[], bool], running: asyncio.Task[None] | None = None, *, seconds: float = 8.0
) -> None:
    """Wait until something holds; fail when it does not in time, or when the worker ended."""
    async with asyncio.timeout(seconds):
        while not holds():
            if running is not None and running.done():
                running.result()
                raise AssertionError("the worker ended")
            await asyncio.sleep(0.005)
