"""Two turns: the first reply's last integer is the cell to read, the second's is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from environments.calculator.memory import cell
from environments.core.tool_text import arguments_of
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
from environments.transcripts import last_integer
from schemas.enums import StopCause, ToolExit
from schemas.records.task import Task

_PROBLEM = "State the final answer to the following arithmetic problem: {} + {} ="
_READ = Tool(
    name="read_memory",
    description="Return the number in a memory cell of the calculator.",
    parameters={
        "type": "object",
        "properties": {"cell": {"type": "integer"}},
        "required": ["cell"],
    },
    idempotent=True,
    external=False,
    timeout_s=5.0,
    announced=False,
)


class CalculatorEnvironment:
    """The memory cell is named by the first sum; its number, which only the tool tells, enters the
    second.
    """

    def __init__(self, task: Task) -> None:
        """Read the payload; raise ValueError when it is not of this package."""
        payload = payload_of(task.payload, "left", "right", "then", "number")
        self._terms = (int(payload["left"]), int(payload["right"]))
        self._then = int(payload["then"])
        self._number = int(payload["number"])
        self._key: int | None = None
        self._held = 0

    async def reset(self) -> Opening:
        """Ask for the cell."""
        question = Message(role="user", content=_PROBLEM.format(*self._terms))
        return Opening(messages=(question,), tools=(_READ,))

    async def act(self, reply: Reply) -> Step:
        """Read the cell that the first reply names; end with the second."""
        if not reply.ended_by_itself:
            return self._done(StopCause.BUDGET_TRUNCATION, "the turn's token budget is spent")
        if self._key is not None:
            return self._done(StopCause.POLICY_STOP, "")
        key = last_integer(reply.text)
        if key is None:
            return self._done(StopCause.INVALID_ACTION, "the reply names no memory cell")
        self._key = key
        arguments = canonical({"cell": self._key})
        return CallTools(calls=(ToolCall(id="read", name=_READ.name, arguments=arguments),))

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:
        """Read a cell; nothing outlives the call, so it may run again."""
        del key, attempt
        try:
            wanted = int(str(arguments_of(call)["cell"]))
        except (ValueError, KeyError):
            return ToolOutput(output="no such cell", exit_class=ToolExit.TOOL_ERROR)
        return ToolOutput(output=str(cell(self._number, wanted)))

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:
        """Know of no call: the calculator keeps no log."""
        del call, key, attempt
        return None

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:
        """Tell what the cell holds, and ask for the sum."""
        self._held = int(outputs[0].output)
        text = f"Memory {self._key} holds {self._held}. {_PROBLEM.format(self._held, self._then)}"
        return Continue(messages=(Message(role="user", content=text),))

    async def close(self) -> None:
        """Hold nothing."""

    def _done(self, cause: StopCause, detail: str) -> Done:
        read = {} if self._key is None else {"key": self._key, "held": self._held}
        return Done(cause=cause, artifact=read, detail=detail)
