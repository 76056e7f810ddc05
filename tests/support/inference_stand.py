"""A whole inference service on the memory bus with the scripted engine, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from inference.scripted_engine import ScriptedEngine
from inference.service import InferenceService, make_engine, make_tokenizer
from inference.settings import EngineKind, InferenceSettings, ScriptedSettings
from inference.tokenizer import Tokenizer
from schemas.bearer import issue
from schemas.enums import TokenKind
from schemas.ids import EpisodeId, RunId, WorkerId, episode_id, group_of_episode
from schemas.packing import unpack_ids
from schemas.partition import partition_of
from schemas.ports import Context, Delivered
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal
from schemas.topics import ALL, TOKENS
from tests.support.memory_bus import MemoryBus

RUN = RunId("0190b5f0-0000-7000-8000-000000000001")
SECRET = b"a secret of this test"
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = 'Well. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
"""An answer that calls the tool."""


def scripted(**values: Any) -> ScriptedSettings:
    """Return a scripted engine that answers at once, with the given changes."""
    return ScriptedSettings(**{"tokens_per_s": 0.0, "tick_ms": 1, "load_ms": 1, **values})


def inference_settings(**values: Any) -> InferenceSettings:
    """Return settings of a scripted worker, with the given changes."""
    defaults: dict[str, Any] = {
        "engine": EngineKind.SCRIPTED,
        "scripted": scripted(),
        "request_deadline_s": 5.0,
        "open_deadline_s": 5.0,
        "drain_s": 1.0,
        "commit_interval_ms": 5,
    }
    return InferenceSettings(**{**defaults, **values})


def paced(**values: Any) -> InferenceSettings:
    """Return settings of a turn of 120 tokens; a test stops the engine at a ceiling of its own."""
    return inference_settings(
        commit_tokens=8,
        scripted=scripted(
            tick_ms=1, length_median_tokens=120, length_sigma=0.0,
            count_decoded=True, **values,
        ),
    )  # fmt: skip


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fail after 3 s."""
    async with asyncio.timeout(3):
        while not holds():
            await asyncio.sleep(0.002)


def context_on(bus: MemoryBus, worker: str) -> Context:
    """Return the context of one worker process on the bus."""
    return Context(
        run_id=RUN,
        worker_id=WorkerId(worker),
        incarnation=f"{worker}-1",
        producer=bus.producer(),
        consumers=bus.consumers(),
        clock=bus.clock,
        starts={topic.name: dict.fromkeys(range(bus.partitions), 0) for topic in ALL},
        secret=SECRET,
        stop=asyncio.Event(),
    )


@dataclass
class Stand:
    """One running worker with its HTTP address."""

    context: Context
    service: InferenceService
    engine: ScriptedEngine
    tokenizer: Tokenizer
    address: str
    http: aiohttp.ClientSession
    observed: list[tuple[str, float, str]] = field(default_factory=list)

    async def post(
        self, path: str, body: dict[str, Any], *, episode: EpisodeId, attempt: int = 1
    ) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of one request."""
        headers = {"Authorization": f"Bearer {issue(SECRET, episode, attempt)}"}
        async with self.http.post(self.address + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def open(
        self, episode: EpisodeId, *, attempt: int = 1, number: int = 1, first: bool = True
    ) -> tuple[int, dict[str, Any]]:
        """Open a session."""
        body = {
            "episode_id": episode,
            "attempt": attempt,
            "fence_number": number,
            "tokens_floor": 0,
            "first": first,
        }
        return await self.post("/v1/sessions", body, episode=episode, attempt=attempt)

    async def chat(
        self,
        episode: EpisodeId,
        messages: list[dict[str, Any]],
        *,
        turn: int,
        number: int = 1,
        attempt: int = 1,
        place: dict[str, Any] | None = None,
        **extra: Any,
    ) -> tuple[int, dict[str, Any]]:
        """Ask for a turn."""
        body = {
            "model": "policy",
            "messages": messages,
            "sluice": {"turn": turn, "fence_number": number, **(place or {})},
            **extra,
        }
        return await self.post("/v1/chat/completions", body, episode=episode, attempt=attempt)


@asynccontextmanager
async def stand(
    bus: MemoryBus,
    settings: InferenceSettings | None = None,
    *,
    worker: str = "inference-1",
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[Stand]:
    """Run a worker's service on the memory bus for the length of a test."""
    async with serve(context_on(bus, worker), settings, tokenizer=tokenizer) as running:
        yield running


@asynccontextmanager
async def serve(
    context: Context,
    settings: InferenceSettings | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[Stand]:
    """Run a worker's service on any bus for the length of a test."""
    settings = settings or inference_settings()
    chosen = tokenizer or make_tokenizer(settings)
    engine = make_engine(settings, chosen, context)
    assert isinstance(engine, ScriptedEngine)
    observed: list[tuple[str, float, str]] = []

    def observe(name: str, value: float, unit: str, **labels: str) -> None:  # noqa: ARG001
        observed.append((name, value, unit))

    service = InferenceService(
        context,
        settings,
        engine=engine,
        tokenizer=chosen,
        observe=observe,
    )
    await service.keeper.start()
    watch = asyncio.create_task(service.keeper.watch())
    address = await service.listen()
    async with aiohttp.ClientSession() as http:
        yield Stand(
            context=context,
            service=service,
            engine=engine,
            tokenizer=chosen,
            address=address,
            http=http,
            observed=observed,
        )
    watch.cancel()
    await service.drain()


def episode(ordinal: int = 0, member: int = 0) -> EpisodeId:
    """Return the id of an episode of the test's run."""
    return episode_id(RUN, ordinal, member)


def commits(bus: MemoryBus, wanted: EpisodeId) -> list[Delivered[TokenCommit]]:
    """Return the WAL records of an episode, in log order."""
    partition = partition_of(group_of_episode(wanted), bus.partitions)
    return [
        message
        for message in bus.messages(TOKENS, partition)
        if isinstance(message, Delivered) and message.record.episode_id == wanted
    ]


def wal_of(bus: MemoryBus, wanted: EpisodeId) -> EpisodeWal:
    """Return what counts of an episode's WAL."""
    wal = EpisodeWal()
    for message in commits(bus, wanted):
        wal.take(message.offset, message.record)
    return wal


def action_ids(wal: EpisodeWal) -> list[int]:
    """Return the sampled ids of the main line."""
    return [
        i
        for piece in wal.pieces
        if piece.kind is TokenKind.ACTION
        for i in unpack_ids(piece.commit.token_ids)[: piece.count]
    ]
