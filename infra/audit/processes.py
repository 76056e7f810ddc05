"""A long run is audited by several processes, each with a share of the partitions.

Waits for: the shares, each of which ends or fails by itself (its reader gives up on silence).
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import resource
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.audit.audit import RECORDS_TOGETHER_MAX, Cut, Helpers, Share, audit_share
from schemas.codec import Codec
from schemas.ports import Starts

RECORDS_ALONE_MAX = 300_000
"""Up to so many records one process is done before others would have started."""
PROCESSES_MAX = 8
_GC_THRESHOLDS = (200_000, 50, 100)
"""An audit makes few cycles and many objects that stay for a while: look for cycles rarely."""


def helpers(
    settings: ConsumerSettings,
    codec: Codec,
    run_id: str,
    starts: Starts | None,
    *,
    lows: Starts | None = None,
    processes: int | None = None,
) -> Helpers:
    """Return who shares an audit on this machine; one process a core unless `processes` says."""
    wanted = processes or min(PROCESSES_MAX, os.cpu_count() or 1)

    def share_out(cut: Cut, records: Mapping[int, int]) -> Any:
        shares = even(records, wanted)
        if len(shares) < 2 or sum(records.values()) <= RECORDS_ALONE_MAX:
            return None
        return asyncio.ensure_future(_work(settings, codec, run_id, (starts, lows), cut, shares))

    return share_out


def even(records: Mapping[int, int], shares: int) -> list[tuple[int, ...]]:
    """Return the partitions in at most so many shares of about as many records each."""
    filled: list[list[int]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for partition in sorted(records, key=lambda p: (-records[p], p)):
        lightest = loads.index(min(loads))
        filled[lightest].append(partition)
        loads[lightest] += records[partition]
    return [tuple(sorted(one)) for one in filled if one]


async def _work(
    settings: ConsumerSettings,
    codec: Codec,
    run_id: str,
    begins: tuple[Starts | None, Starts | None],
    cut: Cut,
    shares: Sequence[tuple[int, ...]],
) -> Sequence[Share]:
    loop = asyncio.get_running_loop()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(shares), mp_context=spawn) as pool:
        at_once = RECORDS_TOGETHER_MAX // len(shares)
        tasks = [
            loop.run_in_executor(
                pool, _in_process, settings, codec, run_id, begins, cut, share, at_once
            )
            for share in shares
        ]
        return await asyncio.gather(*tasks)


def _in_process(
    settings: ConsumerSettings,
    codec: Codec,
    run_id: str,
    begins: tuple[Starts | None, Starts | None],
    cut: Cut,
    partitions: Sequence[int],
    records_max: int,
) -> Share:
    look_for_cycles_rarely()
    starts, lows = begins

    async def work() -> Share:
        consumers = KafkaConsumers(settings, codec)
        try:
            return await audit_share(
                consumers, run_id, starts, cut, partitions, lows=lows, records_max=records_max
            )
        finally:
            await consumers.close()

    share = asyncio.run(work())
    share.peak_bytes = peak_bytes()
    return share


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def look_for_cycles_rarely() -> None:
    """Set the collector for a process that does nothing but audit."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
