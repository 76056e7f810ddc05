"""Fetches single records by position through one long-lived client."""

from __future__ import annotations

import threading
from collections.abc import Callable

from consumers.client import Client, EndReached
from schemas.deadline import Deadline
from schemas.errors import Boundary, InvariantError, SluiceError, TransientError
from schemas.ports import Frames, Message, Position

_POLL_S = 0.05


class Lookup:
    """One fetch at a time; positions that follow one another need no new request each."""

    def __init__(self, open_client: Callable[[], Client], now_ms: Callable[[], int]) -> None:
        self._open_client = open_client
        self._now_ms = now_ms
        self._client: Client | None = None
        self._next: Position | None = None
        self._lock = threading.Lock()

    def fetch(self, position: Position, deadline: Deadline) -> Message:
        """Return the record at exactly this position; blocks until the deadline.

        Raises TransientError when nothing is there in time, InvariantError when it is gone.
        """
        with self._lock:
            try:
                client = self._at(position)
                while (left_ms := deadline.left_ms(now_ms=self._now_ms())) > 0:
                    items, _ = client.take(1, min(_POLL_S, left_ms / 1000))
                    for item in items:
                        if not isinstance(item, EndReached | Frames):
                            return self._checked(item, position)
                    client.check()
            except SluiceError:
                self._close()
                raise
        raise TransientError(
            f"gave up on {deadline.waiting_for}: nothing at {position} yet", boundary=Boundary.BUS
        )

    def rest(self) -> None:
        """Fetch nothing ahead until the next fetch; does nothing while one is under way."""
        if self._lock.acquire(blocking=False):
            try:
                if self._client is not None and self._next is not None:
                    self._client.remove([(self._next.topic, self._next.partition)])
                    self._next = None
            finally:
                self._lock.release()

    def close(self) -> None:
        """Release the client; the next fetch opens another."""
        with self._lock:
            self._close()

    def _at(self, position: Position) -> Client:
        if self._client is None:
            self._client = self._open_client()
        if self._next != position:
            if self._next is not None:
                self._client.remove([(self._next.topic, self._next.partition)])
            self._client.add({(position.topic, position.partition): position.offset})
            self._next = position
        return self._client

    def _checked(self, item: Message, position: Position) -> Message:
        self._next = Position(item.topic, item.partition, item.offset + 1)
        if (item.topic, item.partition, item.offset) != (
            position.topic, position.partition, position.offset
        ):  # fmt: skip
            raise InvariantError(
                f"the record at {position} is gone; the next is {item.offset}",
                boundary=Boundary.BUS,
                hint="it was compacted or trimmed",
            )
        return item

    def _close(self) -> None:
        client, self._client, self._next = self._client, None, None
        if client is not None:
            client.close()
