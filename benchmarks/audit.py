"""How long an audit of a million commits takes, and how much memory.

A made-up run (`benchmarks.recorded_run`) is written to a broker of its own; then `sluice audit` is
what is measured, as the command that a user calls: start of the interpreter, reading, checking, and
all its processes. Memory is the sum of the peaks of its processes. Prints a list of {name, value,
unit, goal, conditions} as JSON: `python -m benchmarks.audit`.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer as RawProducer

from benchmarks.broker import Broker, own_broker
from benchmarks.recorded_run import RUN, TOKENS_PER_COMMIT, LongRun
from schemas.topics import PARTITIONS_DEFAULT

SECONDS_GOAL = 60
GIB_GOAL = 1.0
_AUDIT_S_MAX = 570
_POLL_EVERY = 500
_GROUPS = 32
_COMMITS_PER_EPISODE = 16


def run(*, commits: int = 1_000_000) -> list[dict[str, Any]]:
    """Write a run of about so many commits, audit it once, and return time and memory."""
    steps = max(1, round(commits / (_GROUPS * 8 * _COMMITS_PER_EPISODE)))
    long = LongRun(
        steps=steps,
        groups=_GROUPS,
        commits_per_episode=_COMMITS_PER_EPISODE,
        partitions=PARTITIONS_DEFAULT,
    )
    with own_broker() as broker:
        _write(broker, long)
        return _measure(broker, long)


def _write(broker: Broker, long: LongRun) -> None:
    producer = RawProducer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    refused: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            refused.append(error)

    for number, (topic, partition, key, frame) in enumerate(long.frames()):
        full = topic.full(broker.prefix)
        while True:
            try:
                producer.produce(full, frame, key, partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(120)
    if left or refused:
        raise RuntimeError(f"{left + len(refused)} records were not written: {refused[:1]}")


def _measure(broker: Broker, long: LongRun) -> list[dict[str, Any]]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.audit", broker.bootstrap, broker.prefix],
        stdout=subprocess.PIPE, check=True, timeout=_AUDIT_S_MAX,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = json.loads(done.stdout)
    if not told["clean"] or told["commits"] != long.commits:
        raise RuntimeError(f"the audit did not read what was written: {told}")
    where = (
        f"{platform.machine()}, {os.cpu_count()} cores, broker beside it, {long.commits} commits "
        f"of {TOKENS_PER_COMMIT} tokens, {long.episodes} episodes, {told['processes']} processes, "
        f"{busy_s:.0f} s of processor time"
    )
    return [
        {
            "name": "audit_s", "value": round(wall_s, 1), "unit": "s", "goal": SECONDS_GOAL,
            "conditions": where,
        },
        {
            "name": "audit_gib", "value": round(told["peak_bytes"] / 2**30, 3), "unit": "GiB",
            "goal": GIB_GOAL, "conditions": f"{where}, sum of the peaks of the processes",
        },
    ]  # fmt: skip


def _audit(bootstrap: str, prefix: str) -> dict[str, Any]:
    """Audit as `sluice audit` does; the codec's ids are those the made-up run was written with."""
    import asyncio

    from consumers.kafka import KafkaConsumers
    from consumers.settings import ConsumerSettings
    from infra.audit.audit import audit
    from infra.audit.processes import helpers, look_for_cycles_rarely, peak_bytes
    from schemas.codec import Codec

    look_for_cycles_rarely()
    settings, codec = ConsumerSettings(bootstrap=bootstrap, prefix=prefix), Codec.local()

    async def work() -> dict[str, Any]:
        consumers = KafkaConsumers(settings, codec)
        try:
            report = await audit(consumers, RUN, helpers=helpers(settings, codec, RUN, None))
        finally:
            await consumers.close()
        peaks = [peak_bytes(), *report.peaks]
        return {
            "clean": report.is_clean,
            "commits": report.counts["commits"],
            "processes": len(peaks),
            "peak_bytes": sum(peaks),
            "violations": [one.to_json() for one in report.violations[:3]],
        }

    return asyncio.run(work())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_audit(*sys.argv[1:])))
    else:
        print(json.dumps(run(), indent=2))
