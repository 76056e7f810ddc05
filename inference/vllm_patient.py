"""Makes vLLM's processes sleep while they wait for one another, where cores are few.

vLLM's engine core and model worker pass messages through shared memory, and a reader spins for a
second after each message before it sleeps. On a machine with many cores that saves microseconds; on
two cores the engine core so takes the processor from the very model it waits for, and from a
learner. Every write also rings a socket, so a reader may sleep on that at once.

vLLM imports this module in its engine core (as the scheduler's module) and, through
`inference.vllm_extension`, in its model worker.
"""

from __future__ import annotations

import os
from typing import Any

import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.v1.core.sched.scheduler import Scheduler

PATIENT = "SLUICE_ENGINE_PATIENT"
_LOOK_MS = 20
"""How long a ring that was missed can delay a reader. Unit: ms."""


def _wait(self: Any, timeout_ms: int | None = None) -> None:
    """Sleep until the writer or a cancellation rings; bounded, since the caller looks again."""
    limit_ms = _LOOK_MS if timeout_ms is None else min(timeout_ms, _LOOK_MS)
    if self.local_notify_socket in dict(self.poller.poll(timeout=limit_ms)):
        self.local_notify_socket.recv(flags=zmq.NOBLOCK, copy=False)


if os.environ.get(PATIENT) == "1":
    SpinCondition.wait = _wait


class PatientScheduler(Scheduler):  # type: ignore[misc]  # vLLM is checked at its door only
    """vLLM's scheduler as it is; naming it makes the engine core import this module."""
