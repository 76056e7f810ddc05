"""The calculator task: compute which memory cell to read, read it with a tool, compute with it.

Both questions have the wording of the arithmetic task, so that a model of 100 million parameters
gets some of them right from the start, and a call is any reply with an integer in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.calculator.environment import CalculatorEnvironment
from environments.calculator.memory import cell
from environments.calculator.rubric import CalculatorRubric
from environments.package import Folder, chance, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Message, Submission, canonical
from schemas.records.task import Task

_KNOWN = {"term_max": 9}


class CalculatorPackage(Folder):
    """Two sums of one-digit terms with a tool call between; config: `term_max`, at most 9."""

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload of one task."""
        term_max = max(1, min(9, settings_of(self.name, config, _KNOWN)["term_max"]))
        draw = chance(self.name, seed, index)
        return canonical(
            {
                "left": draw.randint(1, term_max),
                "right": draw.randint(1, term_max),
                "then": draw.randint(1, term_max),
                "number": draw.getrandbits(31),
            }
        )

    def environment(self, task: Task) -> Environment:
        """Return the environment with its calculator."""
        return CalculatorEnvironment(task)

    def gold(self) -> Sequence[Gold]:
        """The right cell and the right sum; a wrong cell and a wrong sum."""
        payload = canonical({"left": 2, "right": 3, "then": 4, "number": 7})
        return [
            Gold(payload=payload, right=_submission(5, 4), wrong=_submission(6, 5)),
        ]


def _submission(key: int, then: int) -> Submission:
    held = cell(7, key)
    reply = Message(role="assistant", content=f"{held} + 4 = {held + then}")
    return Submission(transcript=(reply,), artifact={"key": key, "held": held})


PACKAGE = CalculatorPackage(
    name="calculator",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(tokens_max=48, turn_tokens_max=24, turns_max=2, temperature=0.7),
    rubric=CalculatorRubric(),
    judged_by=("rubric.py", "memory.py"),
)
