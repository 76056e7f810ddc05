"""What metrics cost is measured in blocks of which every second one is counted."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gateway, metrics_cost
from benchmarks.broker import RUN
from benchmarks.decode_ratio import SEQUENCES, TOKENS_MIN
from schemas.enums import TokenKind
from schemas.topics import METRICS, TOKENS
from tests.support.clocks import RealClock
from tests.support.contexts import context_on
from tests.support.memory_bus import MemoryBus


async def test_both_arms_commit_the_same_and_only_one_is_counted(tmp_path: Path) -> None:
    bus = MemoryBus()
    context = context_on(bus, run=RUN, clock=RealClock())
    off, on, tokens = await metrics_cost.measure(
        context, gateway.settings_of(None), tmp_path, pairs=2
    )
    block = SEQUENCES * tokens
    assert (off.tokens, on.tokens) == (2 * block, 2 * block)
    assert len(off.rates) == len(on.rates) == 2
    actions = sum(one.count for one in bus.records(TOKENS) if one.kind is TokenKind.ACTION)
    warm = 2 * SEQUENCES * TOKENS_MIN
    assert actions == 4 * block + warm
    # The warm-up has one block with metrics as well.
    ends = [one for one in bus.records(METRICS) if one.name == "exposure_wait_us"]
    assert len(ends) == 3 * SEQUENCES
