"""The adapter: a dataset of reasoning-gym becomes a task by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.package import Folder, seed_of, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Message, Submission, canonical
from environments.reasoning_gym_any.environment import QuestionEnvironment
from environments.reasoning_gym_any.rubric import EXTRACTS, DatasetRubric, dataset
from schemas.errors import SettingsError
from schemas.records.task import Task

_KNOWN = {"dataset": "chain_sum", "dataset_config": {}, "extract": "whole", "suffix": ""}


class DatasetPackage(Folder):
    """Config: `dataset`, `dataset_config`, `extract` (how the answer is read), `suffix` (of the
    question).
    """

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload; raise SettingsError for an unknown dataset or setting of it."""
        settings = settings_of(self.name, config, _KNOWN)
        if settings["extract"] not in EXTRACTS:
            raise SettingsError(
                f"no way {settings['extract']!r} to read an answer",
                hint=f"known ways: {', '.join(EXTRACTS)}",
            )
        source: dict[str, object] = {
            "dataset": settings["dataset"],
            "dataset_config": settings["dataset_config"],
            "seed": seed_of(seed),
            "index": index,
            "extract": settings["extract"],
        }
        try:
            item = dataset(source)[index]
        except (ValueError, TypeError, AssertionError) as error:
            raise SettingsError(
                f"reasoning-gym refuses dataset {settings['dataset']!r}: {error}",
                hint="see the list of datasets of reasoning-gym and their configurations",
            ) from error
        return canonical(source | {"question": item["question"] + settings["suffix"]})

    def environment(self, task: Task) -> Environment:
        """Return the one-turn environment."""
        return QuestionEnvironment(task)

    def warm(self) -> None:
        """Import reasoning-gym, which takes seconds."""
        import reasoning_gym  # noqa: F401  the import is the work

    def gold(self) -> Sequence[Gold]:
        """The dataset's own answer, and another text."""
        found = []
        for name in ("chain_sum", "letter_counting"):
            config = {"dataset": name, "extract": "last_line"}
            payload = self.payload(config, 7, 3)
            source: Json = {
                "dataset": name,
                "dataset_config": {},
                "seed": seed_of(7),
                "index": 3,
            }
            answer = str(dataset(source)[3]["answer"])
            right = Message(role="assistant", content=f"Let me see.\n{answer}")
            wrong = Message(role="assistant", content="I do not know.")
            found.append(
                Gold(
                    payload=payload,
                    right=Submission(transcript=(right,)),
                    wrong=Submission(transcript=(wrong,)),
                )
            )
        return found


PACKAGE = DatasetPackage(
    name="reasoning_gym_any",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(tokens_max=128, turn_tokens_max=128, temperature=0.7),
    rubric=DatasetRubric(),
)
