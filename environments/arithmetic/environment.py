"""The question alone as the only user message; the reply ends the episode."""

from __future__ import annotations

from environments.package import payload_of
from environments.ports import Done, Message, Opening, Reply, SingleTurn, Step
from schemas.enums import StopCause
from schemas.records.task import Task


class ArithmeticEnvironment(SingleTurn):
    """One question, one answer. A system line or solved examples make a small model worse."""

    def __init__(self, task: Task) -> None:
        """Read the payload; raise ValueError when it is not of this package."""
        self._question = str(payload_of(task.payload, "question", "expression")["question"])

    async def reset(self) -> Opening:
        """Ask."""
        return Opening(messages=(Message(role="user", content=self._question),))

    async def act(self, reply: Reply) -> Step:
        """End; an answer that did not end by itself is marked by its cause."""
        if reply.ended_by_itself:
            return Done(cause=StopCause.POLICY_STOP)
        return Done(cause=StopCause.BUDGET_TRUNCATION, detail="the turn's token budget is spent")
