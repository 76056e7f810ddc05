"""Random faults around environment workers: no call runs twice, and every episode ends once.

The real gateway with the scripted engine over a bus in memory; a fault schedule drawn from a
printed number leases episodes away under their workers, keeps workers from reading that they lost
them, loses and delays acknowledgements, and stops gateways.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments import registry, worker
from environments.counter.store import CounterStore
from schemas.enums import EpisodeEventKind, StopCause, ToolEventKind
from schemas.ids import EpisodeId
from schemas.ports import Consumers, Context, Delivered, LogReader, Message
from schemas.records.task import Task
from schemas.rules.episodes import EpisodeLife
from schemas.rules.wal import EpisodeWal
from schemas.topics import EPISODES, TOKENS, TOOL_EVENTS, VERIFY_REQUESTS, Topic
from tests.support.environment_world import SETTINGS, World, until
from tests.support.fake_gateway import FakeGateway
from tests.support.inference_stand import inference_settings, scripted, serve
from tests.support.memory_bus import Fault
from tests.support.task_records import task_of

WORKERS = ("environment-1", "environment-2")
EPISODES_COUNT, CALLS, STEPS = 6, 3, 14
FAULTS = (Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE)


class DeafReader:
    """A reader that hears nothing while its worker is deaf, as if its process read very slowly."""

    def __init__(self, inner: LogReader, hears: asyncio.Event) -> None:
        self._inner = inner
        self._hears = hears

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message]:
        if not self._hears.is_set():
            await asyncio.sleep(timeout_s)
            return ()
        return await self._inner.poll(records_max=records_max, timeout_s=timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class DeafConsumers:
    """Makes the first reader of a worker, its tail, deaf on demand."""

    def __init__(self, inner: Consumers) -> None:
        self._inner = inner
        self.hears = asyncio.Event()
        self.hears.set()

    def reader(self, starts: Any, *, jumps: bool = False) -> Any:
        made = self._inner.reader(starts, jumps=jumps)
        return DeafReader(made, self.hears) if len(starts) > 1 else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Storm:
    """One seeded schedule."""

    def __init__(self, seed: int, path: Path) -> None:
        self.chance = random.Random(seed)
        self.world = World(lambda *_: "")
        payload = registry.load("counter").payload({"path": str(path), "calls": CALLS}, 0, 0)
        self.tasks = [
            task_of("counter", payload, ordinal=n, turn_tokens_max=6) for n in range(EPISODES_COUNT)
        ]
        self.ears: dict[str, asyncio.Event] = {}
        self.gateways: dict[str, AsyncExitStack] = {}
        self._born = 0

    def life(self, task: Task) -> EpisodeLife:
        """Return what counts of an episode, by the rule that every reader shares."""
        life = EpisodeLife()
        for message in self.world.bus.messages(EPISODES, self.world.partition(task)):
            assert isinstance(message, Delivered)
            if message.record.ordinal == task.ordinal and message.record.episode_id:
                life.take(message.offset, message.timestamp_ms, message.record)
        return life

    def lease(self, task: Task, attempt: int) -> None:
        self.world.lease(task, attempt=attempt, worker=self.chance.choice(WORKERS))

    async def gateway(self) -> None:
        """Start one more gateway, and stop one when there are several."""
        self._born += 1
        name = f"inference-{self._born}"
        stack = AsyncExitStack()
        settings = inference_settings(scripted=scripted(tokens_per_s=200.0), drain_s=0.1)
        stand = await stack.enter_async_context(serve(self.world.context(name), settings))
        voice = FakeGateway(self.world.wal, name)
        voice.address = stand.address
        self.world.announce(voice)
        self.gateways[name] = stack
        if len(self.gateways) > 2:
            await self.gateways.pop(self.chance.choice(list(self.gateways))).aclose()

    async def step(self) -> None:
        """Do one thing that hurts."""
        match self.chance.randrange(5):
            case 0:
                task = self.chance.choice(self.tasks)
                life = self.life(task)
                if not life.is_closed:
                    self.lease(task, life.attempt + 1)
            case 1:
                ears = self.ears[self.chance.choice(WORKERS)]
                (ears.clear if ears.is_set() else ears.set)()
            case 2:
                topics: list[Topic[Any]] = [TOOL_EVENTS, EPISODES, VERIFY_REQUESTS, TOKENS]
                topic = self.chance.choice(topics)
                self.world.bus.faults.next(self.chance.choice(FAULTS), topic=topic)
            case 3:
                await self.gateway()
            case _:
                self.world.bus.land_late()
        await asyncio.sleep(self.chance.random() * 0.08)

    def lease_what_failed(self) -> bool:
        """Lease again what a retried end or nothing at all left behind; whether all is closed."""
        lives = [(task, self.life(task)) for task in self.tasks]
        for task, life in lives:
            if not life.is_closed and life.lease is None:
                self.lease(task, life.attempt + 1)
        return all(life.is_closed for _, life in lives)

    @asynccontextmanager
    async def workers(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name in WORKERS:
                context = self.world.context(name)
                deaf = DeafConsumers(context.consumers)
                self.ears[name] = deaf.hears
                heard = replace(context, consumers=deaf)
                running = asyncio.create_task(_run(heard))
                stack.push_async_callback(_stop, heard, running)
            await asyncio.sleep(0.1)
            yield


async def _run(context: Context) -> None:
    from schemas.codec import Codec

    settings = SETTINGS.model_copy(update={"send_deadline_s": 1.0, "read_deadline_s": 1.0})
    await worker.run(context, settings, codec=Codec.local())


async def _stop(context: Context, running: asyncio.Task[None]) -> None:
    context.stop.set()  # type: ignore[attr-defined]  # it is an asyncio.Event
    async with asyncio.timeout(15):
        await running


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(8))
async def test_under_random_faults_no_call_runs_twice_and_every_episode_ends_once(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "c.sqlite"
    storm = Storm(seed, path)
    world = storm.world
    async with storm.workers():
        await storm.gateway()
        await storm.gateway()
        for task in storm.tasks:
            world.event(task, EpisodeEventKind.ISSUED, group_size=1)
            storm.lease(task, 1)
        for _ in range(STEPS):
            await storm.step()
        for ears in storm.ears.values():
            ears.set()
        world.bus.land_late()
        # A worker that was deaf may hold a lease that a fault took from it: lease all once more.
        for task in storm.tasks:
            life = storm.life(task)
            if not life.is_closed:
                storm.lease(task, life.attempt + 1)
        await until(storm.lease_what_failed, seconds=30.0)
        for stack in storm.gateways.values():
            await stack.aclose()
    runs = CounterStore(path).executions()
    assert {run.key: run.executions for run in runs if run.executions > 1} == {}
    for task in storm.tasks:
        check(storm, task)


def check(storm: Storm, task: Task) -> None:
    """Hold an episode's records to the rules, by the readers that everybody shares."""
    bus, life = storm.world.bus, storm.life(task)
    final = life.final_ended
    assert final is not None
    assert final.stop_cause is StopCause.POLICY_STOP
    partition = storm.world.partition(task)
    wal = EpisodeWal()
    for message in bus.messages(TOKENS, partition):
        assert isinstance(message, Delivered)
        if message.record.episode_id == final.episode_id:
            wal.take(message.offset, message.record)
    accepted = {piece.offset for piece in wal.ended_at(final.wal_position).pieces}
    assert final.wal_position in accepted
    judged = [
        json.loads(request.artifact)["values"]
        for request in bus.records(VERIFY_REQUESTS)
        if (request.episode_id, request.attempt) == (final.episode_id, final.attempt)
    ]
    assert judged
    assert all(values == list(range(1, CALLS + 1)) for values in judged)
    executed = [
        event.call_key
        for event in storm.world.tools(EpisodeId(final.episode_id))
        if event.kind is ToolEventKind.RESULT and event.wal_position not in accepted
    ]
    assert executed == [], "a call rested on tokens that do not count"
