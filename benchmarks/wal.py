"""What the write door costs: commits of 64 tokens through it against encode and raw produce.

Both arms encode the same records with the same codec and send them with the same librdkafka
settings to the same topic and partitions, each through its own long-lived producer; arms alternate
in order. The raw arm has a delivery callback that looks at the error and the offset, since without
one nobody knows what was written; it polls every few hundred records and flushes at the end. The
other arm offers, lets the loop run every few hundred records, and looks at every acknowledgement.
Latency is taken from one record at a time, `produce` or `offer` to acknowledgement, on a paced,
quiet stream.

Prints a list of {name, value, unit, goal, conditions} as JSON: `python -m benchmarks.wal`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer as RawProducer

from benchmarks.broker import Broker, own_broker
from benchmarks.codec import TOKENS_PER_COMMIT, commits
from benchmarks.figures import median, quantile, ratio_row
from benchmarks.raw import raw_producer
from producers.core.routing import key_of, partition_for
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.ports import Acked, Context, Pending
from schemas.records.token_commit import TokenCommit
from schemas.topics import PARTITIONS_DEFAULT, TOKENS

THROUGHPUT_GOAL = 0.85
P99_GOAL = 1.3
YIELD_EVERY = 250
_PACE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Two producers on one broker."""

    raw: RawProducer
    door: Context
    codec: Codec
    full: str


def run(*, pairs: int = 20, records: int = 20_000, lone: int = 500) -> list[dict[str, Any]]:
    """Measure both ratios; the value is the median of the pairs, with an interval of 95 %."""
    with own_broker() as broker:
        return asyncio.run(measure(broker, pairs=pairs, records=records, lone=lone))


async def measure(broker: Broker, *, pairs: int, records: int, lone: int) -> list[dict[str, Any]]:
    arms = _open(broker)
    wal = commits(records // 8, 8)
    raw_rates, door_rates, raw_p99, door_p99 = [], [], [], []
    _raw_rate(arms, wal)
    await _door_rate(arms, wal)
    for pair in range(pairs):
        for arm in ("raw", "door") if pair % 2 else ("door", "raw"):
            gc.collect()
            if arm == "raw":
                raw_rates.append(_raw_rate(arms, wal))
                raw_p99.append(quantile(_raw_latencies(arms, wal[:lone]), 0.99))
            else:
                door_rates.append(await _door_rate(arms, wal))
                door_p99.append(quantile(await _door_latencies(arms, wal[:lone]), 0.99))
    await arms.door.producer.close(
        deadline=Deadline.after(
            10_000, now_ms=arms.door.clock.monotonic_ms(), waiting_for="the last acknowledgements"
        )
    )
    where = f"{platform.machine()}, one broker beside it, {TOKENS_PER_COMMIT} tokens a commit"
    return [
        ratio_row(
            "wal_throughput_ratio",
            [door / raw for door, raw in zip(door_rates, raw_rates, strict=True)],
            goal=THROUGHPUT_GOAL,
            conditions=f"{where}, {pairs} pairs of {len(wal)} commits, medians "
            f"{median(door_rates):.0f}/s against {median(raw_rates):.0f}/s raw",
        ),
        ratio_row(
            "commit_p99_ratio",
            [door / raw for door, raw in zip(door_p99, raw_p99, strict=True)],
            goal=P99_GOAL,
            conditions=f"{where}, {pairs} pairs of {lone} single commits, medians of p99 "
            f"{median(door_p99) * 1e3:.2f} ms against {median(raw_p99) * 1e3:.2f} ms raw",
        ),
    ]


def _open(broker: Broker) -> Arms:
    return Arms(
        raw=raw_producer(broker, TOKENS),
        door=broker.context("door"),
        codec=Codec.local(),
        full=TOKENS.full(broker.prefix),
    )


def _raw_rate(arms: Arms, wal: Sequence[TokenCommit]) -> float:
    acked: list[int] = []

    def delivered(error: object, message: Any) -> None:
        if error is None:
            acked.append(message.offset())

    raw, codec, full = arms.raw, arms.codec, arms.full
    begin = time.perf_counter()
    for number, record in enumerate(wal):
        partition = partition_for(TOKENS, record, PARTITIONS_DEFAULT)
        raw.produce(
            full, codec.encode(TOKENS, record), key_of(TOKENS, record), partition, delivered
        )
        if number % YIELD_EVERY == 0:
            raw.poll(0)
    raw.flush(60)
    took = time.perf_counter() - begin
    assert len(acked) == len(wal)
    return len(wal) / took


async def _door_rate(arms: Arms, wal: Sequence[TokenCommit]) -> float:
    offer = arms.door.producer.offer
    pending: list[Pending] = []
    begin = time.perf_counter()
    for number, record in enumerate(wal):
        pending.append(offer(TOKENS, record))
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)
    # As a writer does that goes on while acknowledgements come in: most are there by now.
    outcomes = [one.result() if one.done() else await one for one in pending]
    acked = sum(type(one) is Acked for one in outcomes)
    took = time.perf_counter() - begin
    assert acked == len(wal)
    return len(wal) / took


def _raw_latencies(arms: Arms, wal: Sequence[TokenCommit]) -> list[float]:
    found: list[float] = []
    done: list[float] = []

    def delivered(_error: object, _message: object) -> None:
        done.append(time.perf_counter())

    for record in wal:
        time.sleep(_PACE_S)
        done.clear()
        begin = time.perf_counter()
        partition = partition_for(TOKENS, record, PARTITIONS_DEFAULT)
        raw = arms.codec.encode(TOKENS, record)
        arms.raw.produce(arms.full, raw, key_of(TOKENS, record), partition, delivered)
        while not done:
            arms.raw.poll(0.1)
        found.append(done[0] - begin)
    return found


async def _door_latencies(arms: Arms, wal: Sequence[TokenCommit]) -> list[float]:
    found: list[float] = []
    for record in wal:
        await asyncio.sleep(_PACE_S)
        begin = time.perf_counter()
        outcome = await arms.door.producer.offer(TOKENS, record)
        found.append(time.perf_counter() - begin)
        assert isinstance(outcome, Acked)
    return found


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
