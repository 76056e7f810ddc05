"""The local broker under a chaos run: killed and started, or made to stand still for a while."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from infra.platform.commands import up
from infra.platform.process import is_alive, monotonic_ms, wait_until_gone
from infra.platform.settings import PlatformSettings
from infra.platform.state import ProcessRecord, read_state
from infra.setup.places import Places
from schemas.deadline import Deadline
from schemas.errors import Boundary, TransientError

_NAME = "broker-1"
_GONE_MS = 10_000


class Broker:
    """One broker of the local platform, known by its record, so that no other process is hit."""

    def __init__(self, settings: PlatformSettings, places: Places) -> None:
        self._settings = settings
        self._places = places

    @property
    def pid(self) -> int:
        """The process id now; raises TransientError when the broker does not run."""
        return self._record().pid

    def kill_and_start(self) -> None:
        """Kill it as a crash would, start it again, and wait until it answers."""
        record = self._record()
        os.kill(record.pid, signal.SIGKILL)
        # What is not yet gone counts as running, and would not be started.
        deadline = Deadline.after(_GONE_MS, now_ms=monotonic_ms(), waiting_for=f"{_NAME} to end")
        if wait_until_gone([record], deadline):
            raise TransientError(
                f"{_NAME} outlived its SIGKILL by {_GONE_MS / 1000:g} s",
                boundary=Boundary.PLATFORM,
                hint="does the disk hang? the kernel ends a process when its writes return",
            )
        up(self._settings, self._places)

    async def stand_still(self, seconds: float) -> None:
        """Stop it, and let it go on after a while."""
        os.kill(self._record().pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.go_on()

    def go_on(self) -> None:
        """Let it go on, stopped or not."""
        with suppress(TransientError, ProcessLookupError):
            os.kill(self._record().pid, signal.SIGCONT)

    def _record(self) -> ProcessRecord:
        state = read_state(self._settings.data)
        record = None if state is None else state.process(_NAME)
        if record is None or not is_alive(record):
            raise TransientError(
                f"{_NAME} of {self._settings.data} does not run",
                boundary=Boundary.PLATFORM,
                hint="`sluice up` starts it",
            )
        return record
