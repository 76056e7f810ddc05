"""Says that a worker is there, what it does and where it listens.

Produces: WorkerState on `workers`, at each change and every few seconds between. Waits for: the
acknowledgement of a change, for a bounded time; nothing depends on it, so a silent bus is logged
and not raised. Invariant: a worker that ends says so last, and its heartbeat ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from schemas.enums import Role, WorkerStatus
from schemas.ids import Version
from schemas.ports import Acked, Context, Rejected, Unknown
from schemas.records.worker_state import WorkerState
from schemas.topics import WORKERS

_log = logging.getLogger(__name__)
HEARTBEAT_S = 5.0
GONE_AFTER_MS = 20_000
"""A worker that was not renewed for this long counts as gone. Unit: ms."""
_ACK_S = 5.0


class Presence:
    """The record of one worker in `workers`."""

    def __init__(
        self,
        context: Context,
        role: Role,
        address: str = "",
        capacity: int = 0,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """address: URL where it listens, empty when it does not; capacity: requests at once."""
        self._context = context
        self._role = role
        self._address = address
        self._capacity = capacity
        self._heartbeat_s = heartbeat_s
        self._started_us = context.clock.now_us()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._status = WorkerStatus.STARTING
        self._version = Version(0, 0)
        self._detail = ""
        self._beat: asyncio.Task[None] | None = None

    async def announce(
        self, status: WorkerStatus, version: Version | None = None, detail: str = ""
    ) -> None:
        """Publish a change and keep it fresh from now on; STOPPED and FAILED end the heartbeat.

        version: the policy version served, kept from the last call when None.
        """
        self._status = status
        self._version = version or self._version
        self._detail = detail
        is_over = status in (WorkerStatus.STOPPED, WorkerStatus.FAILED)
        if is_over and self._beat is not None:
            self._beat.cancel()
            self._beat = None
        pending = self._context.producer.offer(WORKERS, self.state())
        if not is_over and self._beat is None:
            self._beat = asyncio.create_task(self._keep_fresh(), name="presence")
        try:
            async with asyncio.timeout(_ACK_S):
                outcome = await pending
        except TimeoutError:
            outcome = Unknown(f"no acknowledgement within {_ACK_S:.0f} s")
        match outcome:
            case Acked():
                return
            case Rejected(reason) | Unknown(reason):
                _log.warning("presence (%s) was not acknowledged: %s", status.value, reason)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._context.producer.offer(WORKERS, self.state())

    def state(self) -> WorkerState:
        """Return the state as it would be announced now."""
        context = self._context
        return WorkerState(
            run_id=context.run_id,
            worker_id=context.worker_id,
            role=self._role,
            address=self._address,
            capacity=self._capacity,
            incarnation=context.incarnation,
            status=self._status,
            epoch=self._version.epoch,
            number=self._version.number,
            host=self._host,
            pid=self._pid,
            detail=self._detail,
            started_us=self._started_us,
            at_us=context.clock.now_us(),
            writer_id=context.worker_id,
        )
