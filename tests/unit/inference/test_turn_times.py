"""What a turn's commits say of its first token, its decode rate and its cache is what the engine
did, to 2 % (R82).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inference.engine import EngineDelta, EngineSpan, GenerateRequest
from inference.turns import Found, TurnPlanner
from infra.exporter.doors import MeteredProducer
from infra.exporter.instruments import Instruments
from schemas.enums import FinishReason, TokenKind
from schemas.ids import Version
from schemas.packing import Timing, unpack_timing
from schemas.records.token_commit import TokenCommit
from tests.support.clocks import BackwardClock, HeldClock
from tests.support.inference_stand import (
    ASK,
    commits,
    context_on,
    episode,
    inference_settings,
    serve,
    until,
)
from tests.support.memory_bus import MemoryBus

E = episode()
FIRST_MS, GAP_MS, TOKENS = 300, 20, 60
"""A first token after 300 ms and 50 tokens a second after it, eight to a commit."""
START = Version(0, 0)
WITHIN = 0.02


@dataclass(kw_only=True)
class TimedEngine:
    """Takes exactly so long for each token, on a clock that moves for nothing else."""

    clock: HeldClock
    stop_id: int
    cached: int = 0
    """Tokens of each prompt that come from the cache."""
    chunk: int = 1
    """Tokens that it hands over at a time."""
    leaves_at: int = 0
    """Tokens after which the first request has to leave the engine; 0: never."""
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[EngineDelta]:
        self.requests.append(request)
        # A context that is computed anew holds what was sampled before as well.
        cached = 0 if request.resumed_tokens else self.cached
        left = {"prefilled_tokens": len(request.prompt_ids) - cached, "reused_tokens": cached}
        self.clock.advance(GAP_MS if request.resumed_tokens else FIRST_MS)
        done = request.resumed_tokens
        while done < TOKENS:
            done += self.chunk
            spans = ((START, 0, TOKENS - request.resumed_tokens),) if done == TOKENS else None
            yield self._delta(spans, **left)
            await asyncio.sleep(0)
            if done == self.leaves_at and not request.resumed_tokens:
                yield EngineDelta(
                    token_ids=(), logprobs=(), version=START, finished=True,
                    finish_reason=FinishReason.ABORT,
                )  # fmt: skip
                return
            self.clock.advance(self.chunk * GAP_MS)

    def _delta(self, spans: tuple[EngineSpan, ...] | None, **left: int) -> EngineDelta:
        is_last = spans is not None
        ids = (*(ord("7"),) * (self.chunk - 1), self.stop_id if is_last else ord("7"))
        return EngineDelta(
            token_ids=ids, logprobs=(-1.0,) * self.chunk, version=START,
            finished=is_last, finish_reason=FinishReason.STOP if is_last else FinishReason.NONE,
            spans=spans, **left,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Two turns of one episode: their engine, their action commits, and what Prometheus is told."""

    engine: TimedEngine
    turns: Sequence[Sequence[TokenCommit]]
    registry: CollectorRegistry
    observed: Sequence[tuple[str, float, str]]

    def timings(self) -> list[Timing]:
        return [unpack_timing(turn[-1].timing) for turn in self.turns]

    def gaps_ms(self) -> list[float]:
        """Return the time between tokens of each turn that told one."""
        return [value / 1000 for name, value, _ in self.observed if name == "inter_token_us"]

    def exported(self, name: str) -> float:
        value = self.registry.get_sample_value(f"sluice_{name}")
        assert value is not None, name
        return value


async def asked(clock: HeldClock | None = None, **values: Any) -> Asked:
    """Ask for two turns of a service over an engine whose every moment is known."""
    clock, registry = clock or HeldClock(), CollectorRegistry()
    bus = MemoryBus(partitions=1, clock=clock)
    context = context_on(bus, "inference-1")
    metered = MeteredProducer(context.producer, Instruments(registry), clock)
    settings = inference_settings(commit_tokens=8, commit_interval_ms=1_000)
    async with serve(replace(context, producer=metered), settings) as worker:
        engine = TimedEngine(clock=clock, stop_id=worker.tokenizer.stop_ids[0], **values)
        worker.engine.generate = engine.generate  # type: ignore[method-assign]
        await worker.open(E)
        _, first = await worker.chat(E, ASK, turn=0)
        clock.advance(5_000)  # the environment's time is none of the engine's
        more = [*ASK, first["choices"][0]["message"], {"role": "user", "content": "and now?"}]
        status, second = await worker.chat(E, more, turn=1)
        assert status == 200, second
    actions = [m.record for m in commits(bus, E) if m.record.kind is TokenKind.ACTION]
    turns = [[one for one in actions if one.turn == turn] for turn in (0, 1)]
    assert all(sum(one.count for one in turn) == TOKENS for turn in turns)
    assert all(len(turn) >= TOKENS // 8 for turn in turns), "many commits to a turn"
    return Asked(engine=engine, turns=turns, registry=registry, observed=worker.observed)


async def test_the_first_token_and_the_decode_rate_are_the_engines() -> None:
    found = await asked()
    for turn, timing in zip(found.turns, found.timings(), strict=True):
        first_ms = (timing.first_token_us - timing.requested_us) / 1000
        assert first_ms == pytest.approx(FIRST_MS, rel=WITHIN)
        assert _rate(turn[-1]) == pytest.approx(1000 / GAP_MS, rel=WITHIN)
        for commit in turn:
            assert unpack_timing(commit.timing).first_token_us == timing.first_token_us


@pytest.mark.parametrize("chunk", [1, 4, 30])
async def test_the_time_between_tokens_is_that_of_those_after_the_first_chunk(chunk: int) -> None:
    found = await asked(chunk=chunk)
    assert found.gaps_ms() == [pytest.approx(GAP_MS)] * 2


async def test_a_turn_that_came_as_one_chunk_tells_no_time_between_tokens() -> None:
    found = await asked(chunk=TOKENS)
    assert [timing.first_token_us - timing.last_token_us for timing in found.timings()] == [0, 0]
    assert found.gaps_ms() == []


async def test_a_wall_clock_that_is_set_back_takes_no_time_from_a_turn() -> None:
    found = await asked(BackwardClock())
    for turn, timing in zip(found.turns, found.timings(), strict=True):
        first_ms = (timing.first_token_us - timing.requested_us) / 1000
        assert first_ms == pytest.approx(FIRST_MS, rel=WITHIN)
        assert _rate(turn[-1]) == pytest.approx(1000 / GAP_MS, rel=WITHIN)
        times = [unpack_timing(commit.timing).last_token_us for commit in turn]
        assert times == sorted(times)
        assert [commit.count for commit in turn[:-1]] == [8] * (len(turn) - 1), "none came late"
    told = {name: value for name, value, _ in found.observed}
    assert set(told) >= {"exposure_wait_us", "gateway_overhead_us", "commit_latency_us"}
    assert [(name, value) for name, value, _ in found.observed if value < 0] == []


async def test_a_request_that_joins_a_turn_tells_no_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, found, find = HeldClock(), list[Found](), TurnPlanner.find

    async def noted(*args: Any) -> Found:
        found.append(await find(*args))
        return found[-1]

    monkeypatch.setattr(TurnPlanner, "find", noted)
    bus = MemoryBus(partitions=1, clock=clock)
    async with serve(context_on(bus, "inference-1")) as worker:
        worker.engine.ceiling = 2
        await worker.open(E)
        first = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await until(lambda: len(found) == 1)
        clock.advance(30_000)
        second = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await until(lambda: len(found) == 2)
        worker.engine.ceiling = None
        told_first, told_second = (await first)[1], (await second)[1]
        assert told_first["choices"] == told_second["choices"]
    told = [value for name, value, _ in worker.observed if name == "gateway_overhead_us"]
    assert told == [0.0]


async def test_a_turn_that_left_its_engine_on_the_way_keeps_its_rate_and_its_prompt() -> None:
    found = await asked(leaves_at=40, cached=16)
    timing, request = found.timings()[0], found.engine.requests[0]
    assert found.engine.requests[1].resumed_tokens == 40
    assert found.gaps_ms() == [pytest.approx(GAP_MS, rel=WITHIN)] * 2
    assert (timing.prefilled_tokens, timing.reused_tokens) == (len(request.prompt_ids) - 16, 16)
    assert _rate(found.turns[0][-1]) == pytest.approx(1000 / GAP_MS, rel=WITHIN)


async def test_what_the_cache_gave_is_told_by_turn_and_counted_once_for_each() -> None:
    found = await asked(cached=16)
    prompts = [len(request.prompt_ids) for request in found.engine.requests]
    told = [(one.prefilled_tokens, one.reused_tokens) for one in found.timings()]
    assert told == [(prompt - 16, 16) for prompt in prompts]
    assert found.exported("reused_tokens_total") == 32
    assert found.exported("prefilled_tokens_total") == sum(prompts) - 32
    assert found.exported("ttft_seconds_count") == 2
    mean_s = found.exported("ttft_seconds_sum") / 2
    assert mean_s == pytest.approx(FIRST_MS / 1000, rel=WITHIN)


def _rate(last: TokenCommit) -> float:
    """Return the decode rate by the stamps of the last commit of a turn whose tokens came one by
    one. Unit: tokens/s.
    """
    timing = unpack_timing(last.timing)
    sampled = last.start + last.count - timing.prefilled_tokens - timing.reused_tokens
    return (sampled - 1) / ((timing.last_token_us - timing.first_token_us) / 1e6)
