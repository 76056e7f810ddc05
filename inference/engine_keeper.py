"""Keeps one engine serving: starts it, restarts it when it dies, swaps its weights, says when it
may sample.

Waits for: the engine's start or a swap, each inside its own bound. Unblocked by: the engine being
alive under a version that may be served; until then `ready` holds every request back. A load that
failed, or weights that were rejected, fence the engine: it samples nothing until it was started
anew and serves the last version that was loaded whole and not rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from inference.engine import Engine, SwapReport
from schemas.crash_points import CrashPoint, reach
from schemas.deadline import Deadline
from schemas.errors import Boundary, InvariantError, SluiceError, TransientError
from schemas.ids import Version
from schemas.ports import Clock

_LOG = logging.getLogger(__name__)
_WATCH_S = 0.2
_DEAD_S = 0.01
_RESTARTS_MAX = 10
_RESTARTS_WITHIN_MS = 600_000


class EngineKeeper:
    """Owns the engine of one worker."""

    def __init__(self, engine: Engine, *, clock: Clock, inflight_max: int) -> None:
        self._engine = engine
        self._clock = clock
        self._serving = asyncio.Event()
        self._changing = asyncio.Lock()
        self._doubt = asyncio.Event()
        self._good: tuple[Path, Version] | None = None
        self._before: tuple[Path, Version] | None = None
        """What was good before the last swap."""
        self._holds: set[str] = set()
        self.flushes: set[Callable[[], None]] = set()
        """Called at a swap once the engine is drained: commit what waits under the old version."""
        self._slots = asyncio.Semaphore(inflight_max)
        self.waiting = 0
        """Turns that wait for a slot."""
        self._recent: list[int] = []
        self.restarts = 0
        self.flags: dict[str, int] = {}
        """What the engine was caught at, with counts; shown in the worker's state."""

    @property
    def version(self) -> Version:
        """The version being served."""
        return self._engine.version

    @property
    def context_max(self) -> int:
        """Tokens that fit in the engine's context."""
        return self._engine.context_max

    @property
    def is_serving(self) -> bool:
        """Whether a request would be sampled at once."""
        return self._serving.is_set() and self._engine.alive

    async def start(self) -> None:
        """Start the engine; raise what it raises."""
        async with self._changing:
            await self._engine.start()
        self._open()

    async def ready(self, deadline: Deadline) -> Engine:
        """Return the engine once it may sample; raise TransientError when the deadline passes
        first.
        """
        while not self.is_serving:
            left_ms = deadline.left_ms(now_ms=self._clock.monotonic_ms())
            if left_ms == 0:
                raise TransientError(
                    f"gave up on {deadline.waiting_for}: the engine is not serving",
                    boundary=Boundary.ENGINE,
                    hint="the worker's log says why; the environment may turn to another worker",
                )
            try:
                async with asyncio.timeout(min(left_ms / 1000, 1.0)):
                    await self._serving.wait()
            except TimeoutError:
                continue
            if not self._engine.alive:
                await asyncio.sleep(_DEAD_S)
        return self._engine

    @asynccontextmanager
    async def slot(self, deadline: Deadline) -> AsyncIterator[None]:
        """Hold one of the places of the engine; raise TransientError when none is free in time."""
        self.waiting += 1
        try:
            async with asyncio.timeout(deadline.left_ms(now_ms=self._clock.monotonic_ms()) / 1000):
                await self._slots.acquire()
        except TimeoutError as error:
            raise TransientError(
                f"gave up on {deadline.waiting_for}: all slots of the engine are taken",
                boundary=Boundary.ENGINE,
                hint="raise inflight_max, or give this worker fewer episodes",
            ) from error
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    def doubt(self) -> None:
        """Look at the engine now: a request has failed."""
        self._doubt.set()

    def hold(self, why: str) -> None:
        """Sample nothing new until `release` with the same reason."""
        self._holds.add(why)
        self._serving.clear()

    def release(self, why: str) -> None:
        """Take a reason to hold away."""
        self._holds.discard(why)
        self._open()

    def flag(self, what: str) -> None:
        """Note that the engine was caught at something; operators see it in the worker's state."""
        self.flags[what] = self.flags.get(what, 0) + 1

    async def swap(self, folder: Path, version: Version) -> SwapReport:
        """Change the weights in place; raise TransientError when the load failed and the engine is
        fenced.
        """
        async with self._changing:
            try:
                report = await self._engine.swap(folder, version, self._drained)
            except SluiceError:
                self._serving.clear()
                await self._engine.stop()
                raise
            if self._engine.version != version:
                raise InvariantError(
                    f"the engine serves {self._engine.version} after a swap to {version}"
                )
            self._before, self._good = self._good, (folder, version)
        return report

    async def reject(self) -> None:
        """Give up the weights that were loaded last: the engine stops, and is started again with
        those that it had before.
        """
        self._good = self._before
        await self.stop()

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each of `ids` after `prompt_ids` under the served version. Unit:
        nats.
        """
        return await self._engine.score(prompt_ids, ids)

    async def abort(self, request_id: str) -> None:
        """Let a request leave the engine, held or not; a dead engine holds none."""
        if self._engine.alive:
            await self._engine.abort(request_id)

    async def watch(self) -> None:
        """Restart the engine whenever it is found dead; runs until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._doubt.wait()
            self._doubt.clear()
            if not self._engine.alive and not self._changing.locked():
                await self._restart()

    async def stop(self) -> None:
        """Stop the engine."""
        self._serving.clear()
        async with self._changing:
            await self._engine.stop()

    async def _restart(self) -> None:
        self._serving.clear()
        self.restarts += 1
        now_ms = self._clock.monotonic_ms()
        self._recent = [ms for ms in self._recent if now_ms - ms < _RESTARTS_WITHIN_MS] + [now_ms]
        if len(self._recent) > _RESTARTS_MAX:
            raise InvariantError(
                f"the engine died {len(self._recent)} times in {_RESTARTS_WITHIN_MS // 60_000} min",
                boundary=Boundary.ENGINE,
                hint="see its last errors in the worker's log",
            )
        _LOG.warning("the engine is dead; starting it again (restart %d)", self.restarts)
        async with self._changing:
            await self._engine.stop()
            await self._engine.start()
            if self._good is not None:
                folder, version = self._good
                await self._engine.swap(folder, version, _nothing)
        self._open()

    async def _drained(self) -> None:
        # The engine has handed out everything sampled under the old version; its readers take it
        # first.
        await asyncio.sleep(0)
        for flush in tuple(self.flushes):
            flush()
        reach(CrashPoint.DURING_REFRESH)

    def _open(self) -> None:
        if not self._holds and self._engine.alive:
            self._serving.set()


async def _nothing() -> None:
    return None
