"""An event loop in simulated time, and processes on it that can be killed, paused and resumed.

The real shells run on it as they are: tasks, timeouts, events and locks of asyncio ask the running
loop for time and callbacks, and this one answers both from a heap. Nothing sleeps; time jumps to
the next callback. Every callback belongs to the process whose context it was made in, so that a
killed process never runs again (as after SIGKILL: no `finally`, no last word) and a paused one
runs later what had come due (as after SIGSTOP and SIGCONT).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

WORK_MAX = 400_000
"""Callbacks of one history at most: a loop that never waits is a fault, not a hang."""


class Process:
    """One process start."""

    __slots__ = (
        *("context", "died", "has_read", "held", "is_alive", "is_deaf", "is_paused"),
        *("name", "number"),
    )

    def __init__(self, name: str, number: int) -> None:
        """A process starts running; `number` counts the starts under its name."""
        self.name = name
        self.number = number
        self.is_alive = True
        self.is_paused = False
        self.is_deaf = False
        """Its reads are cut: it produces, and hears nothing of the log any more."""
        self.has_read: dict[tuple[str, int], int] = {}
        """How far it has read: next offset by topic and partition."""
        self.held: list[_Handle] = []
        self.died: list[Callable[[], None]] = []
        """Called when it is killed: what its operating system and its peers notice."""
        self.context = copy_context()
        self.context.run(CURRENT.set, self)

    @property
    def incarnation(self) -> str:
        """Unique per process start."""
        return f"{self.name}#{self.number}"


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process whose code runs; None for the bus, the network and whoever watches."""


class _Handle:
    """A callback that was asked for; what asyncio needs of its Handle and TimerHandle."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "time_s")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context if context is not None else copy_context()
        self.process = self.context.get(CURRENT)
        self.is_cancelled = False
        self.time_s = 0.0

    def cancel(self) -> None:
        """Never call it."""
        self.is_cancelled = True
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Whether it will never be called."""
        return self.is_cancelled

    def when(self) -> float:
        """When it is due. Unit: s."""
        return self.time_s


class SimLoop(asyncio.AbstractEventLoop):
    """See the module. Single-threaded; executors run at once, in place."""

    def __init__(self) -> None:
        """Start at time 0 with nothing to do."""
        self._now_s = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        """By time, then in the order asked for."""
        self._numbers = 0
        self._is_closed = False
        self.worked = 0
        """Callbacks run so far."""
        self.failures: list[str] = []
        """What no task's owner ever looked at, and callbacks that raised."""

    def time(self) -> float:
        """Simulated time. Unit: s."""
        return self._now_s

    def call_soon(  # type: ignore[override]  # callbacks of any shape
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Run a callback at this moment, after those that were asked for before."""
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # the same, in one thread

    def call_later(  # type: ignore[override]  # as call_soon
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """Run a callback after `delay`. Unit: s."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """Run a callback at a time. Unit: s."""
        handle = _Handle(callback, args, context)
        handle.time_s = when if when > self._now_s else self._now_s
        self._numbers += 1
        heapq.heappush(self._timers, (handle.time_s, self._numbers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # as call_soon
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Return a task of this loop; one that dies with its process says nothing."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a kill is no mistake
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002
        """Run a function at once and return a done future."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def get_debug(self) -> bool:
        """No debugging: it would cost half the time."""
        return False

    def is_running(self) -> bool:
        """Whether it runs."""
        return not self._is_closed

    def is_closed(self) -> bool:
        """Whether the history is over."""
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what asyncio has to complain of."""
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def run(self, until_s: float, is_over: Callable[[], bool]) -> bool:
        """Run to `until_s`, or until `is_over` between two moments; return whether it was.

        Raises RuntimeError when more work is done than a history can need.
        """
        asyncio.events._set_running_loop(self)
        try:
            while not is_over():
                self._run_ready()
                if not self._timers or self._timers[0][0] > until_s:
                    self._now_s = until_s
                    return is_over()
                time_s, _, handle = heapq.heappop(self._timers)
                if not handle.is_cancelled:
                    self._now_s = max(self._now_s, time_s)
                    self._ready.append(handle)
            return True
        finally:
            asyncio.events._set_running_loop(None)

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            process = handle.process
            if process is not None:
                if not process.is_alive:
                    continue
                if process.is_paused:
                    process.held.append(handle)
                    continue
            self.worked += 1
            if self.worked > WORK_MAX:
                raise RuntimeError(f"more than {WORK_MAX} callbacks at {self._now_s:.3f} s")
            assert handle.callback is not None
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001  what BaseEventLoop does with a callback
                self.failures.append(f"{type(error).__name__} in a callback: {error}")

    def kill(self, process: Process) -> None:
        """End a process between two of its callbacks."""
        process.is_alive = False
        process.held.clear()
        for notice in process.died:
            notice()

    def pause(self, process: Process) -> None:
        """Stop a process as SIGSTOP does; its timers go on."""
        process.is_paused = True

    def resume(self, process: Process) -> None:
        """Let a paused process run what has come due meanwhile."""
        process.is_paused = False
        self._ready.extend(process.held)
        process.held.clear()

    def close(self) -> None:
        """Drop everything; nothing runs any more."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
