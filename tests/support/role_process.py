"""Runs sink, lag and age job or a scheduler as a process of its own, for tests that kill it.

The embedded ClickHouse and faust each want a process to themselves. Called as
`python -m tests.support.role_process JSON`; `start` below writes the JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.codec import Codec
from schemas.ids import RunId, WorkerId
from schemas.ports import Context
from tests.support.clocks import RealClock
from tests.support.records import within

ROOT = Path(__file__).resolve().parents[2]


def start(
    role: str, *, bootstrap: str, prefix: str, run: str, log: Path,
    starts: Mapping[str, Mapping[int, int]], settings: Mapping[str, Any], index: int = 0,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start `sink`, `lag_age` or `scheduler` as a child; its log goes to a file."""
    given = {
        "role": role, "index": index, "bootstrap": bootstrap, "prefix": prefix, "run": run,
        "starts": {name: dict(at) for name, at in starts.items()}, "settings": dict(settings),
    }  # fmt: skip
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.role_process", json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=file,
        )


async def main(given: Mapping[str, Any]) -> None:
    """Serve one role until SIGTERM."""
    from consumers.kafka import KafkaConsumers
    from consumers.settings import ConsumerSettings
    from infra.run.worker import table_definitions
    from producers.kafka import KafkaProducer
    from producers.settings import ProducerSettings

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    bus = {"bootstrap": given["bootstrap"], "prefix": given["prefix"], "client_id": given["role"]}
    codec, clock = Codec.local(), RealClock()
    producer = KafkaProducer(ProducerSettings(**bus), codec, clock)
    context = Context(
        run_id=RunId(given["run"]),
        worker_id=WorkerId(f"{given['role']}-{given['index']}"),
        incarnation=os.urandom(8).hex(),
        producer=producer,
        consumers=KafkaConsumers(ConsumerSettings(**bus), codec),
        clock=clock,
        starts={n: {int(p): o for p, o in at.items()} for n, at in given["starts"].items()},
        secret=b"s",
        stop=stop,
    )
    try:
        if given["role"] == "sink":
            from stream_jobs import sink
            from stream_jobs.sink_settings import SinkSettings

            await sink.run(
                context,
                SinkSettings(**given["settings"]),
                codec=codec,
                migrations=table_definitions(),
            )
        elif given["role"] == "scheduler":
            from stream_jobs import scheduler
            from stream_jobs.settings import SchedulerSettings

            await scheduler.run(context, SchedulerSettings(**given["settings"]), codec=codec)
        else:
            from stream_jobs import lag_age
            from stream_jobs.sink_settings import LagAgeSettings

            await lag_age.run(
                context, LagAgeSettings(**given["settings"]), codec=codec,
                bootstrap=given["bootstrap"], prefix=given["prefix"],
            )  # fmt: skip
    finally:
        await producer.close(deadline=within(5_000))


if __name__ == "__main__":
    import logging

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(main(json.loads(sys.argv[1])))
