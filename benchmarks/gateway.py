"""What the gateway adds to a turn beyond engine and commit: the same turn asked over HTTP, and
asked of the sessions behind the gateway.

Both arms decode 64 tokens with the scripted engine, which samples at once, and end when the last
commit is durable on a real broker; requests come one at a time, arms alternate. The HTTP arm is
timed at the client, which shares the gateway's process: JSON, HTTP, the chat template and the
tokenizer on the way in, text and JSON on the way out are all in the difference. Sessions are opened
before the clock runs.

Prints a list of {name, value, unit, goal, conditions} as JSON: `python -m benchmarks.gateway`.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.broker import measured
from benchmarks.figures import interval, median, quantile, row
from benchmarks.turns import Turns
from inference.service import InferenceService, make_engine, make_tokenizer
from inference.settings import EngineKind, InferenceSettings, ScriptedSettings
from infra.setup.places import find_places
from schemas.bearer import issue
from schemas.ports import Context

GOAL_MS = 3.0
TOKENS = 64
_QUESTION = "What is 7 times 8? Reply with the answer only, and say how you know."
_TIMEOUT = aiohttp.ClientTimeout(total=60.0)


class Arms:
    """Both ways of asking for one turn; each gives seconds."""

    def __init__(
        self, context: Context, turns: Turns, http: aiohttp.ClientSession, address: str
    ) -> None:
        self._context = context
        self._turns = turns
        self._http = http
        self._address = address

    async def behind(self) -> float:
        """Ask the sessions: engine and commit."""
        self._turns.next_block()
        session = await self._turns.open(0)
        began = time.perf_counter()
        await self._turns.follow(self._turns.start(session))
        return time.perf_counter() - began

    async def over_http(self) -> float:
        """Ask the gateway."""
        self._turns.next_block()
        await self._turns.open(0)
        token = issue(self._context.secret, self._turns.episode(0), 1)
        body = {
            "messages": [{"role": "user", "content": _QUESTION}],
            "max_tokens": TOKENS,
            "sluice": {"fence_number": 1, "turn": 0},
        }
        headers = {"Authorization": f"Bearer {token}"}
        began = time.perf_counter()
        url = f"{self._address}/v1/chat/completions"
        async with self._http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
            took = time.perf_counter() - began
        assert response.status == 200, answer
        return took


def settings_of(model: Path | None) -> InferenceSettings:
    """Return a scripted worker that samples every turn in full and at once."""
    return InferenceSettings(
        engine=EngineKind.SCRIPTED,
        model_path=str(model) if model else "",
        scripted=ScriptedSettings(
            tokens_per_s=0.0, tick_ms=1, length_median_tokens=4 * TOKENS, length_sigma=0.0
        ),
    )


async def measure(
    context: Context, settings: InferenceSettings, *, pairs: int
) -> tuple[list[float], list[float]]:
    """Return seconds over HTTP and behind the gateway, pair by pair."""
    tokenizer = make_tokenizer(settings)
    engine = make_engine(settings, tokenizer, context)
    service = InferenceService(
        context, settings, engine=engine, tokenizer=tokenizer, observe=lambda *_, **__: None
    )
    await service.keeper.start()
    address = await service.listen()
    prompt = tuple(tokenizer.encode(_QUESTION))
    turns = Turns(context, service, prompt, tokens_max=TOKENS)
    over, behind = [], []
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
            arms = Arms(context, turns, http, address)
            for pair in range(pairs):
                if pair % 2:
                    over.append(await arms.over_http())
                    behind.append(await arms.behind())
                else:
                    behind.append(await arms.behind())
                    over.append(await arms.over_http())
    finally:
        await service.drain()
    return over, behind


def run(*, pairs: int = 1_500) -> list[dict[str, Any]]:
    """Measure; the value is the median of the paired differences."""
    settings = settings_of(find_places(os.environ).model)

    over, behind = measured("inference-1", lambda context: measure(context, settings, pairs=pairs))
    warm = pairs // 10
    over, behind = over[warm:], behind[warm:]
    added_ms = [1e3 * (a - b) for a, b in zip(over, behind, strict=True)]
    low, high = interval(added_ms)
    return [
        row(
            "gateway_overhead_p50_ms",
            round(median(added_ms), 3),
            unit="ms",
            goal=GOAL_MS,
            conditions=f"at most the goal; {platform.machine()}, one broker beside it, "
            f"{len(added_ms)} pairs of a turn of {TOKENS} tokens, one at a time; p50 over HTTP "
            f"{1e3 * median(over):.2f} ms, engine and commit {1e3 * median(behind):.2f} ms, p95 of "
            f"the difference {quantile(added_ms, 0.95):.2f} ms; 95 % interval of the median "
            f"{low:.3f} to {high:.3f}",
        )
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
