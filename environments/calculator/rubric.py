"""Half the reward for the right cell, half for the right sum with what that cell holds."""

from __future__ import annotations

from environments.calculator.memory import cell
from environments.package import payload_of
from environments.ports import Judgement, Submission
from environments.transcripts import last_integer, last_reply
from schemas.enums import StopCause, VerdictCode
from schemas.records.task import Task

_WEIGHTS = {"cell": 0.5, "sum": 0.5}


class CalculatorRubric:
    """The sum counts only after a call: without the tool nobody knows the cell's number."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Judge the cell read and the last reply."""
        payload = payload_of(task.payload, "left", "right", "then", "number")
        right_key = int(payload["left"]) + int(payload["right"])
        key = submission.artifact.get("key")
        if not isinstance(key, int):
            return _scored(VerdictCode.INVALID_FORMAT, 0.0, 0.0, "no memory cell was read")
        read = float(key == right_key)
        answer = cell(int(payload["number"]), key) + int(payload["then"])
        found = last_integer(last_reply(submission.transcript))
        ended = submission.stop_cause is StopCause.POLICY_STOP
        right = float(ended and found == answer)
        code = VerdictCode.CORRECT if read and right else VerdictCode.WRONG_ANSWER
        evidence = f"cell {key}, not {right_key}; " if not read else ""
        evidence += f"last integer {found}, expected {answer}"
        return _scored(code, read, right, evidence)


def _scored(code: VerdictCode, read: float, right: float, evidence: str) -> Judgement:
    return Judgement(
        code=code, components={"cell": read, "sum": right}, weights=_WEIGHTS, evidence=evidence
    )
