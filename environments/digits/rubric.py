"""Reward: the share of the reply's characters that belong to the class asked for."""

from __future__ import annotations

import string
from collections.abc import Mapping

from environments.package import payload_of
from environments.ports import Judgement, Submission
from environments.transcripts import last_reply
from schemas.enums import VerdictCode
from schemas.records.task import Task

CLASSES: Mapping[str, frozenset[str]] = {
    "digits": frozenset(string.digits),
    "lowercase": frozenset(string.ascii_lowercase),
    "letters": frozenset(string.ascii_letters),
    "ascii": frozenset(string.printable),
}
"""Classes by name."""


class DigitsRubric:
    """Graded between 0 and 1; `correct` only when every character belongs."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Count the characters of the last reply."""
        wanted = CLASSES[payload_of(task.payload, "characters")["characters"]]
        text = last_reply(submission.transcript)
        if not text:
            return Judgement(
                code=VerdictCode.INVALID_FORMAT, components={"share": 0.0}, evidence="empty reply"
            )
        hits = sum(character in wanted for character in text)
        return Judgement(
            code=VerdictCode.CORRECT if hits == len(text) else VerdictCode.WRONG_ANSWER,
            components={"share": hits / len(text)},
            evidence=f"{hits} of {len(text)} characters belong",
        )
