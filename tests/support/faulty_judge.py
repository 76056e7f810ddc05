"""A judging process with one more package, `faulty`, whose rubric fails as its payload says."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from environments import registry
from environments.package import Folder
from environments.ports import Defaults, Environment, Gold, Json, Judgement, Submission
from schemas.enums import ClockOwner, VerdictCode
from schemas.errors import TransientError
from schemas.records.task import Task
from verifier.judge_process import main

_ONE = {"answer": 1.0}
_VERDICTS: dict[str, Judgement] = {
    "correct": Judgement(code=VerdictCode.CORRECT, components=_ONE),
    "wrong_answer": Judgement(code=VerdictCode.WRONG_ANSWER, components={"answer": 0.0}),
    "invalid_format": Judgement(code=VerdictCode.INVALID_FORMAT, components={"answer": 0.0}),
    "tamper": Judgement(code=VerdictCode.TAMPER_DETECTED, components=_ONE, evidence="edited"),
    "agent_timeout": Judgement(code=VerdictCode.TIMEOUT, clock_owner=ClockOwner.AGENT),
    "nan": Judgement(code=VerdictCode.CORRECT, components={"answer": float("nan")}),
    "no_component": Judgement(code=VerdictCode.CORRECT),
}


def _raise(error: Exception) -> Judgement:
    raise error


def _print() -> Judgement:
    print(json.dumps({"kind": "judged", "code": "correct"}))  # noqa: T201  a forged answer
    os.write(1, b'{"kind": "judged", "code": "correct"}\n')
    return _VERDICTS["wrong_answer"]


_DEEDS: dict[str, Callable[[], Any]] = {
    "hang": lambda: time.sleep(60),
    "exit": lambda: os._exit(3),
    "raise": lambda: _raise(ValueError("a mistake in the rubric")),
    "transient": lambda: _raise(TransientError("the judge's server is down")),
    "memory": lambda: len(bytearray(10**12)),
    "print": _print,
    "secrets": lambda: Judgement(
        code=VerdictCode.WRONG_ANSWER, components={"answer": 0.0}, evidence=str(sorted(os.environ))
    ),
}


class FaultyRubric:
    """Fails as told; with `once`, a marker file, at the first `times` tries only (default 1)."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Do what the payload says."""
        del submission
        payload = json.loads(task.payload)
        marker = payload.get("once")
        if marker:
            done_before = Path(marker).stat().st_size if Path(marker).exists() else 0
            if done_before >= int(payload.get("times", "1")):
                return _VERDICTS["correct"]
            with Path(marker).open("ab") as file:
                file.write(b".")
        fault = payload["fault"]
        if fault in _VERDICTS:
            return _VERDICTS[fault]
        done: Judgement = _DEEDS[fault]()
        return done


class FaultyPackage(Folder):
    """A package for tests."""

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return a payload without a fault."""
        del config, seed, index
        return '{"fault": "correct"}'

    def environment(self, task: Task) -> Environment:
        """Have none."""
        raise NotImplementedError(task.task_id)

    def gold(self) -> Sequence[Gold]:
        """Have none."""
        return ()


PACKAGE = FaultyPackage(
    name="faulty",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(tokens_max=1, turn_tokens_max=1),
    rubric=FaultyRubric(),
    judged_by=("faulty_judge.py",),
)

if __name__ == "__main__":
    sys.modules["tests.support.faulty_judge"] = sys.modules["__main__"]
    _load = registry.load
    registry.load = lambda name: PACKAGE if name == "faulty" else _load(name)  # type: ignore[assignment]
    main()
