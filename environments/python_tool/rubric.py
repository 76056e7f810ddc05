"""Reward 1 if the last integer of the last reply is the digit sum."""

from __future__ import annotations

from environments.package import payload_of
from environments.ports import Judgement, Submission
from environments.transcripts import last_integer, last_reply
from schemas.enums import StopCause, VerdictCode
from schemas.records.task import Task

_EXPONENT_MAX = 10_000


class PythonRubric:
    """Computes the digit sum itself; nothing that the sandbox wrote is believed."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Judge the last reply; raise ValueError when the payload is not of this package."""
        payload = payload_of(task.payload, "base", "exponent")
        exponent = int(payload["exponent"])
        if not 0 <= exponent <= _EXPONENT_MAX:
            raise ValueError(f"exponent {exponent} is outside 0 to {_EXPONENT_MAX}")
        right = sum(int(digit) for digit in str(int(payload["base"]) ** exponent))
        found = last_integer(last_reply(submission.transcript))
        if submission.stop_cause is StopCause.BUDGET_TRUNCATION:
            return _scored(VerdictCode.WRONG_ANSWER, 0.0, "the episode ran out of budget")
        if found is None:
            return _scored(VerdictCode.INVALID_FORMAT, 0.0, "the answer holds no integer")
        if found == right:
            return _scored(VerdictCode.CORRECT, 1.0, f"last integer {found}")
        return _scored(VerdictCode.WRONG_ANSWER, 0.0, f"last integer {found}, not {right}")


def _scored(code: VerdictCode, value: float, evidence: str) -> Judgement:
    return Judgement(code=code, components={"answer": value}, evidence=evidence)
