"""Sending one record and waiting for it, on whatever hands it over.

Waits for: the acknowledgement, and for room in a full queue, both inside the caller's deadline.
Unblocked by: the broker's answer, which comes on even when the caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from producers.core.backoff import wait_ms
from schemas.deadline import Deadline
from schemas.errors import Boundary, RejectedError, UnknownOutcomeError
from schemas.ports import Acked, Acknowledgement, Clock, Rejected, Unknown

QUEUE_FULL = "queue full"
_FENCE_HINT = "append a fence, then read up to it; never send again blindly"


async def send_and_wait(
    offer: Callable[[], asyncio.Future[Acknowledgement]],
    *,
    what: str,
    deadline: Deadline,
    clock: Clock,
    trouble: Callable[[], str] = str,
) -> Acked:
    """Offer until the queue takes it, and return its acknowledgement.

    what: names the record in errors; trouble: what the client complains of, for the hint. Raises
    RejectedError, or UnknownOutcomeError, also when the deadline passes first.
    """
    tries = 0
    while True:
        pending = offer()
        left_ms = deadline.left_ms(now_ms=clock.monotonic_ms())
        # Not awaited itself: a cancelled caller would cancel the acknowledgement.
        await asyncio.wait((pending,), timeout=left_ms / 1000)
        if not pending.done():
            raise UnknownOutcomeError(
                f"gave up on {deadline.waiting_for}: no acknowledgement on {what}",
                boundary=Boundary.BUS,
                hint=trouble() or _FENCE_HINT,
            )
        match pending.result():
            case Acked() as acked:
                return acked
            case Rejected(reason) if reason.startswith(QUEUE_FULL) and left_ms > 0:
                tries += 1
                await asyncio.sleep(wait_ms(tries, left_ms=left_ms) / 1000)
            case Rejected(reason):
                raise RejectedError(f"{what}: {reason}", boundary=Boundary.BUS, hint=trouble())
            case Unknown(reason):
                raise UnknownOutcomeError(
                    f"{what}: {reason}", boundary=Boundary.BUS, hint=trouble() or _FENCE_HINT
                )
