"""Hands what a client's thread reads to the event loop: bounded, in order, few wake-ups.

Invariants: the thread appends and the loop takes; the loop is woken only while somebody waits; what
was put is handed over before a complaint or failure is raised, and taking itself raises nothing, so
that nothing taken is lost to an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from schemas.errors import SluiceError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Parcel(Generic[T]):
    items: Sequence[T]
    records: int
    size: int


class Mailbox(Generic[T]):
    """A queue from one thread to one event loop, bounded by records and by bytes."""

    def __init__(self, *, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._parcels: deque[_Parcel[T]] = deque()
        self._records = 0
        self._bytes = 0
        self._counts = threading.Lock()
        self._space = threading.Event()
        self._space.set()
        self._failure: SluiceError | None = None
        self._complaint: SluiceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def records(self) -> int:
        """Records put and not taken."""
        return self._records

    @property
    def is_full(self) -> bool:
        """Whether the thread should stop reading until something was taken."""
        return self._records >= self._records_max or self._bytes >= self._bytes_max

    def put(self, items: Sequence[T], size: int, *, records: int | None = None) -> None:
        """Append a parcel (thread side). Whoever puts looks at `is_full` before reading more.

        records: how many the items hold; None is one each.
        """
        parcel = _Parcel(items, len(items) if records is None else records, size)
        with self._counts:
            self._records += parcel.records
            self._bytes += size
            if self.is_full:
                self._space.clear()
        self._parcels.append(parcel)
        self._wake()

    def fail(self, failure: SluiceError) -> None:
        """End the stream with an error (thread side); the first one stays."""
        if self._failure is None:
            self._failure = failure
        self._wake()

    def complain(self, complaint: SluiceError) -> None:
        """Let the next `check` raise this once (thread side); the stream goes on behind it."""
        self._complaint = complaint
        self._wake()

    def withdraw(self) -> None:
        """Drop a complaint that nobody has heard and that holds no longer (thread side)."""
        self._complaint = None

    def wait_for_space(self, timeout_s: float) -> bool:
        """Wait until there is space (thread side); False when `timeout_s` passes first."""
        return self._space.wait(timeout_s)

    def take(self) -> Sequence[T]:
        """Return the next parcel (loop side), empty when there is none."""
        if not self._parcels:
            return ()
        parcel = self._parcels.popleft()
        with self._counts:
            self._records -= parcel.records
            self._bytes -= parcel.size
            if not self.is_full:
                self._space.set()
        return parcel.items

    def check(self) -> None:
        """Raise a complaint once, or the failure for good (loop side), unless a parcel waits.

        For whoever has nothing in hand: an error raised over records taken would lose them.
        """
        if self._parcels:
            return
        complaint, self._complaint = self._complaint, None
        if complaint is not None:
            raise complaint
        if self._failure is not None:
            raise self._failure

    async def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to take (loop side); False when `timeout_s` passes
        first.
        """
        loop = self._loop = asyncio.get_running_loop()
        if self._has_something():
            return True
        waiter = self._waiter = loop.create_future()
        # Looked at again, since the thread may have put something before it saw the waiter.
        if self._has_something():
            self._waiter = None
            return True
        timer = loop.call_later(timeout_s, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self._has_something()

    def _has_something(self) -> bool:
        return bool(self._parcels or self._failure or self._complaint)

    def _wake(self) -> None:
        waiter, loop = self._waiter, self._loop
        if waiter is not None and loop is not None:
            self._waiter = None
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
