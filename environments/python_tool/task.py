"""The python task: questions about large numbers that a model cannot answer without running
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.package import Folder, chance, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Message, Submission, canonical
from environments.python_tool.environment import PythonEnvironment
from environments.python_tool.rubric import PythonRubric
from schemas.records.task import Task

_KNOWN = {"exponent_max": 200, "wall_s": 10.0, "memory_mib": 256}


class PythonPackage(Folder):
    """Digit sums of powers; config: `exponent_max`, and the sandbox's `wall_s` and `memory_mib`."""

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload of one question."""
        settings = settings_of(self.name, config, _KNOWN)
        draw = chance(self.name, seed, index)
        base, exponent = draw.randint(2, 9), draw.randint(20, max(20, settings["exponent_max"]))
        return canonical(
            {
                "base": base,
                "exponent": exponent,
                "question": f"What is the sum of the decimal digits of {base}**{exponent}?",
                "wall_s": settings["wall_s"],
                "memory_mib": settings["memory_mib"],
            }
        )

    def environment(self, task: Task) -> Environment:
        """Return the environment with its sandbox."""
        return PythonEnvironment(task)

    def gold(self) -> Sequence[Gold]:
        """The digit sum of 2**20 = 1048576, and a neighbour."""
        payload = canonical(
            {"base": 2, "exponent": 20, "question": "?", "wall_s": 1.0, "memory_mib": 64}
        )
        right = Message(role="assistant", content="The answer is 31.")
        wrong = Message(role="assistant", content="The answer is 32.")
        return [
            Gold(
                payload=payload,
                right=Submission(transcript=(right,)),
                wrong=Submission(transcript=(wrong,)),
            )
        ]


PACKAGE = PythonPackage(
    name="python_tool",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(
        tokens_max=1024, turn_tokens_max=256, turns_max=6, seconds_max=300.0, temperature=0.7
    ),
    rubric=PythonRubric(),
)
