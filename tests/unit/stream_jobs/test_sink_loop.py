"""When the sink writes: whole batches while it is behind, what is left once it has caught up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from schemas.topics import TOKENS
from stream_jobs import sink
from stream_jobs.sink import Sink
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from tests.support.clocks import HeldClock, RealClock
from tests.support.fake_rollout import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.records import commit

LIMIT_S = 20.0


class CountingEngine:
    """An engine that keeps which offsets of commits each insert held."""

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = False

    def __init__(self) -> None:
        self.inserts: list[tuple[int, int, int]] = []

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        assert settings["insert_deduplication_token"]
        if table == "token_commits":
            offsets = data.column("src_offset").to_pylist()
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            self.inserts.append((data.column("src_partition")[0].as_py(), offsets[0], offsets[-1]))

    def run(self, statement: str) -> bytes:
        assert statement
        return b""

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        raise AssertionError(statement, form, parameters)

    def close(self) -> None:
        """Nothing to release."""


class HurriedClock(RealClock):
    """A clock on which much time passes between two looks: whatever is held is old at the next."""

    def __init__(self, step_ms: int) -> None:
        self._step_ms = step_ms
        self._at_ms = 0

    def monotonic_ms(self) -> int:
        self._at_ms += self._step_ms
        return self._at_ms


class WaitingEngine(CountingEngine):
    """An engine whose first insert of commits takes until the sink has read on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read_on = threading.Event()

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        if table == "token_commits" and not self.inserts:
            self.has_read_on.wait(LIMIT_S)
        super().insert(table, data, settings)


async def written(
    step_ms: int, *, held_max: int = 1_000, engine: CountingEngine | None = None
) -> list[tuple[int, int, int]]:
    """Return the inserts of a sink that finds 2,000 commits in one partition, 300 in the other."""
    bus = MemoryBus(partitions=2)
    for partition, size in ((0, 2_000), (1, 300)):
        for seq in range(size):
            bus.append(TOKENS, commit(seq), partition=partition)
    engine, stop = engine or CountingEngine(), asyncio.Event()
    store = await Store.open(lambda: engine)
    context = context_on(bus, "sink-0", stop=stop)
    context = replace(context, clock=HurriedClock(step_ms))
    given = SinkSettings(
        batch_offsets=1_000, batch_interval_s=0.1, buffered_records_max=held_max, drain_s=600
    )
    running = asyncio.create_task(Sink(context, given, bus.codec, store).run(""))
    async with asyncio.timeout(LIMIT_S):
        while sum(last - first + 1 for _, first, last in engine.inserts) < 2_300:
            await asyncio.sleep(0.01)
    stop.set()
    await running
    await store.close()
    return engine.inserts


@pytest.fixture(autouse=True)
def small_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hundred records at once mean that more is there."""
    monkeypatch.setattr(sink, "_POLL_MAX", 150)
    monkeypatch.setattr(sink, "_BEHIND", 100)
    monkeypatch.setattr(sink, "_GATHER_S", 0.001)


async def test_a_sink_that_is_behind_writes_full_batches_and_what_is_left_at_the_end() -> None:
    assert sorted(await written(20)) == [(0, 0, 999), (0, 1_000, 1_999), (1, 0, 299)]


async def test_what_has_waited_for_long_is_written_though_the_sink_is_behind() -> None:
    inserts = sorted(await written(4_000))
    assert len(inserts) > 4
    assert [last + 1 for p, _, last in inserts if p == 0][:-1] == [
        first for p, first, _ in inserts if p == 0
    ][1:]


class SlowEngine(CountingEngine):
    """An engine that takes half a second of the clock for each insert of commits."""

    def __init__(self, clock: HeldClock) -> None:
        super().__init__()
        self._clock = clock

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        if table == "token_commits":
            self._clock.advance(500)
        super().insert(table, data, settings)


@pytest.mark.parametrize(("size", "rests"), [(60, False), (10, True)])
async def test_only_a_write_that_is_smaller_than_a_full_batch_is_followed_by_a_rest(
    size: int, rests: bool
) -> None:
    bus, clock = MemoryBus(partitions=2), HeldClock()
    engine = SlowEngine(clock)
    store = await Store.open(lambda: engine)
    context = replace(context_on(bus, "sink-0"), clock=clock)
    given = SinkSettings(batch_offsets=100, batch_interval_s=1)
    one = Sink(context, given, bus.codec, store)
    await one._open()
    for round_number in range(2):
        for partition in (0, 1):
            for seq in range(size):
                bus.append(TOKENS, commit(seq), partition=partition)
        while await one._look(0.05):
            pass
        # Old enough, and within the nine seconds of rest that one second of writing asks for.
        clock.advance(1_500)
        await one._write()
        is_waiting = rests and round_number == 1
        assert len(engine.inserts) == 2 * (round_number + 1) - 2 * is_waiting
    await one._log.close()
    await store.close()


async def test_a_sink_that_is_behind_reads_on_while_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, look = WaitingEngine(), Sink._look

    async def watched(self: Sink, timeout_s: float) -> int:
        found = await look(self, timeout_s)
        # The engine's thread may begin the insert only once all is read.
        if found and self._writing != (0, 0):
            engine.has_read_on.set()
        return found

    monkeypatch.setattr(Sink, "_look", watched)
    inserts = sorted(await written(20, engine=engine))
    assert engine.has_read_on.is_set()
    for partition, size in ((0, 2_000), (1, 300)):
        told = [offset for p, a, b in inserts if p == partition for offset in range(a, b + 1)]
        assert told == list(range(size)), "each offset once"
