"""The arithmetic task: chain_sum and products with two one-digit terms, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from environments.arithmetic.environment import ArithmeticEnvironment
from environments.arithmetic.rubric import ArithmeticRubric
from environments.package import Folder, seed_of, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Message, Submission, canonical
from schemas.errors import SettingsError
from schemas.records.task import Task

DATASETS = ("chain_sum", "products")
_SHAPE = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
_KNOWN = {"datasets": list(DATASETS)}
_SIZE = 2**31 - 1
"""The generators draw each item from its own seed; the size only bounds the index."""


@cache
def _dataset(name: str, seed: int) -> Any:
    # The import takes seconds, and only the task source needs it: the rubric reads the expression.
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=_SIZE, **_SHAPE)


class ArithmeticPackage(Folder):
    """Sums and products of two digits; config: `datasets`, a list of names drawn in turn."""

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload; raise SettingsError for a dataset it does not know."""
        names = settings_of(self.name, config, _KNOWN)["datasets"]
        strange = [name for name in names if name not in DATASETS]
        if strange or not names:
            raise SettingsError(
                f"arithmetic has no dataset {strange[0] if strange else ''!r}",
                hint=f"known datasets: {', '.join(DATASETS)}; others: task reasoning_gym_any",
            )
        name = names[index % len(names)]
        item = _dataset(name, seed_of(seed))[index // len(names)]
        return canonical(
            {
                "dataset": name,
                "question": item["question"],
                "expression": item["metadata"]["expression"],
            }
        )

    def environment(self, task: Task) -> Environment:
        """Return the one-turn environment."""
        return ArithmeticEnvironment(task)

    def gold(self) -> Sequence[Gold]:
        """A sum and a product, each with its answer and another number."""
        found = []
        for name, expression, answer in (("chain_sum", "6 - 8", "-2"), ("products", "6 * 7", "42")):
            payload = canonical(
                {"dataset": name, "question": f"{expression} =", "expression": expression}
            )
            right = Message(role="assistant", content=f"{expression} = {answer}")
            wrong = Message(role="assistant", content=f"{expression} = {answer}1")
            found.append(
                Gold(
                    payload=payload,
                    right=Submission(transcript=(right,)),
                    wrong=Submission(transcript=(wrong,)),
                )
            )
        return found


PACKAGE = ArithmeticPackage(
    name="arithmetic",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(tokens_max=24, turn_tokens_max=24, temperature=0.7),
    rubric=ArithmeticRubric(),
)
