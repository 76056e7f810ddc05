"""What the token WAL costs vLLM: decode with every token committed to Kafka, beside vLLM alone.

Blocks of 32 sequences, paired and in turn: one arm asks the engine directly, the other the
gateway's sessions, whose turns end when their last commit is durable. The broker runs in both arms.
Prints a list of {name, value, unit, goal, conditions}: `python -m benchmarks.decode_ratio`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.broker import measured
from benchmarks.turns import Turns
from inference.engine import Engine, GenerateRequest
from inference.service import InferenceService
from inference.settings import InferenceSettings
from inference.tokenizer import ModelTokenizer
from inference.vllm_engine import VllmEngine
from infra.setup.places import find_places
from schemas.ports import Context

GOAL = 0.97
SEQUENCES = 32
TOKENS_MIN, TOKENS = 16, 48
"""A turn is as long as a block of `_BLOCK_S` allows on this machine, between these."""
PAIRS = 20
_BLOCK_S = 4.0
QUESTION = "Explain in simple words how a bicycle keeps its balance while it moves."


class Arms:
    """Both ways of decoding one block; each gives tokens a second."""

    def __init__(self, turns: Turns, engine: Engine, prompt: tuple[int, ...]) -> None:
        self._engine = engine
        self._turns = turns
        self._prompt = prompt

    async def alone(self) -> float:
        """Decode a block with the engine alone."""
        block = self._turns.next_block()
        began = time.perf_counter()
        counts = await asyncio.gather(*(self._ask(block, k) for k in range(SEQUENCES)))
        return sum(counts) / (time.perf_counter() - began)

    async def _ask(self, block: int, member: int) -> int:
        request = GenerateRequest(
            request_id=f"alone-{block}-{member}",
            prompt_ids=self._prompt,
            tokens_max=self._turns.tokens_max,
        )
        return sum([len(d.token_ids) async for d in self._engine.generate(request)])

    async def with_wal(self) -> float:
        """Decode a block; a turn ends when its last commit is durable."""
        self._turns.next_block()
        sessions = [await self._turns.open(k) for k in range(SEQUENCES)]
        began = time.perf_counter()
        running = [self._turns.start(session) for session in sessions]
        counts = await asyncio.gather(*(self._turns.follow(turn) for turn in running))
        return sum(counts) / (time.perf_counter() - began)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of paired ratios and its 95 % interval (t, on logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * spread
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


async def _measure(
    context: Context, folder: Path, *, pairs: int
) -> tuple[list[float], list[float], int]:
    settings = InferenceSettings(model_path=str(folder), context_max=1024, inflight_max=SEQUENCES)
    tokenizer, engine = ModelTokenizer(folder), VllmEngine(settings)
    service = InferenceService(
        context,
        settings,
        engine=engine,
        tokenizer=tokenizer,
        observe=lambda *_, **__: None,
    )
    await service.keeper.start()
    try:
        prompt = tuple(tokenizer.encode(QUESTION))
        turns = Turns(context, service, prompt, tokens_max=TOKENS_MIN)
        arms = Arms(turns, engine, prompt)
        await arms.alone()
        await arms.with_wal()
        rate = await arms.alone()
        turns.tokens_max = max(TOKENS_MIN, min(TOKENS, round(rate * _BLOCK_S / SEQUENCES)))
        alone, logged = [], []
        for pair in range(pairs):
            # The order alternates, so that a drift of the machine falls on both arms alike.
            if pair % 2:
                logged.append(await arms.with_wal())
                alone.append(await arms.alone())
            else:
                alone.append(await arms.alone())
                logged.append(await arms.with_wal())
        return alone, logged, turns.tokens_max
    finally:
        await service.drain()


def run(*, pairs: int = PAIRS, model: Path | None = None) -> list[dict[str, Any]]:
    """Measure; the value is the geometric mean of the paired ratios.

    model: another folder than SmolLM2's, for a trial that is no measurement.
    """
    folder = model or find_places(os.environ).model

    alone, logged, tokens = measured(
        "inference-1", lambda context: _measure(context, folder, pairs=pairs)
    )
    mean, low, high = interval([b / a for a, b in zip(alone, logged, strict=True)])
    return [
        {
            "name": "decode_ratio",
            "value": round(mean, 4),
            "unit": "ratio",
            "goal": GOAL,
            "conditions": f"{os.cpu_count()} {platform.machine()} cores, {folder.name}, "
            f"{SEQUENCES} sequences of {tokens} tokens, {pairs} paired blocks, 95 % interval "
            f"{low:.3f} to {high:.3f}; medians {statistics.median(logged):.0f} tokens/s with the "
            f"WAL, {statistics.median(alone):.0f} alone",
        }
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
