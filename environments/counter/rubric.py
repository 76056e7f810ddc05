"""Reward 1 if the counter went up by one with every call."""

from __future__ import annotations

import time

from environments.package import payload_of
from environments.ports import Judgement, Submission
from schemas.enums import StopCause, VerdictCode
from schemas.records.task import Task


class CounterRubric:
    """Compares the values seen with 1, 2, ... up to the number of calls."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Judge the artifact."""
        payload = payload_of(task.payload, "calls")
        calls = int(payload["calls"])
        # A judge that takes its time, for what is measured of slow ones.
        time.sleep(float(payload.get("judge_delay_s", 0.0)))
        values = list(submission.artifact.get("values", ()))
        if submission.stop_cause is StopCause.BUDGET_TRUNCATION or len(values) < calls:
            score, code = 0.0, VerdictCode.WRONG_ANSWER
        else:
            score = float(values == list(range(1, calls + 1)))
            code = VerdictCode.CORRECT if score else VerdictCode.WRONG_ANSWER
        return Judgement(code=code, components={"counted": score}, evidence=f"values {values}")
