"""What metrics cost decoding: a worker whose records are counted, sampled and scraped, beside the
same worker with nothing of it.

Blocks of 32 sequences, paired and in turn, with the token log in both arms. On: the write door that
counts (`MeteredProducer`), the worker's own samples as records on `metrics`, and its page scraped
as often as infra/prometheus asks, by a client in a process of its own, as Prometheus is. Prints a
list of {name, value, unit, goal, conditions}: `python -m benchmarks.metrics_cost`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
from prometheus_client import CollectorRegistry

from benchmarks.broker import RUN, measured
from benchmarks.decode_ratio import QUESTION, SEQUENCES, TOKENS, TOKENS_MIN, interval
from benchmarks.turns import Turns
from inference.generation import Generation
from inference.service import InferenceService, make_engine, make_tokenizer
from inference.settings import InferenceSettings
from infra.exporter.doors import MeteredProducer
from infra.exporter.instruments import Instruments
from infra.exporter.serve import exporting
from infra.settings import MetricsSection
from infra.setup.places import find_places
from producers.metrics import Metrics
from schemas.deadline import Deadline
from schemas.ports import Acked, Context, Pending, Producer
from schemas.topics import Record, Topic

R = TypeVar("R", bound=Record)
GOAL = 0.99
PAIRS = 48
_BLOCK_S = 4.0
_SCRAPE_S = 5.0
"""As `scrape_interval` of infra/prometheus; only time with metrics counts."""
_CLIENT = """
import sys, urllib.request
for _ in sys.stdin:
    print(len(urllib.request.urlopen(sys.argv[1], timeout=10).read()), flush=True)
"""
_CLIENT_LIMIT_S = 30.0


class Switch:
    """The write door of the measured worker, counted while it is on (`schemas.ports.Producer`)."""

    def __init__(self, context: Context, instruments: Instruments) -> None:
        """Start off, on the context's own door."""
        self._plain: Producer = context.producer
        self._counted = MeteredProducer(context.producer, instruments, context.clock)
        self._metrics = Metrics(replace(context, producer=self._counted))
        self.is_on = False

    @property
    def number(self) -> int:
        """How often the producer was opened."""
        return self._plain.number

    @property
    def queued(self) -> int:
        """Records not yet acknowledged."""
        return self._plain.queued

    def offer(self, topic: Topic[R], record: R, *, partition: int | None = None) -> Pending:
        """Hand a record over."""
        return self._door.offer(topic, record, partition=partition)

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait."""
        return await self._door.send(topic, record, partition=partition, deadline=deadline)

    async def renew(self) -> None:
        """Open a new producer."""
        await self._plain.renew()

    async def close(self, *, deadline: Deadline) -> int:
        """Flush inside the deadline."""
        return await self._plain.close(deadline=deadline)

    def observe(self, name: str, value: float, unit: str, **labels: str) -> None:
        """Send a sample while it is on."""
        if self.is_on:
            self._metrics.observe(name, value, unit, **labels)

    @property
    def _door(self) -> Producer:
        return self._counted if self.is_on else self._plain


@dataclass(slots=True, kw_only=True)
class Arm:
    """What the blocks of one arm gave."""

    rates: list[float] = field(default_factory=list)
    """Unit: tokens/s."""
    spent_s: float = 0.0
    """Processor time of this process. Unit: s."""
    tokens: int = 0


@contextmanager
def scraped(folder: Path) -> Iterator[tuple[Instruments, str]]:
    """Serve a page of instruments; yield them with its address."""
    with exporting(
        MetricsSection(), targets=folder, role="inference", index=0, run_id=RUN,
        registry=CollectorRegistry(),
    ) as instruments:  # fmt: skip
        (told,) = folder.glob("*.json")
        yield instruments, f"http://{orjson.loads(told.read_bytes())[0]['targets'][0]}/metrics"


class Scraper:
    """Reads a page again and again while it is let."""

    def __init__(self, address: str) -> None:
        self._client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._due_s = 0.0
        self._asked = 0

    async def keep_reading(self) -> None:
        """Read whenever it is due, until cancelled."""
        while True:
            began_s = time.perf_counter()
            try:
                await asyncio.sleep(self._due_s)
            finally:
                self._due_s = max(0.0, self._due_s - (time.perf_counter() - began_s))
            self._due_s = _SCRAPE_S
            self._asked += 1
            assert self._client.stdin is not None
            self._client.stdin.write("\n")
            self._client.stdin.flush()

    def close(self) -> None:
        """End the client. Raises RuntimeError when it did not read a page as often as was asked."""
        said, _ = self._client.communicate(timeout=_CLIENT_LIMIT_S)
        pages = [int(line) for line in said.split()]
        if len(pages) != self._asked or not all(pages):
            raise RuntimeError(f"of {self._asked} pages that were asked for came {pages} bytes")


async def _block(turns: Turns, switch: Switch, scraper: Scraper, arm: Arm, *, is_on: bool) -> float:
    """Decode a block; a turn ends when its last commit is durable. Unit: tokens/s."""
    switch.is_on = is_on
    scraping = asyncio.create_task(scraper.keep_reading()) if is_on else None
    try:
        turns.next_block()
        sessions = [await turns.open(member) for member in range(SEQUENCES)]
        began_s, spent_s = time.perf_counter(), time.process_time()
        running = [turns.start(session) for session in sessions]
        counts = await asyncio.gather(*(_follow(turns, turn, switch) for turn in running))
        rate = sum(counts) / (time.perf_counter() - began_s)
        arm.spent_s += time.process_time() - spent_s
    finally:
        if scraping is not None:
            scraping.cancel()
            await asyncio.wait({scraping})
    arm.rates.append(rate)
    arm.tokens += sum(counts)
    return rate


async def _follow(turns: Turns, turn: Generation, switch: Switch) -> int:
    """Return the tokens of a turn; its end gives the samples that the gateway's does."""
    count = await turns.follow(turn)
    for name in ("exposure_wait_us", "gateway_overhead_us"):
        switch.observe(name, float(count), "us")
    return count


async def measure(
    context: Context, settings: InferenceSettings, folder: Path, *, pairs: int
) -> tuple[Arm, Arm, int]:
    """Return the arms with metrics off and on, and the tokens of a turn. folder: for targets."""
    tokenizer = make_tokenizer(settings)
    with scraped(folder) as (instruments, address):
        switch = Switch(context, instruments)
        service = InferenceService(
            replace(context, producer=switch), settings,
            engine=make_engine(settings, tokenizer, context), tokenizer=tokenizer,
            observe=switch.observe,
        )  # fmt: skip
        await service.keeper.start()
        scraper = Scraper(address)
        try:
            turns = Turns(
                context, service, tuple(tokenizer.encode(QUESTION)), tokens_max=TOKENS_MIN
            )
            for is_on in (False, True):
                rate = await _block(turns, switch, scraper, Arm(), is_on=is_on)
            turns.tokens_max = max(TOKENS_MIN, min(TOKENS, round(rate * _BLOCK_S / SEQUENCES)))
            off, on = Arm(), Arm()
            for pair in range(pairs):
                # The order alternates, so that a drift of the machine falls on both arms alike.
                for is_on in (False, True) if pair % 2 else (True, False):
                    arm = on if is_on else off
                    await _block(turns, switch, scraper, arm, is_on=is_on)
            return off, on, turns.tokens_max
        finally:
            await service.drain()
            scraper.close()


def run(*, pairs: int = PAIRS, model: Path | None = None) -> list[dict[str, Any]]:
    """Measure; the value is the geometric mean of the paired ratios, on over off.

    model: another folder than SmolLM2's, for a trial that is no measurement.
    """
    chosen = model or find_places(os.environ).model
    settings = InferenceSettings(model_path=str(chosen), context_max=1024, inflight_max=SEQUENCES)
    with tempfile.TemporaryDirectory(prefix="sluice-metrics-") as folder:
        off, on, tokens = measured(
            "inference-1",
            lambda context: measure(context, settings, Path(folder), pairs=pairs),
        )
    mean, low, high = interval([b / a for a, b in zip(off.rates, on.rates, strict=True)])
    return [
        {
            "name": "metrics_ratio",
            "value": round(mean, 4),
            "unit": "ratio",
            "goal": GOAL,
            "conditions": f"{os.cpu_count()} {platform.machine()} cores, {chosen.name}, "
            f"{SEQUENCES} sequences of {tokens} tokens, {pairs} paired blocks, 95 % interval "
            f"{low:.3f} to {high:.3f}; medians {statistics.median(on.rates):.0f} tokens/s with "
            f"metrics, {statistics.median(off.rates):.0f} without; processor time of the worker's "
            f"own process {1e6 * on.spent_s / on.tokens:.0f} and "
            f"{1e6 * off.spent_s / off.tokens:.0f} us a token",
        }
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
