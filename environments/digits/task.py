"""The digits task: the more of its characters belong to the class asked for, the better the
reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.digits.environment import DigitsEnvironment
from environments.digits.rubric import CLASSES, DigitsRubric
from environments.package import Folder, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Message, Submission, canonical
from schemas.errors import SettingsError
from schemas.records.task import Task

_KNOWN = {"characters": "digits", "prompts": 4}


class DigitsPackage(Folder):
    """Replies made of one class of characters; config: `characters` (a class), `prompts` (how
    many).
    """

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload; raise SettingsError for an unknown class."""
        settings = settings_of(self.name, config, _KNOWN)
        if settings["characters"] not in CLASSES:
            raise SettingsError(
                f"no character class {settings['characters']!r}",
                hint=f"known classes: {', '.join(CLASSES)}",
            )
        variant = (seed + index) % max(1, settings["prompts"])
        question = f"Write {settings['characters']} {variant}:"
        return canonical({"characters": settings["characters"], "question": question})

    def environment(self, task: Task) -> Environment:
        """Return the one-turn environment."""
        return DigitsEnvironment(task)

    def gold(self) -> Sequence[Gold]:
        """All characters right, and none."""
        right = Submission(transcript=(Message(role="assistant", content="0123"),))
        wrong = Submission(transcript=(Message(role="assistant", content="abcd"),))
        return [Gold(payload=self.payload(None, 0, 0), right=right, wrong=wrong)]


PACKAGE = DigitsPackage(
    name="digits",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(tokens_max=16, turn_tokens_max=16, temperature=1.0),
    rubric=DigitsRubric(),
)
