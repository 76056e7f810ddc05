"""Calls the counter once per turn and shows its value."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environments.counter.store import CounterStore
from environments.package import payload_of
from environments.ports import (
    CallTools,
    Continue,
    Done,
    Message,
    Opening,
    Reply,
    Step,
    Tool,
    ToolCall,
    ToolOutput,
)
from schemas.crash_points import CrashPoint, reach
from schemas.enums import StopCause
from schemas.records.task import Task


def store_path(run_id: str, path: str = "") -> Path:
    """Return where the counter of a run lies unless its configuration says otherwise."""
    return Path(path) if path else Path(tempfile.gettempdir()) / f"sluice-counter-{run_id}.sqlite"


class CounterEnvironment:
    """The tool is external, not idempotent, and (unless switched off) answers by key."""

    def __init__(self, task: Task) -> None:
        """Read the payload; raise ValueError when it is not of this package."""
        payload = payload_of(task.payload, "calls", "delay_s", "asks_by_key", "path")
        self._calls = int(payload["calls"])
        self._delay_s = float(payload["delay_s"])
        self._store = CounterStore(store_path(task.run_id, str(payload["path"])))
        self._values: list[int] = []
        self._tool = Tool(
            name="add",
            description="Add one to the counter and return its value.",
            parameters={"type": "object", "properties": {}},
            idempotent=False,
            external=True,
            timeout_s=self._delay_s + 30.0,
            announced=False,
            asks_by_key=bool(payload["asks_by_key"]),
        )

    async def reset(self) -> Opening:
        """Say what happens."""
        return Opening(
            messages=(Message(role="user", content="Each reply adds one to the counter."),),
            tools=(self._tool,),
        )

    async def act(self, reply: Reply) -> Step:
        """Add one, whatever the reply says, until the calls are made."""
        del reply
        if len(self._values) >= self._calls:
            return self._done()
        return CallTools(calls=(ToolCall(id="add", name="add", arguments="{}"),))

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:
        """Add one; wait before and after, so that a crash may fall on either side."""
        await asyncio.sleep(self._delay_s / 2)
        episode = key.partition(":")[0]
        value = await asyncio.to_thread(self._store.add, episode, key, attempt, 1)
        reach(CrashPoint.IN_TOOL)
        await asyncio.sleep(self._delay_s / 2)
        return ToolOutput(output=str(value), status_raw=call.name)

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:
        """Ask the store what the call gave."""
        value = await asyncio.to_thread(self._store.ask, key, attempt)
        return None if value is None else ToolOutput(output=str(value), status_raw=call.name)

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:
        """Show the value."""
        self._values += [int(output.output) for output in outputs]
        if len(self._values) >= self._calls:
            return self._done()
        text = f"The counter is at {self._values[-1]}."
        return Continue(messages=(Message(role="user", content=text),))

    async def close(self) -> None:
        """Hold nothing: the store opens its file for each operation."""

    def _done(self) -> Done:
        return Done(cause=StopCause.POLICY_STOP, artifact={"values": self._values})
