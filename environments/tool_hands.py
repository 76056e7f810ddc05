"""The tool half of an attempt: Intent, read-back, run, Result, and the fence of the attempt."""

from __future__ import annotations

import asyncio
import hashlib

from environments.core.episode_commands import (
    AskTool,
    ReadBack,
    RunTool,
    WriteIntent,
    WriteResult,
    WriteUnknown,
)
from environments.core.episode_events import (
    Cleared,
    Event,
    IntentWritten,
    ResultWritten,
    ToolAnswered,
    ToolEnded,
    ToolLost,
    UnknownWritten,
)
from environments.core.episode_state import Episode
from environments.covering import Covering
from environments.lease_facts import Start, Writer, bounded
from environments.ports import ToolOutput
from environments.shared import Shared
from schemas.crash_points import CrashPoint, reach
from schemas.deadline import Deadline
from schemas.enums import ToolEventKind, ToolExit
from schemas.errors import Boundary, FencedError, TransientError
from schemas.rules.tools import ToolLog


class ToolHands:
    """Carries out the tool commands of one attempt."""

    def __init__(self, shared: Shared, start: Start, writer: Writer, covering: Covering) -> None:
        self._shared = shared
        self._lease = start.lease
        self._environment = start.environment
        self._writer = writer
        self._covering = covering
        self._duration_us = 0

    async def fence(self) -> tuple[int, ToolLog]:
        """Append this attempt's Fence and read up to it; raise FencedError when it does not
        count.
        """
        self._covering.must_cover()
        deadline = self._shared.deadline(
            self._shared.settings.read_deadline_s, f"the tool fence of {self._lease.episode_id}"
        )
        return await self._shared.tools.fence(self._writer, deadline=deadline)

    async def intend(self, episode: Episode, command: WriteIntent) -> Event:
        """Make the Intent durable; the lease covers the call before it is written."""
        timeout_us = int(command.tool.timeout_s * 1e6)
        await self._covering.cover(timeout_us // 1000)
        now_us = self._shared.context.clock.now_us()
        event = self._writer.call(
            ToolEventKind.INTENT, now_us, episode,
            call=command.call, tool=command.tool, key=command.key, number=command.number,
            arguments=bounded(command.call.arguments)[0], deadline_us=now_us + timeout_us,
        )  # fmt: skip
        offset = await self._shared.tools.write(event, deadline=self._sending(command.key))
        return IntentWritten(offset=offset)

    async def read_back(self, command: ReadBack) -> Event:
        """Say whether the tool may run: no higher Fence before its Intent, and a lease that
        holds.
        """
        deadline = self._shared.deadline(
            self._shared.settings.read_deadline_s, f"the read-back of {command.key}"
        )
        clear = await self._shared.tools.is_clear(self._lease, command.offset, deadline=deadline)
        try:
            self._covering.must_cover(call_ms=int(command.tool.timeout_s * 1000))
        except FencedError:
            return Cleared(is_clear=False)
        return Cleared(is_clear=clear)

    async def run(self, command: RunTool) -> Event:
        """Run the call, as long as its tool may take."""
        clock = self._shared.context.clock
        began_us = clock.monotonic_us()
        try:
            async with asyncio.timeout(command.tool.timeout_s):
                reach(CrashPoint.IN_TOOL)
                output = await self._environment.call(
                    command.call, key=command.key, attempt=self._lease.attempt
                )
            reach(CrashPoint.AFTER_TOOL)
        except TimeoutError:
            return ToolLost()
        finally:
            self._duration_us = clock.monotonic_us() - began_us
        return ToolEnded(output=_ours_is_raised(output, command.key))

    async def ask(self, command: AskTool) -> Event:
        """Ask the tool by key."""
        await self._covering.cover(int(command.tool.timeout_s * 1000))
        clock = self._shared.context.clock
        began_us = clock.monotonic_us()
        async with asyncio.timeout(command.tool.timeout_s):
            output = await self._environment.ask(
                command.call, key=command.key, attempt=self._lease.attempt
            )
        self._duration_us = clock.monotonic_us() - began_us
        return ToolAnswered(output=output)

    async def record(self, episode: Episode, command: WriteResult) -> Event:
        """Make the Result durable before the model sees it."""
        self._covering.must_cover()
        text, rule = bounded(command.output.output)
        shown = ToolOutput(
            output=text,
            exit_class=command.output.exit_class,
            status_raw=command.output.status_raw,
            output_digest=command.output.output_digest
            or hashlib.sha256(command.output.output.encode()).hexdigest(),
            truncation=command.output.truncation or rule,
        )
        event = self._writer.call(
            ToolEventKind.RESULT, self._shared.context.clock.now_us(), episode,
            call=command.call, tool=command.tool, key=command.key, number=command.number,
            intent_offset=command.intent_offset, output=shown.output,
            output_digest=shown.output_digest, truncation=shown.truncation,
            exit_class=shown.exit_class, status_raw=shown.status_raw[:1000],
            replayed=command.replayed, duration_us=self._duration_us,
        )  # fmt: skip
        offset = await self._shared.tools.write(event, deadline=self._sending(command.key))
        return ResultWritten(offset=offset, output=shown)

    async def give_up(self, episode: Episode, command: WriteUnknown) -> Event:
        """Make it durable that nobody knows the outcome."""
        self._covering.must_cover()
        event = self._writer.call(
            ToolEventKind.UNKNOWN_OUTCOME, self._shared.context.clock.now_us(), episode,
            call=command.call, tool=command.tool, key=command.key, number=command.number,
            intent_offset=command.intent_offset,
        )  # fmt: skip
        offset = await self._shared.tools.write(event, deadline=self._sending(command.key))
        return UnknownWritten(offset=offset)

    def _sending(self, key: str) -> Deadline:
        return self._shared.deadline(self._shared.settings.send_deadline_s, f"tool record of {key}")


def _ours_is_raised(output: ToolOutput, key: str) -> ToolOutput:
    if output.exit_class is ToolExit.INFRA_ERROR:
        raise TransientError(
            f"the tool of {key} failed for reasons of ours: {output.status_raw}",
            boundary=Boundary.SANDBOX,
            hint="the attempt is tried again",
        )
    return output
