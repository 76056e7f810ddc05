"""A role's context on the memory bus."""

from __future__ import annotations

import asyncio

from schemas.ids import RunId, WorkerId
from schemas.ports import Clock, Context
from schemas.topics import ALL
from tests.support.memory_bus import MemoryBus


def context_on(
    bus: MemoryBus, *, run: str = "run-1", worker: str = "worker-0", clock: Clock | None = None
) -> Context:
    """Return the context of one process that starts at the beginning of every topic."""
    return Context(
        run_id=RunId(run),
        worker_id=WorkerId(worker),
        incarnation=f"{worker}-a",
        producer=bus.producer(),
        consumers=bus.consumers(),
        clock=clock or bus.clock,
        starts={topic.name: dict.fromkeys(range(bus.partitions), 0) for topic in ALL},
        secret=b"secret",
        stop=asyncio.Event(),
    )
