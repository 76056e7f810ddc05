"""Turns of thought and code: each call runs in a fresh sandbox, so that it may run again."""

from __future__ import annotations

from collections.abc import Sequence

from environments.core.tool_text import arguments_of, code_blocks, tool_messages
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
    canonical,
)
from environments.sandbox.bubblewrap import Sandbox
from environments.sandbox.limits import Limits
from schemas.enums import StopCause, ToolExit
from schemas.records.task import Task

_CALLS_MAX = 4
_HOW = (
    "\nWrite Python code in a ```python block to run it; what it prints comes back to you."
    "\nGive the final answer as a number, without code."
)


class PythonEnvironment:
    """Runs the code of each reply and shows what it printed; a reply without code is the answer."""

    def __init__(self, task: Task) -> None:
        """Read the payload; raise ValueError when it is not of this package."""
        payload = payload_of(task.payload, "question", "wall_s", "memory_mib")
        self._question = str(payload["question"])
        limits = Limits(wall_s=float(payload["wall_s"]), memory_mib=int(payload["memory_mib"]))
        self._sandbox = Sandbox(limits)
        self._tool = Tool(
            name="python",
            description="Run Python code in a fresh sandbox and return what it prints.",
            parameters={
                "type": "object",
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
            },
            idempotent=True,
            external=False,
            timeout_s=limits.wall_s + 10.0,
        )
        self._calls: tuple[ToolCall, ...] = ()
        """Calls of the last reply that the gateway read itself; their outputs are tool messages."""

    async def reset(self) -> Opening:
        """Ask, and declare the tool."""
        question = Message(role="user", content=self._question + _HOW)
        return Opening(messages=(question,), tools=(self._tool,))

    async def act(self, reply: Reply) -> Step:
        """Run the reply's code, or take it as the answer."""
        if not reply.ended_by_itself:
            return Done(
                cause=StopCause.BUDGET_TRUNCATION, detail="the turn's token budget is spent"
            )
        calls = reply.tool_calls
        self._calls = reply.tool_calls
        if not calls:
            calls = tuple(
                ToolCall(id=f"block_{index}", name="python", arguments=canonical({"code": code}))
                for index, code in enumerate(code_blocks(reply.text))
            )
        return CallTools(calls=calls[:_CALLS_MAX]) if calls else Done(cause=StopCause.POLICY_STOP)

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:
        """Run code in a fresh sandbox."""
        del key, attempt  # nothing outlives the call
        if call.name != "python":
            return _error(f"there is no tool named {call.name!r}; the only tool is python")
        try:
            code = arguments_of(call)["code"]
        except (ValueError, KeyError):
            return _error('arguments must be a JSON object such as {"code": "print(1)"}')
        run = await self._sandbox.run_python(str(code))
        text = run.stdout if run.exit_class is ToolExit.OK else run.stdout + run.stderr
        return ToolOutput(
            output=text or f"(no output, {run.status_raw})",
            exit_class=run.exit_class,
            status_raw=run.status_raw,
            output_digest=run.digest,
            truncation=run.truncation,
        )

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:
        """Know of no call: a sandbox keeps no log."""
        del call, key, attempt
        return None

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:
        """Show the outputs."""
        return Continue(messages=tool_messages(self._calls, outputs))

    async def close(self) -> None:
        """Hold nothing between calls."""


def _error(text: str) -> ToolOutput:
    return ToolOutput(output=text, exit_class=ToolExit.TOOL_ERROR, status_raw="bad call")
