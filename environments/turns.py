"""The gateway half of an attempt: which worker it asks, and what each refusal leads to.

The episode stays with a worker until that fails or goes. All waits for one turn, over all workers
that are asked, share one Deadline; when it passes the attempt ends as infrastructure_error. The
session before the first turn has a Deadline of its own, since the environment is reset in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from environments.core.episode_commands import AskGateway, OpenSession
from environments.core.episode_events import (
    Broke,
    Event,
    GatewayLost,
    LeaseLost,
    Refenced,
    Replied,
    SessionOpened,
)
from environments.gateway_client import Refusal, Refused, Session
from environments.lease_facts import Start
from environments.shared import Shared
from schemas.deadline import Deadline
from schemas.enums import StopCause
from schemas.records.worker_state import WorkerState
from schemas.rules.tools import ToolLog

_log = logging.getLogger(__name__)


class Turns:
    """Sessions and turns of one attempt."""

    def __init__(self, shared: Shared, start: Start, must_cover: Callable[[], None]) -> None:
        self._shared = shared
        self._lease = start.lease
        self._task = start.task
        self._must_cover = must_cover
        self._worker: WorkerState | None = None
        self._deadline: Deadline | None = None
        self._asked_ms: int | None = None
        """When the turn that is under way was first asked for. Unit: ms, monotonic."""
        self._refused_in_a_row = 0
        self.log = ToolLog()
        """The tool log as the fence of this attempt read it."""

    async def open(self, command: OpenSession) -> Event:
        """Open a session at the episode's worker."""
        while True:
            deadline = self._turn_deadline()
            worker = await self._chosen(deadline)
            if worker is None:
                return self._too_late("no inference worker is ready")
            self._must_cover()
            answer = await self._shared.gateway.open_session(
                worker, self._lease, command,
                deadline=self._request_deadline(deadline), is_gone=self._gone(worker),
            )  # fmt: skip
            if isinstance(answer, Session):
                return self._opened(answer)
            event = await self._refused(worker, answer, deadline)
            if event is not None:
                return event

    def _opened(self, session: Session) -> Event:
        for offset in session.result_offsets:
            self.log.accept_result(offset)
        return SessionOpened(
            attempt=session.attempt,
            fence_number=session.fence_number,
            position=session.position,
            length=session.length,
            turns=session.turns,
            recorded=self.log.calls,
        )

    async def ask(self, command: AskGateway) -> Event:
        """Ask the session's worker for a turn."""
        if self._asked_ms is None:
            self._asked_ms = self._shared.context.clock.monotonic_ms()
            self._deadline = None
        while True:
            deadline = self._turn_deadline()
            worker = self._worker
            if worker is None or self._shared.replicas.is_gone(worker):
                self._worker = None
                return GatewayLost(reason="the worker of the session is gone")
            self._must_cover()
            answer = await self._shared.gateway.ask(
                worker, self._lease, self._task, command,
                deadline=self._request_deadline(deadline), is_gone=self._gone(worker),
            )  # fmt: skip
            if isinstance(answer, Refusal):
                event = await self._refused(worker, answer, deadline)
                if event is None:
                    continue
                return event
            self._note_answer()
            return Replied(
                attempt=answer.attempt,
                fence_number=answer.fence_number,
                position=answer.position,
                length=answer.length,
                branch=answer.branch,
                reply=answer.reply,
                now_ms=self._shared.context.clock.monotonic_ms(),
            )

    def _note_answer(self) -> None:
        assert self._asked_ms is not None
        seconds = (self._shared.context.clock.monotonic_ms() - self._asked_ms) / 1000
        self._shared.metrics.observe(
            "environment_turn_s", seconds, "s", environment=self._task.environment
        )
        self._asked_ms = self._deadline = None
        self._refused_in_a_row = 0

    def _turn_deadline(self) -> Deadline:
        if self._deadline is None:
            seconds = self._shared.settings.turn_deadline_s
            self._deadline = self._shared.deadline(seconds, f"a turn of {self._lease.episode_id}")
        return self._deadline

    def _request_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.sooner(
            int(self._shared.settings.request_deadline_s * 1000),
            now_ms=self._shared.context.clock.monotonic_ms(),
            waiting_for=f"the gateway's answer to {self._lease.episode_id}",
        )

    def _gone(self, worker: WorkerState) -> Callable[[], bool]:
        return lambda: self._shared.replicas.is_gone(worker)

    async def _chosen(self, deadline: Deadline) -> WorkerState | None:
        while self._worker is None or self._shared.replicas.is_gone(self._worker):
            self._worker = self._shared.replicas.pick(self._lease.episode_id)
            if self._worker is None:
                if deadline.is_over(now_ms=self._shared.context.clock.monotonic_ms()):
                    return None
                await self._back_off()
        return self._worker

    async def _back_off(self) -> None:
        await asyncio.sleep(self._shared.settings.back_off_ms / 1000)

    def _too_late(self, why: str) -> Event:
        assert self._deadline is not None
        detail = f"gave up on {self._deadline.waiting_for}: {why}"
        return Broke(cause=StopCause.INFRASTRUCTURE_ERROR, detail=detail)

    async def _refused(
        self, worker: WorkerState, refusal: Refusal, deadline: Deadline
    ) -> Event | None:
        """Return what a refusal leads to; None to ask the same again."""
        why = f"{refusal.code} from {worker.worker_id}: {refusal.message}"
        self._refused_in_a_row += 1
        match refusal.refused:
            case Refused.REFENCE | Refused.REPEAT | Refused.TURN_AWAY:
                if deadline.is_over(now_ms=self._shared.context.clock.monotonic_ms()):
                    return self._too_late(why)
                if self._refused_in_a_row > 1 or refusal.refused is Refused.REPEAT:
                    await self._back_off()
                return self._goes_on(worker, refusal, why)
            case Refused.TOO_LONG:
                return Broke(cause=StopCause.BUDGET_TRUNCATION, detail=why)
            case Refused.OURS:
                _log.error("%s is refused: %s", self._lease.episode_id, why)
                return Broke(cause=StopCause.ENVIRONMENT_ERROR, detail=why)
            case Refused.QUARANTINED:
                _log.error("%s lost a call: %s", self._lease.episode_id, why)
                return Broke(cause=StopCause.INFRASTRUCTURE_ERROR, detail=why)

    def _goes_on(self, worker: WorkerState, refusal: Refusal, why: str) -> Event | None:
        if refusal.refused is Refused.REPEAT:
            return None
        if refusal.refused is Refused.REFENCE:
            if refusal.attempt > self._lease.attempt:
                return LeaseLost(reason=f"attempt {refusal.attempt} owns the WAL")
            return Refenced(highest=refusal.fence_number)
        _log.warning("%s turns away: %s", self._lease.episode_id, why)
        self._shared.replicas.turn_away(worker)
        self._worker = None
        return GatewayLost(reason=why)
