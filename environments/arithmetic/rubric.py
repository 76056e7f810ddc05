"""Reward 1 only if the answer ended by itself and its last integer is right."""

from __future__ import annotations

import re

from environments.package import payload_of
from environments.ports import Judgement, Submission
from environments.transcripts import last_integer, last_reply
from schemas.enums import StopCause, VerdictCode
from schemas.records.task import Task

_EXPRESSION = re.compile(r"-?\d+(?: [+*-] \d+)*")


class ArithmeticRubric:
    """Compares the last integer of the reply with the value of the expression."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Judge the last reply; raise ValueError when the payload holds no expression."""
        right = value_of(str(payload_of(task.payload, "expression")["expression"]))
        text = last_reply(submission.transcript)
        found = last_integer(text)
        if submission.stop_cause is StopCause.BUDGET_TRUNCATION:
            return _scored(VerdictCode.WRONG_ANSWER, 0.0, "the answer was cut off")
        if found is None:
            return _scored(VerdictCode.INVALID_FORMAT, 0.0, "the answer holds no integer")
        if found == right:
            return _scored(VerdictCode.CORRECT, 1.0, f"last integer {found}")
        return _scored(VerdictCode.WRONG_ANSWER, 0.0, f"last integer {found}, not {right}")


def _scored(code: VerdictCode, value: float, evidence: str) -> Judgement:
    return Judgement(code=code, components={"answer": value}, evidence=evidence)


def value_of(expression: str) -> int:
    """Return the value of integers joined by `+`, `-` and `*`; raise ValueError for anything
    else.
    """
    if not _EXPRESSION.fullmatch(expression):
        raise ValueError(f"not an expression of this task: {expression!r}")
    first, *rest = expression.split(" ")
    terms = [int(first)]
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        match operator:
            case "*":
                terms[-1] *= int(number)
            case "+":
                terms.append(int(number))
            case _:
                terms.append(-int(number))
    return sum(terms)
