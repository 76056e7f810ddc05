"""The scripted engine passes the suite that vLLM passes (in `tests/e2e/test_vllm_engine.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from inference.scripted_engine import ScriptedEngine
from inference.settings import ScriptedSettings
from inference.tokenizer import ByteTokenizer
from schemas.ids import Version
from tests.support.clocks import RealClock
from tests.support.engine_contract import EngineContract, Served

TOKENIZER = ByteTokenizer()


def scripted(*, length_median_tokens: float = 40_000.0) -> ScriptedEngine:
    settings = ScriptedSettings(
        tokens_per_s=20_000.0,
        tick_ms=2,
        length_median_tokens=length_median_tokens,
        length_sigma=0.0,
    )
    return ScriptedEngine(settings, tokenizer=TOKENIZER, context_max=65_536, clock=RealClock())


@pytest.fixture
def fresh() -> ScriptedEngine:
    return scripted()


@pytest.fixture
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    # Only a turn shorter than its bound comes to its stop id.
    is_stop_test = "stop_id" in request.node.name
    engine = scripted(length_median_tokens=12.0 if is_stop_test else 40_000.0)
    await engine.start()
    numbers = count(1)
    yield Served(
        engine=engine,
        prompt=tuple(range(40, 80)),
        stop_ids=TOKENIZER.stop_ids,
        long_tokens=2_000,
        next_version=lambda: (Path("nowhere"), Version(1, next(numbers))),
    )
    await engine.stop()
    assert not engine.alive


class TestScriptedEngine(EngineContract):
    """See the suite."""
