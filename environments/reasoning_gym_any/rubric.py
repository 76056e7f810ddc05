"""Scores with the dataset's own `score_answer`; the item is made again from seed and index."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from environments.package import payload_of
from environments.ports import Json, Judgement, Submission, canonical
from environments.transcripts import last_reply
from schemas.enums import StopCause, VerdictCode
from schemas.records.task import Task

_SIZE = 1_000_000


@lru_cache(maxsize=64)
def _dataset(name: str, config: str, seed: int) -> Any:
    import json

    # The import takes seconds; `DatasetPackage.warm` does it before any clock counts.
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=_SIZE, **json.loads(config))


def dataset(source: Json) -> Any:
    """Return the dataset that a payload names; raise what reasoning-gym raises for a wrong one."""
    return _dataset(source["dataset"], canonical(source["dataset_config"]), source["seed"])


def _last(pattern: str) -> Callable[[str], str]:
    compiled = re.compile(pattern, re.DOTALL)

    def extract(text: str) -> str:
        found = compiled.findall(text)
        return str(found[-1]).strip() if found else ""

    return extract


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


EXTRACTS: Mapping[str, Callable[[str], str]] = {
    "whole": str.strip,
    "last_line": _last_line,
    "last_integer": _last(r"-?\d+"),
    "answer_tag": _last(r"<answer>(.*?)</answer>"),
}
"""How the answer is read out of a reply, by name; empty when there is none."""


class DatasetRubric:
    """Graded as the dataset grades; `correct` at a full score."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Judge the last reply."""
        source = payload_of(task.payload, "dataset", "dataset_config", "seed", "index", "extract")
        answer = EXTRACTS[source["extract"]](last_reply(submission.transcript))
        if submission.stop_cause is StopCause.BUDGET_TRUNCATION:
            return _scored(VerdictCode.WRONG_ANSWER, 0.0, "the answer was cut off")
        if not answer:
            return _scored(VerdictCode.INVALID_FORMAT, 0.0, "no answer found")
        data = dataset(source)
        score = float(data.score_answer(answer, data[source["index"]]))
        code = VerdictCode.CORRECT if score >= 1.0 else VerdictCode.WRONG_ANSWER
        return _scored(code, min(1.0, max(0.0, score)), f"answer {answer[:200]!r}")


def _scored(code: VerdictCode, value: float, evidence: str) -> Judgement:
    return Judgement(code=code, components={"score": value}, evidence=evidence)
