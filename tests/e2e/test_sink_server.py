"""Whole sinks on a ClickHouse server: two of one run at once, and one that is lost and replaced."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.run.worker import table_definitions
from schemas.errors import Boundary, RejectedError, TransientError
from schemas.topics import TOKENS
from stream_jobs import sink_writer
from stream_jobs.core.sink_statements import parse_migrations
from stream_jobs.sink import Sink
from stream_jobs.sink_engines import Limits, ServerEngine
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from tests.support.fake_rollout import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.records import commit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(seconds_max=10, rows_max=1_000, memory_bytes_max=1_000_000_000)
DEFINITIONS = parse_migrations(table_definitions())


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A fake server with empty tables."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fake_clickhouse", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    server.kill()
    server.wait(10)


class RunningSink:
    """One sink of the run, as a task."""

    def __init__(self, bus: MemoryBus, name: str, store: Store, batch_offsets: int) -> None:
        self._stop = asyncio.Event()
        context = replace(context_on(bus, name), stop=self._stop)
        settings = SinkSettings(
            batch_offsets=batch_offsets, batch_interval_s=0.05, busy_share_max=1.0
        )
        sink = Sink(context, settings, bus.codec, store, DEFINITIONS.rollups)
        self._task = asyncio.create_task(sink.run(""))

    async def stop(self) -> None:
        """Let it take what stands on the topics, and end."""
        self._stop.set()
        await self._task

    async def lose(self) -> None:
        """End it wherever it is."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def opened(url: str) -> Store:
    return await Store.open(lambda: ServerEngine(url, LIMITS))


async def count(store: Store) -> int:
    return int((await store.rows("SELECT count() FROM token_commits"))[0][0])


async def test_two_sinks_of_a_run_at_once_leave_every_row_exactly_once_also_when_one_is_lost(
    url: str,
) -> None:
    bus = MemoryBus(partitions=2)
    stores = [await opened(url), await opened(url)]
    assert len(await stores[0].migrate(DEFINITIONS)) > 3
    assert await stores[1].migrate(DEFINITIONS) == ()
    sinks = [RunningSink(bus, f"sink-{n}", stores[n], 7 + 4 * n) for n in range(2)]
    producer = context_on(bus, "writer").producer
    for seq in range(200):
        producer.offer(TOKENS, commit(seq, group=f"run-1.{seq}.g"))
        if seq % 10 == 0:
            await asyncio.sleep(0)
        if seq in (60, 120):
            until = time.monotonic() + 60
            while await count(stores[0]) < seq // 2:
                assert time.monotonic() < until, "the sinks write nothing"
            await sinks[1].lose()
            stores[1] = await opened(url)
            sinks[1] = RunningSink(bus, "sink-1", stores[1], 13)
    await asyncio.gather(*(sink.stop() for sink in sinks))
    asked = "SELECT count(), uniqExact(src_partition, src_offset), max(seq) FROM token_commits"
    assert await stores[0].rows(asked) == [("200", "200", "199")]
    # The ranges that were agreed on cover the records without gap or overlap.
    asked = f"SELECT sum(last - first + 1) FROM sink_borders WHERE src_topic = '{TOKENS.name}'"
    assert await stores[0].rows(asked) == [("200",)]
    asked = "SELECT n FROM quantities WHERE quantity = 'commit_latency_ms'"
    assert await stores[0].rows(asked) == [("200",)]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("at", ["insert", "agree"])
async def test_a_sink_that_slept_longer_than_the_server_remembers_brings_no_row_twice(
    url: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """It sleeps with a range in hand, and finds its connection dead when it wakes."""
    bus, awake, asleep = MemoryBus(partitions=1), asyncio.Event(), asyncio.Event()
    stores = [await opened(url), await opened(url)]
    await stores[0].migrate(DEFINITIONS)
    await stores[0].run(
        "ALTER TABLE token_commits MODIFY SETTING non_replicated_deduplication_window = 2"
    )
    inner = getattr(stores[0], at)

    async def sleeping(*args: Any, **more: Any) -> Any:
        if not asleep.is_set():
            asleep.set()
            await awake.wait()
            raise TransientError("the connection is gone", boundary=Boundary.STORE)
        return await inner(*args, **more)

    monkeypatch.setattr(stores[0], at, sleeping)
    monkeypatch.setattr(sink_writer, "_PAUSE_S", 0.001)
    producer = context_on(bus, "writer").producer

    async def send(first: int, last: int) -> None:
        for seq in range(first, last):
            await producer.offer(TOKENS, commit(seq))

    await send(0, 20)
    first = RunningSink(bus, "sink-0", stores[0], 5)
    await asyncio.wait_for(asleep.wait(), 30)
    second = RunningSink(bus, "sink-1", stores[1], 5)
    await send(20, 60)
    until = time.monotonic() + 60
    while await count(stores[1]) < 60:
        assert time.monotonic() < until, "the other sink writes nothing"
        await asyncio.sleep(0.05)
    awake.set()
    await send(60, 70)
    await asyncio.gather(first.stop(), second.stop())
    asked = "SELECT count(), uniqExact(src_partition, src_offset), max(seq) FROM token_commits"
    assert await stores[1].rows(asked) == [("70", "70", "69")]
    for store in stores:
        await store.close()


async def test_a_query_that_fails_half_way_is_refused_and_no_answer(url: str) -> None:
    store = await opened(url)
    with pytest.raises(RejectedError, match="Value passed to 'throwIf"):
        await store.ask("SELECT throwIf(number = 5) FROM numbers(10)", "TabSeparated", {})
    assert await store.ask("SELECT 42", "TabSeparated", {}) == b"42\n"
    await store.close()
