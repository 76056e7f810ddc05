"""What all attempts of one worker process share."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from environments.gateway_client import GatewayClient
from environments.replicas import Replicas
from environments.settings import EnvironmentSettings
from environments.tool_log import ToolLogShell
from producers.metrics import Metrics
from schemas.deadline import Deadline
from schemas.errors import RejectedError, UnknownOutcomeError
from schemas.ports import Context

_log = logging.getLogger(__name__)
_DEAD = "the producer is dead"
"""How the door begins its refusals after a fatal error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Doors and tails of the process."""

    context: Context
    settings: EnvironmentSettings
    gateway: GatewayClient
    replicas: Replicas
    tools: ToolLogShell
    metrics: Metrics
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def deadline(self, seconds: float, waiting_for: str) -> Deadline:
        """Return the deadline that many seconds from now."""
        now_ms = self.context.clock.monotonic_ms()
        return Deadline.after(int(seconds * 1000), now_ms=now_ms, waiting_for=waiting_for)

    async def renew_if_needed(
        self, error: UnknownOutcomeError | RejectedError, *, number: int
    ) -> None:
        """Discard the producer after an UNKNOWN, and when it takes nothing more after a fatal
        error.

        `number` is the producer's when the record was handed over: who failed with an older one
        shares what has been opened since, or each renewal would fail the others again. Records that
        were in flight become Unknown to their attempts, which then end and are leased again; the
        next attempt's fences settle what was written.
        """
        if isinstance(error, RejectedError) and _DEAD not in error.message:
            return
        async with self.renewing:
            if self.context.producer.number == number:
                _log.warning("producer %d is discarded: %s", number, error.message)
                await self.context.producer.renew()
