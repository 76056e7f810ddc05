"""Runs one attempt at an episode: obeys the core's commands and reports what came of them.

Consumes: commands of `environments.core.episode.step`. Produces: `episodes` (Progress, Paused,
Ended), `tool-events`, `verify-requests`; HTTP to gateways. Waits for: acknowledgements, gateways,
the task's own calls; each with a deadline. Unblocked by: those, by the loss of the lease, or by a
pause. Once the lease does not cover an act any more, nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import traceback

from environments.core.episode import step
from environments.core.episode_commands import Command, Interrupt, LetGo
from environments.core.episode_events import Begun, Broke, Event, Interrupted, LeaseLost, PauseAsked
from environments.core.episode_state import Budgets, Episode, Phase
from environments.core.lease import LeaseClock, Progress
from environments.hands import Hands
from environments.lease_facts import Start, Writer
from environments.shared import Shared
from schemas.enums import EpisodeEventKind, StopCause
from schemas.errors import (
    Boundary,
    FencedError,
    InvariantError,
    RejectedError,
    SluiceError,
    TransientError,
    UnknownOutcomeError,
)
from schemas.ports import Acked, Pending
from schemas.topics import EPISODES

_log = logging.getLogger(__name__)
_URGENT_MAX = 16
_TICKS = 4


class EpisodeRunner:
    """One attempt, from its lease to its end."""

    def __init__(self, shared: Shared, start: Start) -> None:
        settings, lease, task = shared.settings, start.lease, start.task
        self._shared = shared
        self._lease = lease
        self._writer = Writer(
            lease=lease,
            worker_id=shared.context.worker_id,
            incarnation=shared.context.incarnation,
        )
        self._clock = LeaseClock.granted(
            lease_ms=lease.lease_ms,
            margin=settings.lease_margin,
            read_ms=lease.read_ms,
            age_ms=lease.age_ms,
            wait_ms_max=int(settings.request_deadline_s * 1000),
        )
        self._episode = Episode(
            episode_id=lease.episode_id,
            attempt=lease.attempt,
            budgets=Budgets(
                tokens_max=task.tokens_max,
                turn_tokens_max=task.turn_tokens_max,
                turns_max=task.turns_max,
                seconds_max=task.seconds_max,
            ),
        )
        self._urgent: asyncio.Queue[Event] = asyncio.Queue(_URGENT_MAX)
        self._hands = Hands(shared, start, self._writer, self)

    @property
    def attempt(self) -> int:
        """The attempt that it runs."""
        return self._lease.attempt

    @property
    def episode(self) -> Episode:
        """The state of the episode."""
        return self._episode

    def lose(self, reason: str) -> None:
        """Say that the lease is lost; the attempt stops and writes nothing more."""
        self._tell(LeaseLost(reason=reason))

    def pause(self, *, at_once: bool) -> None:
        """Ask for a pause: at once, or where nothing that was begun is dropped."""
        self._tell(PauseAsked(at_once=at_once))

    def _tell(self, event: Event) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # the same news sixteen times over
            self._urgent.put_nowait(event)

    def must_cover(self, *, call_ms: int = 0) -> None:
        """Raise FencedError unless the lease covers now, and a call of `call_ms`."""
        now_ms = self._shared.context.clock.monotonic_ms()
        if not self._clock.covers(now_ms=now_ms, call_ms=call_ms):
            raise FencedError(
                f"the lease of attempt {self.attempt} of {self._lease.episode_id} has run out",
                hint="the scheduler leases the episode again",
            )

    async def run(self) -> Episode:
        """Run the attempt to its end; return its last state.

        Raises InvariantError, after which the process must not go on. Everything else that happens
        becomes an event.
        """
        self._hands.begin()
        keeper = asyncio.create_task(self._keep_lease(), name=f"lease {self._lease.episode_id}")
        urgent = asyncio.create_task(self._urgent.get())
        working: asyncio.Task[Event] | None = None
        command = self._step(Begun(now_ms=self._shared.context.clock.monotonic_ms()))
        try:
            while self._episode.phase is not Phase.OVER:
                if command is not None:
                    working = asyncio.create_task(self._obey(command))
                assert working is not None
                await asyncio.wait({working, urgent}, return_when=asyncio.FIRST_COMPLETED)
                command = None
                if urgent.done():
                    told = self._step(urgent.result())
                    urgent = asyncio.create_task(self._urgent.get())
                    if isinstance(told, Interrupt):
                        await _drop(working)
                        command = self._step(_interrupted(working))
                elif working.done():
                    command = self._step(working.result())
            return self._episode
        finally:
            for task in (keeper, urgent, working):
                await _drop(task)
            await self._hands.close()

    def _step(self, event: Event) -> Command | None:
        self._episode, command = step(self._episode, event)
        now_ms = self._shared.context.clock.monotonic_ms()
        self._clock = self._clock.waiting(
            now_ms=now_ms, at_gateway=self._episode.phase.is_at_gateway
        )
        if isinstance(command, LetGo):
            _log.warning(
                "attempt %d of %s lets go: %s",
                self.attempt, self._lease.episode_id, command.reason,
            )  # fmt: skip
            return None
        return command

    async def _obey(self, command: Command) -> Event:
        """Carry a command out and return its event; failures of others are events too."""
        number = self._shared.context.producer.number
        try:
            return await self._hands.obey(self._episode, command)
        except FencedError as error:
            return LeaseLost(reason=error.message)
        except InvariantError:
            raise
        except (UnknownOutcomeError, RejectedError) as error:
            await self._shared.renew_if_needed(error, number=number)
            return Broke(cause=StopCause.INFRASTRUCTURE_ERROR, detail=f"bus: {error.message}")
        except SluiceError as error:
            cause = (
                StopCause.INFRASTRUCTURE_ERROR
                if isinstance(error, TransientError) or error.boundary is Boundary.BUS
                else StopCause.ENVIRONMENT_ERROR
            )
            return Broke(cause=cause, detail=str(error))
        except Exception as error:  # noqa: BLE001  a task's own code may raise anything
            return self._ours(error, command)

    def _ours(self, error: Exception, command: Command) -> Event:
        trace = "".join(traceback.format_exception(error))
        digest = hashlib.sha256(trace.encode()).hexdigest()[:16]
        _log.error(
            "attempt %d of %s failed in %s (traceback %s)\n%s",
            self.attempt, self._lease.episode_id, type(command).__name__, digest, trace,
        )  # fmt: skip
        detail = f"{type(error).__name__}: {error} in {type(command).__name__}, traceback {digest}"
        return Broke(cause=StopCause.ENVIRONMENT_ERROR, detail=detail[:1000])

    async def _keep_lease(self) -> None:
        """Send a Progress every quarter of the lease, and tell when the lease is over."""
        while True:
            await asyncio.sleep(self._lease.lease_ms / 1000 / _TICKS)
            now_ms = self._shared.context.clock.monotonic_ms()
            if not self._clock.covers(now_ms=now_ms):
                self.lose("the lease ran out by the worker's own clock")
                return
            self._offer_progress(until_ms=0)

    def _offer_progress(self, *, until_ms: int) -> Pending:
        """Hand a Progress over; its acknowledgement renews the lease, counted from now."""
        context, episode = self._shared.context, self._episode
        now_ms = context.clock.monotonic_ms()
        progress = Progress(
            sent_ms=now_ms,
            wal_position=episode.wal_position,
            tool_position=episode.tool_position,
            at_gateway=episode.phase.is_at_gateway,
            until_ms=until_ms,
        )
        at_us = context.clock.now_us()
        event = self._writer.episode(
            EpisodeEventKind.PROGRESS,
            at_us,
            wal_position=progress.wal_position,
            tool_position=progress.tool_position,
            at_gateway=progress.at_gateway,
            fence_number=episode.fence_number,
            until_us=at_us + (until_ms - now_ms) * 1000 if until_ms else 0,
        )
        pending = context.producer.offer(EPISODES, event)

        def renew(_: object) -> None:
            if isinstance(pending.result(), Acked):
                self._clock = self._clock.renewed(progress)

        pending.add_done_callback(renew)
        return pending

    async def cover(self, call_ms: int) -> None:
        """Make the lease cover a call of `call_ms`: announce it and await the acknowledgement.

        Raises FencedError when the lease is lost, TransientError when nothing was acknowledged.
        """
        self.must_cover()
        now_ms = self._shared.context.clock.monotonic_ms()
        if self._clock.covers(now_ms=now_ms, call_ms=call_ms):
            return
        until_ms = now_ms + call_ms + 2 * self._clock.margin_ms
        pending = self._offer_progress(until_ms=until_ms)
        try:
            async with asyncio.timeout(self._shared.settings.send_deadline_s):
                outcome = await pending
        except TimeoutError:
            outcome = None
        if not isinstance(outcome, Acked):
            raise TransientError(
                f"the announcement of a call was not acknowledged: {outcome}",
                boundary=Boundary.BUS,
                hint="see the broker; the episode is tried again",
            )
        self._clock = self._clock.renewed(
            Progress(
                sent_ms=now_ms,
                wal_position=-1,
                tool_position=-1,
                at_gateway=False,
                until_ms=until_ms,
            )
        )
        self.must_cover(call_ms=call_ms)


async def _drop(task: asyncio.Task[Event] | asyncio.Task[None] | None) -> None:
    if task is None:
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


def _interrupted(working: asyncio.Task[Event]) -> Event:
    """Return what came of a command that was to be dropped: it may have ended just before."""
    if working.cancelled():
        return Interrupted()
    return working.result()
