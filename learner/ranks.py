"""All ranks seen from rank 0: this process's engine, in a thread of its own, and a child process
for every other.

Invariants: every call of the engine happens in that one thread, so that the bus and the heartbeat
go on meanwhile; a child that dies ends the learner, since the collectives would wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from learner.core.loss_registry import BoundLoss
from learner.engine import Engine, RankResult
from learner.libraries import import_libraries
from learner.rank import execute, start_line
from learner.settings import LearnerSettings
from learner.work import EndWork, Work
from schemas.errors import Boundary, InvariantError

T = TypeVar("T")
_LOG = logging.getLogger("sluice.learner")
_CHECK_S = 1.0
_END_S = 20.0


def _import_path() -> str:
    """Where a child finds this package, wherever it was started."""
    here = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """The learner's processes."""

    def __init__(self, settings: LearnerSettings, loss: BoundLoss) -> None:
        self._settings, self.loss = settings, loss
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._children: list[subprocess.Popen[str]] = []
        self._engine: Engine | None = None

    async def load(self) -> None:
        """Import the engine's libraries in its thread; no other thread may import them yet."""
        await self._call(lambda: import_libraries(self._settings.device))

    async def start(self) -> None:
        """Start the children and build the engine; returns when all ranks have met."""
        port = _free_port()
        for rank in range(1, self._settings.ranks):
            child = subprocess.Popen(
                [sys.executable, "-m", "learner.rank"],
                stdin=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": _import_path()},
            )
            assert child.stdin is not None
            child.stdin.write(start_line(self._settings, rank=rank, port=port))
            child.stdin.flush()
            self._children.append(child)
        self._engine = await self._call(
            lambda: Engine(self._settings, self.loss, rank=0, port=port)
        )

    @property
    def engine(self) -> Engine:
        """This rank's engine; call it through `call` only."""
        assert self._engine is not None, "start() first"
        return self._engine

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on rank 0's engine, in its thread; no other rank takes part."""
        return await self._call(lambda: function(self.engine))

    async def do(self, work: Work) -> list[RankResult]:
        """Have all ranks do a piece of work; return their results in rank order."""

        def everywhere() -> list[RankResult]:
            self.engine.broadcast(work)
            return self.engine.gather(execute(self.engine, work))

        return await self._call(everywhere)

    async def _call(self, function: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, function)
        while True:
            done, _ = await asyncio.wait({future}, timeout=_CHECK_S)
            if done:
                return future.result()
            for rank, child in enumerate(self._children, start=1):
                if child.poll() is not None:
                    raise InvariantError(
                        f"rank {rank} of the learner ended with {child.returncode}",
                        boundary=Boundary.INSIDE,
                        hint="its output says why; the learner starts anew from its checkpoint",
                    )

    async def close(self) -> None:
        """End all ranks; one that does not end in time is killed."""
        if self._engine is not None and all(child.poll() is None for child in self._children):
            try:
                async with asyncio.timeout(_END_S):
                    await self.do(EndWork())
                    await self.call(lambda engine: engine.close())
            except (TimeoutError, InvariantError, RuntimeError) as error:
                _LOG.warning("the ranks did not end together: %s", error)
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._thread.shutdown(wait=False, cancel_futures=True)
