"""Carries out the commands of an attempt, one at a time; `obey` returns the event of each.

Failures leave as typed errors: FencedError when the lease is lost, TransientError and its kin when
the bus or a sandbox fails. Whatever else a task raises is its own fault and leaves as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from environments.core.episode_commands import (
    ActOn,
    AskGateway,
    AskTool,
    AskVerdict,
    Command,
    FenceTools,
    Interrupt,
    LetGo,
    Observe,
    OpenSession,
    ReadBack,
    ResetEnvironment,
    RunTool,
    WriteEnded,
    WriteIntent,
    WritePaused,
    WriteResult,
    WriteUnknown,
)
from environments.core.episode_events import (
    EndedWritten,
    EnvironmentReset,
    Event,
    Stepped,
    ToolsFenced,
    VerdictAsked,
)
from environments.core.episode_state import Episode
from environments.covering import Covering
from environments.lease_facts import Start, Writer
from environments.ports import Done, Step
from environments.shared import Shared
from environments.tool_hands import ToolHands
from environments.turns import Turns
from schemas.enums import EpisodeEventKind
from schemas.errors import InvariantError, RejectedError, TransientError, UnknownOutcomeError
from schemas.topics import EPISODES, VERIFY_REQUESTS, Record, Topic

R = TypeVar("R", bound=Record)
T = TypeVar("T")
_SENDS_MAX = 3


class Hands:
    """The hands of one attempt."""

    def __init__(self, shared: Shared, start: Start, writer: Writer, covering: Covering) -> None:
        self._shared = shared
        self._start = start
        self._writer = writer
        self._covering = covering
        self._turns = Turns(shared, start, covering.must_cover)
        self._tools = ToolHands(shared, start, writer, covering)
        self._queue_us = 0
        self._reset_us = 0
        self._step_us = 0

    def begin(self) -> None:
        """Note that the attempt starts: what passed since its lease was written was waiting."""
        lease = self._start.lease
        self._queue_us = 1000 * (max(0, lease.age_ms) + self._now_ms() - lease.read_ms)

    async def close(self) -> None:
        """Release what the environment holds, inside the bound of a step."""
        try:
            async with asyncio.timeout(self._shared.settings.step_timeout_s):
                await self._start.environment.close()
        except TimeoutError:
            return

    async def obey(self, episode: Episode, command: Command) -> Event:
        """Carry a command out; see the module for what it raises."""
        match command:
            case OpenSession():
                return await self._turns.open(command)
            case AskGateway():
                return await self._turns.ask(command)
            case ResetEnvironment():
                return await self._reset()
            case ActOn(reply=reply):
                return await self._stepped(partial(self._start.environment.act, reply))
            case Observe(outputs=outputs):
                return await self._stepped(partial(self._start.environment.observe, outputs))
            case AskVerdict(done=done):
                return await self._ask_verdict(episode, done)
            case WriteEnded(done=done):
                return await self._end(episode, done)
            case WritePaused():
                return await self._pause(episode)
            case Interrupt() | LetGo():
                raise InvariantError(f"{command!r} is not a command for hands")
            case _:
                return await self._at_tool(episode, command)

    async def _at_tool(
        self,
        episode: Episode,
        command: FenceTools
        | WriteIntent
        | ReadBack
        | RunTool
        | AskTool
        | WriteResult
        | WriteUnknown,
    ) -> Event:
        match command:
            case FenceTools():
                offset, self._turns.log = await self._tools.fence()
                return ToolsFenced(offset=offset)
            case WriteIntent():
                return await self._tools.intend(episode, command)
            case ReadBack():
                return await self._tools.read_back(command)
            case RunTool():
                return await self._tools.run(command)
            case AskTool():
                return await self._tools.ask(command)
            case WriteResult():
                return await self._tools.record(episode, command)
            case WriteUnknown():
                return await self._tools.give_up(episode, command)

    def _now_ms(self) -> int:
        return self._shared.context.clock.monotonic_ms()

    def _now_us(self) -> int:
        return self._shared.context.clock.now_us()

    async def _within_a_step(self, work: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Return a task's own work and the microseconds it took."""
        seconds = self._shared.settings.step_timeout_s
        await self._covering.cover(int(seconds * 1000))
        clock = self._shared.context.clock
        began_us = clock.monotonic_us()
        async with asyncio.timeout(seconds):
            done = await work()
        return done, clock.monotonic_us() - began_us

    async def _reset(self) -> Event:
        opening, self._reset_us = await self._within_a_step(self._start.environment.reset)
        return EnvironmentReset(opening=opening, now_ms=self._now_ms())

    async def _stepped(self, work: Callable[[], Awaitable[Step]]) -> Event:
        taken, took_us = await self._within_a_step(work)
        self._step_us += took_us
        return Stepped(step=taken, now_ms=self._now_ms())

    async def _ask_verdict(self, episode: Episode, done: Done) -> Event:
        now_us = self._now_us()
        deadline_us = now_us + int(self._shared.settings.verdict_deadline_s * 1e6)
        request = self._writer.verify(episode, done, self._start.task, now_us, deadline_us)
        await self._send(VERIFY_REQUESTS, request, "the request for a verdict")
        return VerdictAsked()

    async def _end(self, episode: Episode, done: Done) -> Event:
        ended = self._writer.ended(
            episode, done, self._now_us(),
            reset_us=self._reset_us, step_us=self._step_us, queue_us=self._queue_us,
        )  # fmt: skip
        await self._send(EPISODES, ended, "the end of the episode")
        return EndedWritten()

    async def _pause(self, episode: Episode) -> Event:
        paused = self._writer.episode(
            EpisodeEventKind.PAUSED,
            self._now_us(),
            wal_position=episode.wal_position,
            tool_position=episode.tool_position,
            fence_number=episode.fence_number,
        )
        await self._send(EPISODES, paused, "the pause of the episode")
        return EndedWritten()

    async def _send(self, topic: Topic[R], record: R, what: str) -> None:
        """Make a record durable. A repeat of these is harmless: of two, the first counts.

        Raises FencedError once the lease is lost, UnknownOutcomeError or RejectedError at last.
        """
        waiting_for = f"{what} of {self._start.lease.episode_id}"
        for tries_left in range(_SENDS_MAX - 1, -1, -1):
            self._covering.must_cover()
            deadline = self._shared.deadline(self._shared.settings.send_deadline_s, waiting_for)
            number = self._shared.context.producer.number
            try:
                await self._shared.context.producer.send(topic, record, deadline=deadline)
            except (UnknownOutcomeError, RejectedError) as error:
                if not tries_left:
                    raise
                await self._shared.renew_if_needed(error, number=number)
            except TransientError:
                if not tries_left:
                    raise
                await asyncio.sleep(self._shared.settings.back_off_ms / 1000)
            else:
                return
