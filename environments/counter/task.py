"""The counter task: each turn calls a tool with an effect outside, whatever the policy writes.

It serves crash campaigns: at the end every key of the store must have exactly one execution, and
the values an episode saw must be 1, 2, 3 and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.counter.environment import CounterEnvironment
from environments.counter.rubric import CounterRubric
from environments.package import Folder, settings_of
from environments.ports import Defaults, Environment, Gold, Json, Submission, canonical
from schemas.records.task import Task

_KNOWN = {"calls": 3, "delay_s": 0.0, "asks_by_key": True, "path": "", "judge_delay_s": 0.0}


class CounterPackage(Folder):
    """Config: `calls` per episode, `delay_s` inside the tool, `asks_by_key`, `path` of the
    store, `judge_delay_s` that judging takes.
    """

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the payload."""
        return canonical(settings_of(self.name, config, _KNOWN) | {"number": seed + index})

    def environment(self, task: Task) -> Environment:
        """Return the environment."""
        return CounterEnvironment(task)

    def gold(self) -> Sequence[Gold]:
        """Values that a counter hit once per call shows, and those of one that was hit twice."""
        right = Submission(transcript=(), artifact={"values": [1, 2, 3]})
        wrong = Submission(transcript=(), artifact={"values": [1, 3, 4]})
        return [Gold(payload=self.payload(None, 0, 0), right=right, wrong=wrong)]


PACKAGE = CounterPackage(
    name="counter",
    path=Path(__file__).resolve().parent,
    defaults=Defaults(
        tokens_max=512, turn_tokens_max=64, turns_max=16, seconds_max=600.0, temperature=1.0
    ),
    rubric=CounterRubric(),
)
