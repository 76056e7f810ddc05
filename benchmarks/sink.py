"""How fast commits become rows: from topic to table in one process, and the insert stage alone.

One arm fills a topic of a broker of its own and lets a sink, with its embedded ClickHouse, take all
of it; the other inserts the same columns, as the sink reads them, again and again, in turn with
clickhouse-connect's `insert_arrow` of the ready table. The sink runs in a process of its own, since
the embedded engine must not be open where processes are started. Prints a list of {name, value,
unit, goal, conditions}: `python -m benchmarks.sink`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.broker import Broker, own_broker
from benchmarks.codec import TOKENS_PER_COMMIT, commits
from producers.core.routing import partition_for
from schemas.codec import Codec
from schemas.ports import Frames
from schemas.topics import PARTITIONS_DEFAULT, TOKENS

ROWS_GOAL = 100_000
RATIO_GOAL = 0.5
_DEADLINE_S = 240.0
_BATCH = 5_000
ROOT = Path(__file__).resolve().parents[1]


def run(*, records: int = 2_000_000, pairs: int = 15) -> list[dict[str, Any]]:
    """Measure both; the rate is of one pass, the ratio the median of the pairs."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        _fill(broker, records)
        given = [broker.bootstrap, broker.prefix, str(records), str(pairs), folder]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sink", *given],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, timeout=2 * _DEADLINE_S, check=True,
        )  # fmt: skip
    told = json.loads(done.stdout)
    each_us = told["cpu_s"] / told["rows"] * 1e6
    where = f"{platform.machine()}, {os.cpu_count()} cores, the broker beside it"
    return [
        {
            "name": "sink_rows_per_s",
            "value": told["rows"] / told["took_s"],
            "unit": "rows/s",
            "goal": ROWS_GOAL,
            "conditions": f"{where}, {told['rows']} commits of {TOKENS_PER_COMMIT} tokens from "
            f"topic to table, start of the reader included; {each_us:.1f} us of processor a row, "
            f"{told['rss_mb']:.0f} MB at most",
        },
        {
            "name": "sink_insert_ratio",
            "value": told["ratio"],
            "unit": "ratio",
            "goal": RATIO_GOAL,
            "conditions": f"{where}, {pairs} pairs of {_BATCH} commits as columns, medians "
            f"{told['stage']:.0f}/s against {told['raw']:.0f}/s of insert_arrow alone",
        },
    ]


def _fill(broker: Broker, records: int) -> None:
    """Write commits of many episodes as fast as librdkafka takes them."""
    from confluent_kafka import Producer

    codec, full = Codec.local(), TOKENS.full(broker.prefix)
    frames = [
        (codec.encode(TOKENS, one), partition_for(TOKENS, one, PARTITIONS_DEFAULT))
        for one in commits(1_000, 20)
    ]
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "compression.type": "lz4",
         "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    for number in range(records):
        frame, partition = frames[number % len(frames)]
        while True:
            try:
                producer.produce(full, frame, None, partition)
                break
            except BufferError:
                # The broker takes them more slowly than they are made.
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(_DEADLINE_S) == 0


async def _measure(broker: Broker, records: int, pairs: int, folder: Path) -> dict[str, Any]:
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
    sink = Sink(context, settings, Codec.local(), store, definitions.rollups)
    began, used = time.perf_counter(), time.process_time()
    running = asyncio.create_task(sink.run(""))
    count = 0
    while count < records and time.perf_counter() - began < _DEADLINE_S:
        await asyncio.sleep(0.2)
        count = int((await store.rows("SELECT count() FROM token_commits"))[0][0])
    took, cpu = time.perf_counter() - began, time.process_time() - used
    stop.set()
    await running
    await store.close()
    stage, raw = _stages(folder / "tables", pairs)
    ratios = sorted(one / other for one, other in zip(stage, raw, strict=True))
    return {
        "rows": count, "took_s": took, "cpu_s": cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ratio": ratios[len(ratios) // 2],
        "stage": sorted(stage)[len(stage) // 2], "raw": sorted(raw)[len(raw) // 2],
    }  # fmt: skip


def _stages(folder: Path, pairs: int) -> tuple[list[float], list[float]]:
    """Return the rates of the insert stage and of raw `insert_arrow`, paired and in turn."""
    import clickhouse_connect

    from stream_jobs.core.sink_slabs import Slab, in_bulk
    from stream_jobs.core.sink_tables import TABLES
    from stream_jobs.sink_engines import EmbeddedEngine, Limits
    from stream_jobs.sink_store import arrow_of

    engine = EmbeddedEngine(folder, Limits(seconds_max=60, rows_max=1, memory_bytes_max=10**9))
    client = clickhouse_connect.get_client(interface="chdb", path=str(folder))
    (table,) = TABLES[TOKENS.name]
    codec, given = Codec.local(), commits(500, _BATCH // 500)
    frames = Frames(
        topic=TOKENS.name, partition=0, offsets=range(_BATCH),
        timestamps_ms=[one.at_us // 1000 for one in given], keys=[None] * _BATCH,
        raws=[codec.encode(TOKENS, one) for one in given],
    )  # fmt: skip
    read = in_bulk(frames, given[0].run_id, codec.frame(TOKENS))
    slabs = [one for one in read if isinstance(one, Slab)]
    assert len(slabs) == 1
    ready = arrow_of(table, slabs)
    stage: list[float] = []
    raw: list[float] = []
    for pair in range(2 * pairs):
        begin = time.perf_counter()
        if pair % 4 in (0, 3):
            settings = {"async_insert": "0", "insert_deduplication_token": f"bench {pair}"}
            engine.insert(table.name, arrow_of(table, slabs), settings)
            stage.append(_BATCH / (time.perf_counter() - begin))
        else:
            client.insert_arrow(table.name, ready, settings={"async_insert": 0})
            raw.append(_BATCH / (time.perf_counter() - begin))
    client.close()
    engine.close()
    return stage, raw


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.stdout.write(json.dumps(run(), indent=2) + "\n")
    else:
        bootstrap, prefix, count, times, where = sys.argv[1:]
        measured = asyncio.run(
            _measure(
                Broker(bootstrap=bootstrap, prefix=prefix), int(count), int(times), Path(where)
            )
        )
        sys.stdout.write(json.dumps(measured))
