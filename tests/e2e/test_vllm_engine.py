"""The vLLM engine against a float32 reference: after every kind of swap, and when it is killed.

A bf16 engine rounds activations: on the tiny models its log-probs are within 0.02 of float32, where
another version's are off by 0.5 and more. A float32 engine agrees to rounding.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from inference.engine_keeper import EngineKeeper
from inference.vllm_engine import VllmEngine
from inference.vllm_reaper import OWNER, owned
from schemas.deadline import Deadline
from schemas.enums import FinishReason
from schemas.errors import Boundary, TransientError
from schemas.ids import Version
from tests.support.clocks import RealClock
from tests.support.engine_contract import EngineContract, Served
from tests.support.vllm_models import PROMPT, Models, Said, engine_settings, make_models, say

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]
ANOTHER = 0.3
"""A version's log-probs differ from another version's by more than this somewhere."""


@dataclass(slots=True, kw_only=True)
class Stand:
    """One running engine, its models, and which of them it serves."""

    engine: VllmEngine
    models: Models
    tolerance: float
    stats: bool
    serving: int = 0
    number: int = 0
    drains: int = 0

    async def swap(self, which: int) -> Version:
        """Load another of the models under the next version."""
        self.number += 1
        version = Version(1, self.number)

        async def drained() -> None:
            assert self.engine.version != version, "drained before the new version is set"
            self.drains += 1

        report = await self.engine.swap(self.models.folders[which], version, drained)
        assert 0 < report.load_us <= report.pause_us
        self.serving = which
        return version

    def check(self, said: Said, which: int, prompt: tuple[int, ...], first: int, last: int) -> None:
        """Assert that tokens `first` to `last` have the log-probs of a model, and of no other."""
        before, ids = [*prompt, *said.ids[:first]], said.ids[first:last]
        found = said.logprobs[first:last]
        assert self.models.error(which, before, ids, found) <= self.tolerance
        for other in range(len(self.models.folders)):
            if other != which:
                assert self.models.error(other, before, ids, found) > ANOTHER


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[("tied", "bfloat16", 0.03, False), ("untied", "float32", 1e-4, True)],
    ids=["tied-bfloat16", "untied-float32"],
)
async def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    head, dtype, tolerance, stats = request.param
    models = make_models(tmp_path_factory.mktemp(head), tied=head == "tied")
    engine = VllmEngine(engine_settings(models.folders[0], dtype=dtype, stats=stats))
    await engine.start()
    token = os.environ[OWNER]
    assert len(owned(token)) >= 2, "engine core and worker"
    yield Stand(engine=engine, models=models, tolerance=tolerance, stats=stats)
    await engine.stop()
    assert not engine.alive
    assert owned(token) == []


async def test_the_starting_weights_are_version_0_0_and_say_what_the_reference_says(
    stand: Stand,
) -> None:
    assert stand.engine.alive
    assert stand.engine.version == Version(0, 0)
    said = await say(stand.engine, PROMPT, 64)
    assert said.end.finish_reason is FinishReason.LENGTH
    assert said.attested == said.versions == [Version(0, 0)] * 64
    stand.check(said, 0, PROMPT, 0, 64)


async def test_vllm_s_own_counters_are_on_the_page_only_where_they_are_asked_for(
    stand: Stand,
) -> None:
    labels = {"model_name": "policy", "engine": "0"}
    before = REGISTRY.get_sample_value("vllm:generation_tokens_total", labels)
    assert (before is not None) == stand.stats
    if before is not None:
        said = await say(stand.engine, PROMPT, 16)
        now = REGISTRY.get_sample_value("vllm:generation_tokens_total", labels)
        assert now is not None
        assert now - before == len(said.ids)


async def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(stand: Stand) -> None:
    said = await say(stand.engine, PROMPT, 32, temperature=0.7)
    error = stand.models.error(stand.serving, PROMPT, said.ids, said.logprobs, 0.7)
    assert error <= 2 * stand.tolerance
    assert stand.models.error(stand.serving, PROMPT, said.ids, said.logprobs, 1.0) > 0.1


async def test_a_score_is_the_reference_s(stand: Stand) -> None:
    ids = list(range(100, 140))
    found = await stand.engine.score(PROMPT, ids)
    assert stand.models.error(stand.serving, PROMPT, ids, found) <= stand.tolerance


async def test_an_equal_prefix_is_reused_and_after_a_swap_of_the_idle_engine_it_is_not(
    stand: Stand,
) -> None:
    await say(stand.engine, PROMPT, 4)
    again = await say(stand.engine, PROMPT, 32)
    assert again.end.reused_tokens >= 256
    assert again.end.reused_tokens + again.end.prefilled_tokens == len(PROMPT)
    stand.check(again, stand.serving, PROMPT, 0, 32)
    version = await stand.swap(1)
    anew = await say(stand.engine, PROMPT, 64)
    assert anew.end.reused_tokens == 0
    assert anew.attested == anew.versions == [version] * 64
    stand.check(anew, 1, PROMPT, 0, 64)


async def test_requests_in_flight_go_on_under_the_new_weights_with_right_versions(
    stand: Stand,
) -> None:
    old_model, old = stand.serving, stand.engine.version
    started = asyncio.Event()
    prompts = [PROMPT[k:] for k in range(6)]
    running = [
        asyncio.create_task(say(stand.engine, prompt, 300, started=started, after_tokens=20))
        for prompt in prompts
    ]
    await started.wait()
    new = await stand.swap(2)
    for prompt, said in zip(prompts, await asyncio.gather(*running), strict=True):
        kept = said.versions.count(old)
        assert len(said.ids) == 300
        assert 0 < kept < 300
        assert said.versions == [old] * kept + [new] * (300 - kept)
        assert said.attested == said.versions
        stand.check(said, old_model, prompt, 0, kept)
        stand.check(said, 2, prompt, kept, 300)


async def test_many_swaps_in_a_row_leave_every_token_under_its_own_version(stand: Stand) -> None:
    served = {stand.engine.version: stand.serving}
    started = asyncio.Event()
    running = asyncio.create_task(say(stand.engine, PROMPT, 500, started=started, after_tokens=10))
    await started.wait()
    for which in (0, 1, 2, 0):
        served[await stand.swap(which)] = which
        await asyncio.sleep(0.1)
    said = await running
    assert said.attested == said.versions == sorted(said.versions)
    edges = [k for k in range(1, 500) if said.versions[k] != said.versions[k - 1]]
    assert len(edges) >= 3
    for first, last in zip([0, *edges], [*edges, 500], strict=True):
        error = stand.models.error(
            served[said.versions[first]],
            [*PROMPT, *said.ids[:first]],
            said.ids[first:last],
            said.logprobs[first:last],
        )
        assert error <= stand.tolerance


@pytest_asyncio.fixture(loop_scope="module")
async def served(stand: Stand) -> Served:
    def next_version() -> tuple[Path, Version]:
        stand.number += 1
        stand.serving = (stand.serving + 1) % len(stand.models.folders)
        return stand.models.folders[stand.serving], Version(1, stand.number)

    return Served(
        engine=stand.engine,
        prompt=PROMPT,
        # Half of the vocabulary: a random model soon says one of them.
        stop_ids=tuple(range(0, 512, 2)),
        long_tokens=300,
        next_version=next_version,
    )


@pytest.fixture
def fresh(stand: Stand) -> VllmEngine:
    return VllmEngine(engine_settings(stand.models.folders[0], dtype="float32"))


class TestVllmEngine(EngineContract):
    """The suite that the scripted engine passes too."""


async def test_a_version_with_other_tensors_is_refused_before_anything_stops(
    stand: Stand, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(stand.models.folders[0] / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    before = stand.engine.version
    with pytest.raises(TransientError, match=r"model\.norm\.weight is not there"):
        await stand.engine.swap(tmp_path, Version(9, 9), _nothing)
    assert stand.engine.alive
    assert stand.engine.version == before
    said = await say(stand.engine, PROMPT, 8)
    assert said.versions == [before] * 8


async def test_a_killed_engine_is_found_dead_and_started_again_with_the_version_it_had_whole(
    stand: Stand,
) -> None:
    keeper = EngineKeeper(stand.engine, clock=RealClock(), inflight_max=4)
    loaded = Version(2, 1)
    await keeper.swap(stand.models.folders[1], loaded)
    started = asyncio.Event()
    running = asyncio.create_task(say(stand.engine, PROMPT, 600, started=started))
    await started.wait()
    victim = _engine_process()
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(TransientError) as caught:
        await asyncio.wait_for(running, 30)
    assert caught.value.boundary is Boundary.ENGINE
    assert not stand.engine.alive
    with pytest.raises(TransientError, match="not running"):
        await say(stand.engine, PROMPT, 1)
    with pytest.raises(TransientError, match="not running"):
        await stand.engine.swap(stand.models.folders[0], Version(9, 9), _nothing)
    # The worker lives on, and what watches over its engine starts it anew in this same process.
    now_ms = RealClock().monotonic_ms()
    deadline = Deadline.after(180_000, now_ms=now_ms, waiting_for="the engine's restart")
    watching = asyncio.create_task(keeper.watch())
    await keeper.ready(deadline)
    assert (keeper.restarts, stand.engine.version) == (1, loaded)
    assert _engine_process().pid != victim.pid
    said = await say(stand.engine, PROMPT, 32)
    assert said.attested == said.versions == [loaded] * 32
    stand.check(said, 1, PROMPT, 0, 32)
    watching.cancel()


def _engine_process() -> psutil.Process:
    """Return the engine core among this process's children; it names itself."""
    for child in psutil.Process().children(recursive=True):
        if "EngineCore" in " ".join(child.cmdline()):
            return child
    raise AssertionError("no engine core among the children")


async def _nothing() -> None:
    return None
