"""What every engine must do; the scripted and the real one run the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from inference.engine import Engine, EngineDelta, GenerateRequest
from schemas.enums import FinishReason
from schemas.errors import SluiceError
from schemas.ids import Version
from schemas.packing import bad_logprob
from tests.support.vllm_models import say


@dataclass(slots=True, kw_only=True)
class Served:
    """An engine that runs, with what its tests need to know of it."""

    engine: Engine
    prompt: tuple[int, ...]
    stop_ids: tuple[int, ...]
    """Ids of which one is likely to end a turn of some hundred tokens."""
    long_tokens: int
    """A turn that is still running after it gave its first token. Unit: tokens."""
    next_version: Callable[[], tuple[Path, Version]]
    """A folder that can be loaded and a version that was not used yet."""


async def _nothing() -> None:
    return None


class EngineContract:
    """The suite; a subclass gives the fixture `served`."""

    async def test_a_turn_ends_at_its_bound_with_one_log_prob_and_version_per_token(
        self, served: Served
    ) -> None:
        engine = served.engine
        said = await say(engine, served.prompt, 5)
        assert len(said.ids) == 5
        assert bad_logprob(said.logprobs, 5) is None
        assert said.end.finished
        assert said.end.finish_reason is FinishReason.LENGTH
        assert said.versions == said.attested == [engine.version] * 5
        assert said.end.prefilled_tokens + said.end.reused_tokens in (0, len(served.prompt))

    async def test_a_stop_id_ends_the_turn_and_is_its_last_token(self, served: Served) -> None:
        said = await say(served.engine, served.prompt, served.long_tokens, stop_ids=served.stop_ids)
        assert said.end.finish_reason is FinishReason.STOP
        assert said.ids[-1] in served.stop_ids
        assert not set(said.ids[:-1]) & set(served.stop_ids)

    async def test_turns_run_side_by_side_and_each_keeps_to_itself(self, served: Served) -> None:
        turns = [say(served.engine, served.prompt[k:], 8 + k) for k in range(6)]
        for k, said in enumerate(await asyncio.gather(*turns)):
            assert len(said.ids) == 8 + k
            assert said.attested == said.versions

    async def test_only_the_last_delta_is_finished_and_has_spans(self, served: Served) -> None:
        request = GenerateRequest(
            request_id="contract-last", prompt_ids=served.prompt, tokens_max=20
        )
        deltas: list[EngineDelta] = [delta async for delta in served.engine.generate(request)]
        assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        assert all(delta.spans is None for delta in deltas[:-1])
        assert deltas[-1].spans is not None

    async def test_a_swap_of_the_idle_engine_changes_the_version_after_one_drain(
        self, served: Served
    ) -> None:
        engine, before = served.engine, served.engine.version
        folder, version = served.next_version()
        seen: list[Version] = []

        async def drained() -> None:
            seen.append(engine.version)

        report = await engine.swap(folder, version, drained)
        assert seen == [before]
        assert engine.version == version
        assert report.pause_us >= report.load_us >= 0
        said = await say(engine, served.prompt, 5)
        assert said.attested == said.versions == [version] * 5

    async def test_a_swap_keeps_a_turn_in_flight_and_stamps_it_on_both_sides(
        self, served: Served
    ) -> None:
        engine, before = served.engine, served.engine.version
        folder, version = served.next_version()
        started, taken_at_drain = asyncio.Event(), -1
        running = asyncio.create_task(
            say(engine, served.prompt, served.long_tokens, started=started)
        )
        await started.wait()

        async def drained() -> None:
            nonlocal taken_at_drain
            taken_at_drain = 0

        await engine.swap(folder, version, drained)
        said = await running
        kept = said.versions.count(before)
        assert taken_at_drain == 0
        assert len(said.ids) == served.long_tokens
        assert 0 < kept < len(said.ids)
        assert said.versions == [before] * kept + [version] * (len(said.ids) - kept)
        assert said.attested == said.versions

    async def test_an_aborted_turn_ends_with_reason_abort_and_an_account_of_what_it_gave(
        self, served: Served
    ) -> None:
        started = asyncio.Event()
        running = asyncio.create_task(
            say(
                served.engine,
                served.prompt,
                served.long_tokens,
                request_id="contract-abort",
                started=started,
            )
        )
        await started.wait()
        await served.engine.abort("contract-abort")
        said = await asyncio.wait_for(running, 10)
        assert said.end.finish_reason is FinishReason.ABORT
        assert len(said.ids) < served.long_tokens
        assert said.attested == said.versions
        await served.engine.abort("contract-abort")
        await served.engine.abort("never heard of")

    async def test_a_reader_that_leaves_early_disturbs_nobody(self, served: Served) -> None:
        request = GenerateRequest(
            request_id="contract-left", prompt_ids=served.prompt, tokens_max=served.long_tokens
        )
        stream = served.engine.generate(request)
        assert (await anext(stream)).token_ids
        await stream.aclose()  # type: ignore[attr-defined]  # both engines give a generator
        said = await say(served.engine, served.prompt, 5)
        assert len(said.ids) == 5

    async def test_a_score_has_one_value_per_id_and_none_is_above_zero(
        self, served: Served
    ) -> None:
        ids = list(served.prompt[:7])
        values = await served.engine.score(served.prompt, ids)
        assert bad_logprob(values, 7) is None

    async def test_an_engine_that_was_not_started_refuses_and_says_so(self, fresh: Engine) -> None:
        assert not fresh.alive
        request = GenerateRequest(request_id="contract-dead", prompt_ids=(1, 2), tokens_max=1)
        with pytest.raises(SluiceError):
            await anext(aiter(fresh.generate(request)))
        with pytest.raises(SluiceError):
            await fresh.swap(Path("nowhere"), Version(9, 9), _nothing)
        await fresh.stop()
        assert not fresh.alive
