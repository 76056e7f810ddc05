"""A worker loads what is prepared, leaves what is orphaned, and says what it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from inference.engine import EngineDelta, GenerateRequest
from inference.policy_follower import PolicyFollower
from inference.scripted_engine import ScriptedEngine, version_of
from inference.settings import InferenceSettings
from inference.tokenizer import ByteTokenizer
from inference.worker import run
from schemas.bearer import issue
from schemas.enums import LearnerEventKind, RefreshEventKind, Role, TokenKind, WorkerStatus
from schemas.errors import InvariantError, SettingsError
from schemas.ids import Version, WorkerId
from schemas.packing import unpack_logprobs
from schemas.ports import Context, Delivered
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.worker_state import WorkerState
from schemas.topics import DEAD_LETTERS, LEARNER_STEPS, POLICIES, REFRESHES, WORKERS
from tests.support.inference_stand import (
    RUN,
    SECRET,
    action_ids,
    context_on,
    episode,
    inference_settings,
    scripted,
    wal_of,
)  # fmt: skip
from tests.support.memory_bus import MemoryBus

LEARNER = WorkerId("learner-1")
E = episode()
_SILENT = WorkerState(
    run_id=RUN, worker_id=WorkerId("inference-1"), role=Role.INFERENCE, incarnation="",
    status=WorkerStatus.STOPPED, at_us=0, writer_id=WorkerId("inference-1"),
)  # fmt: skip
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]


def learner_event(bus: MemoryBus, kind: LearnerEventKind, **values: Any) -> None:
    bus.append(
        LEARNER_STEPS,
        LearnerEvent(
            run_id=RUN, kind=kind, learner_id=LEARNER, at_us=0, writer_id=LEARNER, **values
        ),
    )  # fmt: skip


def restored(bus: MemoryBus, epoch: int, parent: Version) -> None:
    learner_event(bus, LearnerEventKind.EPOCH_STARTED, epoch=epoch)
    learner_event(
        bus, LearnerEventKind.RESTORED, epoch=epoch,
        parent_epoch=parent.epoch, parent_number=parent.number,
    )  # fmt: skip


def stepped(bus: MemoryBus, version: Version) -> None:
    learner_event(
        bus, LearnerEventKind.STEP, epoch=version.epoch, number=version.number,
        ordinal=version.number,
    )  # fmt: skip


def published(bus: MemoryBus, version: Version) -> None:
    bus.append(
        POLICIES,
        PolicyVersion(
            run_id=RUN, epoch=version.epoch, number=version.number, ordinal=version.number,
            digest=f"digest-{version}", location="/nowhere", at_us=0, writer_id=LEARNER,
        ),
    )  # fmt: skip


def prepared(bus: MemoryBus, version: Version) -> None:
    bus.append(
        REFRESHES,
        RefreshEvent(
            run_id=RUN, worker_id=WorkerId("inference-1"), kind=RefreshEventKind.PREPARE,
            epoch=version.epoch, number=version.number, at_us=0, writer_id=WorkerId("refresh-1"),
        ),
    )  # fmt: skip


def told(bus: MemoryBus) -> list[tuple[str, Version]]:
    """Return what the worker itself said about refreshes."""
    return [
        (event.kind.value, Version(event.epoch, event.number))
        for event in bus.records(REFRESHES)
        if event.kind is not RefreshEventKind.PREPARE
    ]


def state(bus: MemoryBus) -> WorkerState:
    """Return what the worker said last of itself."""
    return (bus.records(WORKERS) or [_SILENT])[-1]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not holds():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(
    bus: MemoryBus, settings: InferenceSettings | None = None
) -> AsyncIterator[tuple[Context, ScriptedEngine]]:
    context = context_on(bus, "inference-1")
    settings = settings or inference_settings()
    published(bus, Version(0, 0))
    engine = ScriptedEngine(
        settings.scripted, tokenizer=ByteTokenizer(), context_max=2048, clock=context.clock
    )
    worker = asyncio.create_task(run(context, settings, engine=engine))
    await until(lambda: worker.done() or state(bus).status is WorkerStatus.READY)
    yield context, engine
    assert isinstance(context.stop, asyncio.Event)
    context.stop.set()
    await asyncio.wait_for(worker, 3)


async def test_a_prepared_version_is_loaded_and_served() -> None:
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    stepped(bus, Version(1, 1))
    async with running(bus):
        published(bus, Version(1, 1))
        prepared(bus, Version(1, 1))
        await until(lambda: len(told(bus)) == 2)
        assert told(bus) == [("loaded", Version(1, 1)), ("serving", Version(1, 1))]
        await until(lambda: (state(bus).epoch, state(bus).number) == (1, 1))
        assert state(bus).address.startswith("http://127.0.0.1:")
    assert state(bus).status is WorkerStatus.STOPPED


async def test_a_version_that_no_counting_step_made_is_refused() -> None:
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    async with running(bus) as (_, engine):
        published(bus, Version(1, 1))
        prepared(bus, Version(1, 1))
        await until(lambda: bool(told(bus)))
        assert told(bus) == [("failed", Version(1, 1))]
        assert engine.version == Version(0, 0)


async def test_an_orphaned_version_is_left_before_anything_more_is_sampled() -> None:
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    for number in (1, 2):
        stepped(bus, Version(1, number))
        published(bus, Version(1, number))
    long = scripted(length_median_tokens=100, length_sigma=0.0)
    async with running(bus, inference_settings(scripted=long)) as (_, engine):
        prepared(bus, Version(1, 2))
        await until(lambda: engine.version == Version(1, 2))
        address = state(bus).address
        engine.ceiling = 20
        begun = asyncio.create_task(_turn(address))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 20)
        # The learner restarts from the starting weights: 1/1 and 1/2 are on no lineage any more.
        restored(bus, 2, Version(0, 0))
        await until(lambda: any("orphaned" in told.detail for told in bus.records(WORKERS)))
        engine.ceiling = None
        answer = await begun
        assert set(answer["sluice"]["policy_versions"]) == {"1/2", "0/0"}
        actions = [p.commit for p in wal_of(bus, E).pieces if p.kind is TokenKind.ACTION]
        values = [v for action in actions for v in unpack_logprobs(action.logprobs)]
        versions = [Version(1, 2)] * 20 + [Version(0, 0)] * (len(values) - 20)
        assert [version_of(v) for v in values] == versions, "nothing is sampled under an orphan"


async def test_a_worker_that_was_started_again_serves_the_newest_version_from_its_first_token() -> (
    None
):
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    for number in (1, 2):
        stepped(bus, Version(1, number))
        published(bus, Version(1, number))
    published(bus, Version(1, 3))  # its Step is missing, so it is nobody's to serve
    async with running(bus) as (_, engine):
        assert engine.version == Version(1, 2)
        assert (state(bus).epoch, state(bus).number) == (1, 2)
        answer = await _turn(state(bus).address)
        assert answer["sluice"]["policy_versions"] == ["1/2"]
    assert told(bus) == [("loaded", Version(1, 2)), ("serving", Version(1, 2))]


async def test_a_worker_is_ready_only_once_its_version_is_in_the_registry() -> None:
    bus = MemoryBus(partitions=1)
    context = context_on(bus, "inference-1")
    worker = asyncio.create_task(run(context, inference_settings()))
    await until(lambda: "waits for version 0/0 to be published" in state(bus).detail)
    assert state(bus).status is WorkerStatus.STARTING
    published(bus, Version(0, 0))
    await until(lambda: state(bus).status is WorkerStatus.READY)
    assert isinstance(context.stop, asyncio.Event)
    context.stop.set()
    await asyncio.wait_for(worker, 3)


async def no_turns() -> None:
    return None


async def _turn(address: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {issue(SECRET, E, 1)}"}
    async with aiohttp.ClientSession(address, headers=headers) as http:
        opening = {"episode_id": E, "attempt": 1, "fence_number": 1, "first": True}
        async with http.post("/v1/sessions", json=opening) as response:
            assert response.status == 200
        body = {"messages": ASK, "sluice": {"turn": 0, "fence_number": 1}}
        async with http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            answer: dict[str, Any] = await response.json()
            return answer


async def test_a_version_whose_files_are_missing_is_refused_and_the_old_one_stays() -> None:
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    async with running(bus) as (context, engine):
        from inference.engine_keeper import EngineKeeper

        stepped(bus, Version(1, 1))
        published(bus, Version(1, 1))
        keeper = EngineKeeper(engine, clock=context.clock, inflight_max=1)
        changes: list[str] = []

        async def note(detail: str) -> None:
            changes.append(detail)

        follower = PolicyFollower(
            context_on(bus, "inference-9"), keeper, inflight=lambda: 0,
            interrupt=no_turns, on_change=note,
            refresh_timeout_s=1.0,
        )  # fmt: skip
        for topic in (LEARNER_STEPS, POLICIES):
            for message in bus.messages(topic):
                assert isinstance(message, Delivered)
                follower.take(message)
        bus.append(
            REFRESHES,
            RefreshEvent(
                run_id=RUN, worker_id=WorkerId("inference-9"), kind=RefreshEventKind.PREPARE,
                epoch=1, number=1, at_us=0, writer_id=WorkerId("refresh-1"),
            ),
        )  # fmt: skip
        loop = asyncio.create_task(follower.run())
        await until(lambda: bool(changes))
        loop.cancel()
        failed = [e for e in bus.records(REFRESHES) if e.kind is RefreshEventKind.FAILED]
        assert "/nowhere" in failed[0].detail
        assert engine.version == Version(0, 0)
        # Asked for once as the newest at the start, and once by the Prepare.
        assert set(changes) == {"version 1/1 failed to load"}


async def test_a_worker_says_what_its_engine_was_caught_at() -> None:
    bus = MemoryBus(partitions=1)
    async with running(bus, inference_settings(scripted=scripted(fault="nan"))):
        headers = {"Authorization": f"Bearer {issue(SECRET, E, 1)}"}
        async with aiohttp.ClientSession(state(bus).address, headers=headers) as http:
            opening = {"episode_id": E, "attempt": 1, "fence_number": 1, "first": True}
            await http.post("/v1/sessions", json=opening)
            body = {"messages": ASK, "sluice": {"turn": 0, "fence_number": 1}}
            async with http.post("/v1/chat/completions", json=body) as response:
                assert response.status == 500
        await until(lambda: "invalid_logprob" in state(bus).detail)


async def test_a_taken_port_is_a_clear_error() -> None:
    bus = MemoryBus(partitions=1)
    async with running(bus):
        port = int(state(bus).address.rsplit(":", 1)[1])
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            await run(context_on(bus, "inference-2"), inference_settings(listen_port=port))


async def test_an_engine_that_cannot_start_is_told_and_ends_the_worker() -> None:
    class Broken(ScriptedEngine):
        async def start(self) -> None:
            raise SettingsError("no memory for the KV cache", hint="lower kv_cache_gib")

    bus = MemoryBus(partitions=1)
    context = context_on(bus, "inference-1")
    engine = Broken(scripted(), tokenizer=ByteTokenizer(), context_max=64, clock=context.clock)
    with pytest.raises(SettingsError, match="no memory"):
        await run(context, inference_settings(), engine=engine)
    assert state(bus).status is WorkerStatus.FAILED
    assert "no memory" in state(bus).detail


async def test_a_stop_during_the_engines_start_ends_the_worker() -> None:
    class Slow(ScriptedEngine):
        async def start(self) -> None:
            await asyncio.sleep(60)

    bus = MemoryBus(partitions=1)
    context = context_on(bus, "inference-1")
    engine = Slow(scripted(), tokenizer=ByteTokenizer(), context_max=64, clock=context.clock)
    worker = asyncio.create_task(run(context, inference_settings(), engine=engine))
    await until(lambda: state(bus).detail != "")
    assert isinstance(context.stop, asyncio.Event)
    context.stop.set()
    await asyncio.wait_for(worker, 3)
    assert state(bus).status is WorkerStatus.STOPPED


async def test_a_record_that_cannot_be_read_is_buried_and_the_policy_is_followed_on() -> None:
    bus = MemoryBus(partitions=1)
    restored(bus, 1, Version(0, 0))
    stepped(bus, Version(1, 1))
    async with running(bus) as (_, engine):
        bus.append_raw(POLICIES, partition=0, raw=b"junk")
        published(bus, Version(1, 1))
        prepared(bus, Version(1, 1))
        await until(lambda: engine.version == Version(1, 1))
        await until(lambda: bool(bus.records(DEAD_LETTERS)))
        assert bus.records(DEAD_LETTERS)[0].origin_topic == POLICIES.name


async def test_a_fault_of_ours_in_a_turn_is_answered_and_ends_the_worker() -> None:
    class Faulty(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[EngineDelta]:
            if request.tokens_max:
                raise InvariantError(f"{request.request_id} is impossible")
            yield EngineDelta(token_ids=(), logprobs=(), version=self.version)

    bus = MemoryBus(partitions=1)
    context = context_on(bus, "inference-1")
    engine = Faulty(scripted(), tokenizer=ByteTokenizer(), context_max=64, clock=context.clock)
    published(bus, Version(0, 0))
    worker = asyncio.create_task(run(context, inference_settings(), engine=engine))
    await until(lambda: state(bus).status is WorkerStatus.READY)
    headers = {"Authorization": f"Bearer {issue(SECRET, E, 1)}"}
    async with aiohttp.ClientSession(state(bus).address, headers=headers) as http:
        opening = {"episode_id": E, "attempt": 1, "fence_number": 1, "first": True}
        await http.post("/v1/sessions", json=opening)
        body = {"messages": ASK, "sluice": {"turn": 0, "fence_number": 1}}
        async with http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 503
    with pytest.raises(InvariantError, match="impossible"):
        await asyncio.wait_for(worker, 3)
    assert state(bus).status is WorkerStatus.FAILED
