"""The probe: loaded weights are held against the log-probs that their learner published."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.engine_keeper import EngineKeeper
from inference.model_files import read_probe
from inference.policy_follower import PolicyFollower
from inference.scripted_engine import ScriptedEngine, logprob_of
from inference.tokenizer import ByteTokenizer
from schemas.enums import LearnerEventKind, RefreshEventKind
from schemas.errors import TransientError
from schemas.ids import Version, WorkerId
from schemas.manifest import FileFacts, manifest_digest, render_manifest
from schemas.probe import PROBE_NAME, Probe, largest_difference, probe_ids, render_probe
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.topics import POLICIES, REFRESHES
from tests.support.clocks import BackwardClock
from tests.support.inference_stand import RUN, context_on, scripted, until
from tests.support.learner_records import learn, started
from tests.support.memory_bus import MemoryBus

FIRST, SECOND = Version(1, 1), Version(1, 2)
TOLERANCE = 0.5


def publish(bus: MemoryBus, version: Version, folder: Path, *, off: float | None) -> None:
    """Write and announce a version whose probe is `off` by so much; None writes no probe."""
    folder = folder / str(version).replace("/", "-")
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    if off is not None:
        prompt, ids = probe_ids(258)
        logprobs = (logprob_of(version) + off,) * len(ids)
        probe = Probe(prompt_ids=prompt, ids=ids, logprobs=logprobs)
        (folder / PROBE_NAME).write_text(render_probe(probe))
    files = {
        path.name: FileFacts(
            bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in folder.iterdir()
    }
    manifest = render_manifest(files)
    learn(bus, LearnerEventKind.STEP, version.number)
    bus.append(
        POLICIES,
        PolicyVersion(
            run_id=RUN, epoch=version.epoch, number=version.number, ordinal=version.number,
            digest=manifest_digest(manifest), location=str(folder), manifest=manifest, at_us=1,
            writer_id=WorkerId("learner-1"),
        ),
    )  # fmt: skip


def prepare(bus: MemoryBus, version: Version) -> None:
    bus.append(
        REFRESHES,
        RefreshEvent(
            run_id=RUN, worker_id=WorkerId("inference-1"), kind=RefreshEventKind.PREPARE,
            epoch=version.epoch, number=version.number, at_us=0, writer_id=WorkerId("refresh-1"),
        ),
    )  # fmt: skip


def said(bus: MemoryBus, kind: RefreshEventKind, version: Version) -> list[RefreshEvent]:
    return [
        event
        for event in bus.records(REFRESHES)
        if event.kind is kind and (event.epoch, event.number) == (version.epoch, version.number)
    ]


@asynccontextmanager
async def following(
    bus: MemoryBus, *, load_ms: int = 0, timeout_s: float = 5.0
) -> AsyncIterator[EngineKeeper]:
    context = context_on(bus, "inference-1")
    engine = ScriptedEngine(
        scripted(load_ms=load_ms), tokenizer=ByteTokenizer(), context_max=64, clock=context.clock
    )
    keeper = EngineKeeper(engine, clock=context.clock, inflight_max=1)
    await keeper.start()

    async def nothing(_: str = "") -> None:
        return None

    follower = PolicyFollower(
        context, keeper, inflight=lambda: 0, interrupt=nothing, on_change=nothing,
        refresh_timeout_s=timeout_s, probe_tolerance_nats=TOLERANCE,
    )  # fmt: skip
    tasks = [asyncio.create_task(keeper.watch()), asyncio.create_task(follower.run())]
    try:
        yield keeper
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await keeper.stop()


async def test_weights_that_score_as_their_learner_said_are_served_and_the_difference_is_told(
    tmp_path: Path,
) -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    publish(bus, FIRST, tmp_path, off=0.25)
    async with following(bus) as keeper:
        await until(lambda: bool(said(bus, RefreshEventKind.SERVING, FIRST)))
        assert keeper.version == FIRST
    [event] = said(bus, RefreshEventKind.SERVING, FIRST)
    assert event.probe_error == pytest.approx(0.25)


async def test_a_wall_clock_that_is_set_back_takes_no_time_from_a_load(tmp_path: Path) -> None:
    bus = MemoryBus(partitions=1, clock=BackwardClock())
    started(bus)
    publish(bus, FIRST, tmp_path, off=0.0)
    async with following(bus):
        await until(lambda: bool(said(bus, RefreshEventKind.SERVING, FIRST)))
    [event] = said(bus, RefreshEventKind.SERVING, FIRST)
    assert (event.fetch_us, event.pause_us, event.load_us) == (0, 0, 0)


async def test_weights_that_score_otherwise_are_refused_and_the_version_before_is_served_again(
    tmp_path: Path,
) -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    publish(bus, FIRST, tmp_path, off=0.0)
    async with following(bus) as keeper:
        await until(lambda: bool(said(bus, RefreshEventKind.SERVING, FIRST)))
        publish(bus, SECOND, tmp_path, off=-0.75)
        prepare(bus, SECOND)
        await until(lambda: bool(said(bus, RefreshEventKind.FAILED, SECOND)))
        await until(lambda: keeper.is_serving)
        assert keeper.version == FIRST
        assert keeper.restarts == 1
    assert (
        "0.75 nats off the learner's log-probs"
        in said(bus, RefreshEventKind.FAILED, SECOND)[0].detail
    )
    assert not said(bus, RefreshEventKind.SERVING, SECOND)


async def test_no_turn_begins_under_weights_that_were_not_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    seen: list[bool] = []
    score = EngineKeeper.score

    async def looked_at(keeper: EngineKeeper, *asked: Any) -> list[float]:
        seen.append(keeper.is_serving)
        return await score(keeper, *asked)

    monkeypatch.setattr(EngineKeeper, "score", looked_at)
    publish(bus, FIRST, tmp_path, off=0.0)
    async with following(bus) as keeper:
        await until(lambda: bool(said(bus, RefreshEventKind.SERVING, FIRST)))
        assert keeper.is_serving
    assert seen == [False]


async def test_a_version_without_a_probe_is_served_and_says_that_it_was_not_held_against_one(
    tmp_path: Path,
) -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    publish(bus, FIRST, tmp_path, off=None)
    async with following(bus):
        await until(lambda: bool(said(bus, RefreshEventKind.SERVING, FIRST)))
    assert said(bus, RefreshEventKind.SERVING, FIRST)[0].probe_error == -1.0


def test_a_probe_reads_back_as_it_was_written(tmp_path: Path) -> None:
    prompt, ids = probe_ids(49_152)
    probe = Probe(prompt_ids=prompt, ids=ids, logprobs=tuple(-1.0 / (n + 3) for n in range(16)))
    assert read_probe(tmp_path) is None
    (tmp_path / PROBE_NAME).write_text(render_probe(probe))
    assert read_probe(tmp_path) == probe


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"format": "other", "prompt_ids": [1], "ids": [2], "logprobs": [-1.0]}',
        '{"format": "sluice-probe-1", "prompt_ids": [1], "ids": [2, 3], "logprobs": [-1.0]}',
        '{"format": "sluice-probe-1", "prompt_ids": [1], "ids": [2], "logprobs": [NaN]}',
        '{"format": "sluice-probe-1", "prompt_ids": [1], "ids": [], "logprobs": []}',
    ],
)
def test_a_file_that_is_no_probe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PROBE_NAME).write_text(text)
    with pytest.raises(TransientError, match=PROBE_NAME):
        read_probe(tmp_path)


@pytest.mark.parametrize("vocabulary", [2, 258, 49_152])
def test_the_ids_of_a_probe_are_of_the_vocabulary(vocabulary: int) -> None:
    prompt, ids = probe_ids(vocabulary)
    assert (len(prompt), len(ids)) == (8, 16)
    assert all(0 <= i < vocabulary for i in (*prompt, *ids))


def test_a_log_prob_too_few_or_not_finite_is_infinitely_far() -> None:
    probe = Probe(prompt_ids=(1,), ids=(2, 3), logprobs=(-1.0, -2.0))
    assert largest_difference(probe, [-1.5, -2.0]) == 0.5
    assert largest_difference(probe, [-1.0]) == float("inf")
    assert largest_difference(probe, [-1.0, float("nan")]) == float("inf")
