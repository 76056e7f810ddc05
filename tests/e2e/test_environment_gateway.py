"""The environment worker against the real gateway with the scripted engine, over a bus in
memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from environments import registry
from environments.counter.store import CounterStore
from schemas.enums import StopCause, TokenKind, ToolEventKind
from schemas.records.task import Task
from schemas.rules.wal import EpisodeWal
from schemas.topics import TOKENS, TOOL_EVENTS
from tests.support.environment_world import World, until
from tests.support.fake_gateway import FakeGateway
from tests.support.inference_stand import Stand, inference_settings, scripted, serve
from tests.support.task_records import task_of


def world_of() -> World:
    return World(lambda *_: "")


@asynccontextmanager
async def gateway(world: World, name: str, *, tokens_per_s: float = 0.0) -> AsyncIterator[Stand]:
    """Serve one inference worker and announce it."""
    settings = inference_settings(scripted=scripted(tokens_per_s=tokens_per_s))
    async with serve(world.context(name), settings) as stand:
        voice = FakeGateway(world.wal, name)
        voice.address = stand.address
        world.announce(voice)
        yield stand


def counter(path: Path, *, ordinal: int = 0, calls: int = 3) -> Task:
    payload = registry.load("counter").payload({"path": str(path), "calls": calls}, 0, 0)
    return task_of("counter", payload, ordinal=ordinal, turn_tokens_max=12)


def wal_of(world: World, episode: str) -> EpisodeWal:
    wal = EpisodeWal()
    for message in world.bus.messages(TOKENS):
        if message.record.episode_id == episode:  # type: ignore[union-attr]  # nothing is poisoned here
            wal.take(message.offset, message.record)  # type: ignore[union-attr]
    return wal


async def test_episodes_with_tools_run_to_their_end_and_rest_on_accepted_tokens(
    tmp_path: Path,
) -> None:
    world, path = world_of(), tmp_path / "c.sqlite"
    async with gateway(world, "inference-1"), world.worker():
        episodes = [world.lease(counter(path, ordinal=number)) for number in range(8)]
        ended = [await world.ended(episode) for episode in episodes]
    assert {event.stop_cause for event in ended} == {StopCause.POLICY_STOP}
    for event in ended:
        wal = wal_of(world, event.episode_id)
        assert wal.length == event.token_count
        accepted = {piece.offset for piece in wal.pieces}
        assert event.wal_position in accepted
        for record in world.tools(event.episode_id):
            assert record.wal_position in accepted
        shown = {
            piece.commit.result_offset
            for piece in wal.pieces
            if piece.kind is TokenKind.OBSERVATION
        }
        results = {
            message.offset
            for message in world.bus.messages(TOOL_EVENTS)
            if message.record.episode_id == event.episode_id  # type: ignore[union-attr]
            and message.record.kind is ToolEventKind.RESULT  # type: ignore[union-attr]
        }
        assert shown < results, "the last Result ends the episode and is shown to nobody"
    assert {run.executions for run in CounterStore(path).executions()} == {1}


async def test_a_killed_inference_worker_only_makes_the_call_take_longer(tmp_path: Path) -> None:
    world, path = world_of(), tmp_path / "c.sqlite"
    async with world.worker():
        async with gateway(world, "inference-1", tokens_per_s=60.0):
            episode = world.lease(counter(path))
            await until(lambda: len(wal_of(world, episode).pieces) >= 2)
        async with gateway(world, "inference-2"):
            ended = await world.ended(episode)
    assert ended.stop_cause is StopCause.POLICY_STOP
    assert ended.fence_number > 1
    assert wal_of(world, episode).length == ended.token_count
    assert [run.executions for run in CounterStore(path).executions()] == [1, 1, 1]


async def test_a_second_environment_worker_goes_on_from_the_last_committed_token(
    tmp_path: Path,
) -> None:
    world, path = world_of(), tmp_path / "c.sqlite"
    task = counter(path, calls=4)
    async with gateway(world, "inference-1", tokens_per_s=100.0), world.worker("environment-2"):
        async with world.worker("environment-1"):
            episode = world.lease(task)
            await until(lambda: len(CounterStore(path).executions()) >= 2)
            before = wal_of(world, episode)
            world.lease(task, attempt=2, worker="environment-2")
            await asyncio.sleep(0)
        ended = await world.ended(episode)
    after = wal_of(world, episode)
    assert (ended.attempt, ended.stop_cause) == (2, StopCause.POLICY_STOP)
    kept = [piece.offset for piece in before.pieces]
    assert [piece.offset for piece in after.pieces][: len(kept)] == kept
    assert {run.executions for run in CounterStore(path).executions()} == {1}
    assert len(CounterStore(path).executions()) == 4
