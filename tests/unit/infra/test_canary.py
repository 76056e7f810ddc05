"""The canary's fixed tasks: the same twice, and never those of training or evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from environments import registry
from inference.tokenizer import ByteTokenizer
from infra import canary
from learner.core.canary import TRIALS_MIN, Card, Surroundings, differences
from schemas.ids import RunId
from stream_jobs.core.mixture import Draw, Mixture
from stream_jobs.settings import TaskSourceSettings

RUN = RunId("0198c0de-0000-7000-8000-000000000001")
SOURCE = TaskSourceSettings.model_validate(
    {"seed": 3, "streams": [{"environment": "digits"}, {"environment": "calculator", "weight": 2}]}
)


def observe(source: TaskSourceSettings = SOURCE) -> Surroundings:
    return canary.observe(source, ByteTokenizer(), RUN)


def told_apart(before: Surroundings, after: Surroundings) -> tuple[str, ...]:
    logits = np.zeros((len(before.trials), 4), dtype=np.float32)
    first = Card(trials=before.trials, logits_KV=logits)
    return differences(first, Card(trials=after.trials, logits_KV=logits), tolerance=0.0)


def test_there_are_enough_tasks_of_every_component_and_they_are_the_same_twice() -> None:
    found = observe()
    assert len(found.trials) >= TRIALS_MIN
    assert {trial.name.split("/")[0] for trial in found.trials} == {"digits", "calculator"}
    assert found == observe()
    assert all(trial.rewards == (1.0, 0.0) for trial in found.trials)


def test_its_tasks_are_neither_trained_nor_held_out() -> None:
    end = SOURCE.held_out_first + SOURCE.held_out_count
    assert all(int(trial.name.split("/")[1]) >= end for trial in observe().trials)


class OtherTemplate(ByteTokenizer):
    """One byte of the template is another."""

    def render(self, messages, *, tools=None, generate=False):  # type: ignore[no-untyped-def]  # as its parent's
        return super().render(messages, tools=tools, generate=generate).replace("user", "usex", 1)


def test_a_byte_of_the_template_a_field_of_a_tool_and_a_rubric_are_each_told_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = observe()
    other = canary.observe(SOURCE, OtherTemplate(), RUN)
    assert any("ids of its prompt" in line for line in told_apart(before, other))

    package = registry.load("calculator")
    with monkeypatch.context() as patch:
        import environments.calculator.environment as module

        patch.setattr(module, "_READ", replace(module._READ, description="Another."))
        assert any("tool protocol" in line for line in told_apart(before, observe()))
    with monkeypatch.context() as patch:
        patch.setattr(type(package), "verifier_digest", lambda self: f"new {self.name}")
        changed = observe()
        assert any("verifier was" in line for line in told_apart(before, changed))
        assert changed.facts["verifier of calculator"] != before.facts["verifier of calculator"]


def test_the_held_out_set_and_the_mixture_are_fixed_by_what_decides_them() -> None:
    facts = observe().facts
    moved = observe(SOURCE.model_copy(update={"held_out_count": 65})).facts
    assert facts["held-out set of digits"] != moved["held-out set of digits"]
    assert facts["mixture"] != moved["mixture"]
    ahead = observe(SOURCE.model_copy(update={"look_ahead_tasks": 65})).facts
    assert facts == ahead


def test_the_next_thousand_tasks_follow_from_the_mixture_that_a_checkpoint_keeps() -> None:
    source = SOURCE.model_copy(update={"evaluate_every": 7})
    kept = TaskSourceSettings.model_validate_json(observe(source).facts["mixture"])
    issued_end = 56

    def drawn(settings: TaskSourceSettings) -> list[Draw]:
        mixture = Mixture(
            weights=tuple(stream.weight for stream in settings.streams),
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            held_out_first=settings.held_out_first,
            held_out_count=settings.held_out_count,
        )
        return [mixture.at(ordinal) for ordinal in range(issued_end, issued_end + 1000)]

    assert drawn(kept) == drawn(source)
