"""Whether the sink's memory stays flat: many rows through one process, its memory read on the way.

A broker of its own is filled in slices while a sink with its embedded ClickHouse, in a process of
its own, reads; what stands in the tables is deleted from the topic, so that the disk holds no more
than some slices and the tables. Commits are small ones, of few bytes and one row each. Prints a
list of {name, value, unit, goal, conditions}, and on the way each sample to standard error:
`python -m benchmarks.sink_memory [ROWS]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.broker import Broker, own_broker
from benchmarks.codec import commits
from schemas.codec import Codec
from schemas.topics import PARTITIONS_DEFAULT, TOKENS

ROWS = 50_000_000
_AHEAD = 600_000
"""Rows that are written before the tables have them, at most."""
_SLICE = 100_000
_SAMPLES = 200
_BLOCKS = 10
_T_95 = 2.306
"""Student's t at 95 % for a line through ten blocks. Source: any table of it, 8 degrees."""
_WARM = 0.2
"""Share of the rows during which buffers, caches and the first merges grow."""
_QUIET_S = 300.0
"""The sink has taken no row for so long: it hangs."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The sink's process after so many rows."""

    rows: int
    rss_mb: float
    cpu_s: float


def run(*, rows: int = ROWS) -> list[dict[str, Any]]:
    """Measure; the goal of the slope is what 50 million rows may add: a tenth of what it held."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sink_memory", broker.bootstrap, broker.prefix,
             str(rows), folder],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            samples = _stream(broker, rows, child)
        finally:
            child.kill()
            child.wait()
    slope, half = slope_of(samples)
    told = ", ".join(f"{_at(samples, share):.0f} MB at {share:.0%}" for share in (0.1, 0.5, 1.0))
    cpu_us = samples[-1].cpu_s / samples[-1].rows * 1e6
    return [
        {
            "name": "sink_memory_slope",
            "value": slope,
            "unit": "MB per million rows",
            "goal": 0.1 * _at(samples, 0.1) / (ROWS / 1e6),
            "conditions": f"{platform.machine()}, {os.cpu_count()} cores, {samples[-1].rows} small "
            f"commits, {told}, {max(one.rss_mb for one in samples):.0f} MB at most; slope after "
            f"the first {_WARM:.0%} of the rows +- {half:.2f} (95 %, {_BLOCKS} blocks); "
            f"{cpu_us:.1f} us of processor a row",
        }
    ]


def slope_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the slope of memory over rows and half its interval. Unit: MB per million rows.

    Samples that follow one another are alike, so that the line is laid through means of blocks.
    """
    warm = [one for one in samples if one.rows >= _WARM * samples[-1].rows]
    blocks = [block for block in np.array_split(np.arange(len(warm)), _BLOCKS) if len(block)]
    at = np.array([np.mean([warm[i].rows / 1e6 for i in block]) for block in blocks])
    mb = np.array([np.mean([warm[i].rss_mb for i in block]) for block in blocks])
    spread = float(((at - at.mean()) ** 2).sum())
    slope = float(((at - at.mean()) * (mb - mb.mean())).sum()) / spread
    rest = mb - mb.mean() - slope * (at - at.mean())
    error = (float((rest**2).sum()) / (len(blocks) - 2) / spread) ** 0.5
    return slope, _T_95 * error


def _at(samples: Sequence[Sample], share: float) -> float:
    wanted = share * samples[-1].rows
    return min(samples, key=lambda one: abs(one.rows - wanted)).rss_mb


def _stream(broker: Broker, rows: int, child: subprocess.Popen[str]) -> list[Sample]:
    """Write while the sink reads, and delete what it has; return what it said of itself."""
    from confluent_kafka import Producer

    samples: list[Sample] = []
    reading = threading.Thread(target=_hear, args=(child, samples), daemon=True)
    reading.start()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "compression.type": "lz4",
         "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    full, given = TOKENS.full(broker.prefix), _frames()
    written = deleted = 0
    moved_at, last = time.monotonic(), -1
    while reading.is_alive():
        stored = samples[-1].rows if samples else 0
        if stored != last:
            moved_at, last = time.monotonic(), stored
        assert time.monotonic() - moved_at < _QUIET_S, f"the sink stands at {stored} rows"
        # All that the tables lack may lie in one partition.
        safe = written // PARTITIONS_DEFAULT - _AHEAD - _SLICE
        if safe - deleted >= _SLICE:
            _delete(broker, safe)
            deleted = safe
        if written < rows and written - stored < _AHEAD:
            for _ in range(min(_SLICE, rows - written)):
                frame, partition = next(given)
                producer.produce(full, frame, None, partition)
            assert producer.flush(_QUIET_S) == 0
            written += min(_SLICE, rows - written)
        else:
            reading.join(0.1)
    assert samples, "the sink said nothing"
    assert samples[-1].rows == rows, f"{samples[-1].rows} of {rows} rows came"
    return samples


def _hear(child: subprocess.Popen[str], samples: list[Sample]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        sys.stderr.write(line)
        samples.append(Sample(**json.loads(line)))


def _frames() -> Iterator[tuple[bytes, int]]:
    """Yield small commits without end, each partition in its turn."""
    codec = Codec.local()
    given = [
        codec.encode(TOKENS, replace(one, token_ids=b"", logprobs=b""))
        for one in commits(1_000, 20)
    ]
    number = 0
    while True:
        yield given[number % len(given)], number % PARTITIONS_DEFAULT
        number += 1


def _delete(broker: Broker, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    full = TOKENS.full(broker.prefix)
    asked = [TopicPartition(full, partition, before) for partition in range(PARTITIONS_DEFAULT)]
    # A client that nobody holds is gone before it has answered.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for one in admin.delete_records(asked).values():
        one.result(_QUIET_S)


async def _sink(broker: Broker, rows: int, folder: Path) -> None:
    """Run the sink until it has written all rows; say on the way how much memory it takes."""
    from infra.run.worker import table_definitions
    from stream_jobs.core.sink_statements import parse_migrations
    from stream_jobs.sink import Sink, make_engine
    from stream_jobs.sink_settings import SinkSettings
    from stream_jobs.sink_store import Store

    settings = SinkSettings(tables_dir=str(folder / "tables"))
    store = await Store.open(lambda: make_engine(settings))
    definitions = parse_migrations(table_definitions())
    await store.migrate(definitions)
    stop = asyncio.Event()
    context = replace(broker.context("sink-0"), stop=stop)
    used = time.process_time()
    running = asyncio.create_task(
        Sink(context, settings, Codec.local(), store, definitions.rollups).run("")
    )
    count = told = 0
    while count < rows and not running.done():
        await asyncio.sleep(0.2)
        count = int((await store.rows("SELECT count() FROM token_commits"))[0][0])
        if count - told >= rows / _SAMPLES or count >= rows:
            told = count
            one = {"rows": count, "rss_mb": _rss_mb(), "cpu_s": time.process_time() - used}
            sys.stdout.write(json.dumps(one) + "\n")
            sys.stdout.flush()
    stop.set()
    await running
    await store.close()


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    if len(sys.argv) <= 2:
        many = int(sys.argv[1]) if len(sys.argv) == 2 else ROWS
        sys.stdout.write(json.dumps(run(rows=many), indent=2) + "\n")
    else:
        bootstrap, prefix, wanted, where = sys.argv[1:]
        asyncio.run(_sink(Broker(bootstrap=bootstrap, prefix=prefix), int(wanted), Path(where)))
