"""The scripted engine is what it says: seeded, resumable, and honest about versions."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from inference.engine import EngineDelta, GenerateRequest
from inference.scripted_engine import ScriptedEngine, logprob_of, turn_length, version_of
from inference.tokenizer import ByteTokenizer
from schemas.enums import FinishReason
from schemas.errors import TransientError
from schemas.ids import Version
from schemas.packing import pack_logprobs, unpack_logprobs
from tests.support.clocks import RealClock
from tests.support.inference_stand import scripted

PROMPT = list(b"a prompt")


async def engine(**values: Any) -> ScriptedEngine:
    made = ScriptedEngine(
        scripted(**values), tokenizer=ByteTokenizer(), context_max=2048, clock=RealClock()
    )
    await made.start()
    return made


async def deltas(
    made: ScriptedEngine, prompt: list[int], *, tokens_max: int = 500, resumed: int = 0
) -> list[EngineDelta]:
    request = GenerateRequest(
        request_id=f"r{made.requests}", prompt_ids=prompt, tokens_max=tokens_max,
        resumed_tokens=resumed, stop_ids=(ByteTokenizer.END_ID,),
    )  # fmt: skip
    return [delta async for delta in made.generate(request)]


def ids(found: list[EngineDelta]) -> list[int]:
    return [i for delta in found for i in delta.token_ids]


@pytest.mark.parametrize("cut", [1, 7, 20])
async def test_a_resumed_turn_goes_on_identically(cut: int) -> None:
    made = await engine(length_median_tokens=40, length_sigma=0.0)
    whole = ids(await deltas(made, PROMPT))
    again = ids(await deltas(made, [*PROMPT, *whole[:cut]], resumed=cut))
    assert whole[:cut] + again == whole
    await made.stop()


async def test_another_seed_or_history_gives_other_tokens() -> None:
    one, other = await engine(seed=1), await engine(seed=2)
    assert ids(await deltas(one, PROMPT)) != ids(await deltas(other, PROMPT))
    assert ids(await deltas(one, PROMPT)) != ids(await deltas(one, [*PROMPT, 33]))
    await one.stop()
    await other.stop()


async def test_lengths_follow_the_lognormal_law() -> None:
    made = await engine(length_median_tokens=30, length_sigma=1.0)
    lengths = sorted(
        [len(ids(await deltas(made, [*PROMPT, n], tokens_max=100_000))) - 1 for n in range(400)]
    )
    assert 25 <= lengths[200] <= 36
    assert lengths[396] / lengths[200] >= 5
    await made.stop()


async def test_a_turns_length_is_told_from_its_prompt_alone() -> None:
    given: dict[str, Any] = {"length_median_tokens": 20, "length_sigma": 1.0, "seed": 3}
    made = await engine(**given)
    for last, tokens_max in product(range(20), (16, 1_000)):
        prompt = [*PROMPT, last]
        written = ids(await deltas(made, prompt, tokens_max=tokens_max))
        assert len(written) == turn_length(scripted(**given), prompt, tokens_max=tokens_max)
    await made.stop()


@pytest.mark.parametrize("version", [Version(0, 0), Version(1, 0), Version(7, 4095)])
def test_a_logprob_names_its_version_in_float32(version: Version) -> None:
    (stored,) = unpack_logprobs(pack_logprobs([logprob_of(version)]))
    assert stored < 0
    assert version_of(stored) == version


async def test_a_swap_keeps_requests_and_its_spans_tell_both_versions() -> None:
    made = await engine(tokens_per_s=2000.0, length_median_tokens=80, length_sigma=0.0)
    asked = asyncio.create_task(deltas(made, PROMPT))
    await asyncio.sleep(0.02)
    drained: list[int] = []

    async def drain() -> None:
        drained.append(1)

    await made.swap(Path(), Version(1, 5), drain)
    found = await asked
    assert drained == [1]
    assert found[-1].spans is not None
    assert [v for v, _, _ in dict.fromkeys((v, 0, 0) for v, _, _ in found[-1].spans)] == [
        Version(0, 0), Version(1, 5),
    ]  # fmt: skip
    assert all(version_of(value) == delta.version for delta in found for value in delta.logprobs)
    await made.stop()


async def test_an_aborted_request_ends_with_that_reason() -> None:
    made = await engine(tokens_per_s=100.0, length_median_tokens=500)
    asked = asyncio.create_task(deltas(made, PROMPT))
    await asyncio.sleep(0.03)
    await made.abort("r0")
    assert (await asked)[-1].finish_reason is FinishReason.ABORT
    await made.stop()


async def test_a_killed_engine_ends_its_streams_and_starts_again_from_the_first_weights() -> None:
    made = await engine(tokens_per_s=100.0, length_median_tokens=500)
    asked = asyncio.create_task(deltas(made, PROMPT))
    await asyncio.sleep(0.03)
    made.kill()
    assert not made.alive
    with pytest.raises(TransientError, match="died"):
        await asked
    await made.start()
    assert (made.alive, made.version) == (True, Version(0, 0))
    await made.stop()
