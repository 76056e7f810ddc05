"""The canary: a restored learner that is not the saved one never trains on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from learner.core.canary import Card, Surroundings, Trial, differences
from schemas.errors import SettingsError
from tests.support.fake_ranks import FakeRanks
from tests.support.learner_runs import LearnerWorld

TRIALS = tuple(
    Trial(
        name=f"arithmetic/{index}",
        digests={"template": "t", "tool schema": "s", "verifier": "v"},
        prompt=(1, 2, index),
        protocol='{"tools":[{"name":"add","type":"function"}]}',
        rewards=(1.0, 0.0),
    )
    for index in range(8)
)
TOLD = Surroundings(facts={"mixture": "one", "verifier of arithmetic": "v"}, trials=TRIALS)


def changed(**values: object) -> tuple[Trial, ...]:
    """One trial of eight with a corruption."""
    return (*TRIALS[:3], replace(TRIALS[3], **values), *TRIALS[4:])  # type: ignore[arg-type]  # fields of Trial


CORRUPTIONS: dict[str, tuple[tuple[Trial, ...], str]] = {
    "a byte of the template": (changed(prompt=(1, 2, 4)), "ids of its prompt differ at 2"),
    "a field of the tool schema": (
        changed(protocol='{"tools":[{"name":"ada","type":"function"}]}'),
        "bytes of its tool protocol differ at 21",
    ),
    "a verifier version": (
        changed(digests={"template": "t", "tool schema": "s", "verifier": "w"}),
        "verifier was v, is w",
    ),
    "a verifier's verdict": (changed(rewards=(1.0, None)), "rewards were"),
    "too few tasks": (TRIALS[:7], "at least 8"),
}


async def checkpointed(root: Path) -> LearnerWorld:
    world = LearnerWorld(root, steps=0)
    world.observe = lambda: TOLD
    world.admit(8)
    await world.learn(lambda: len(world.events("checkpointed")) >= 1)
    return world


async def test_nothing_runs_beside_the_import_of_the_engines_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two threads in one import of transformers: one of them got the unfinished module.
    loaded: list[bool] = []

    async def load(_ranks: FakeRanks) -> None:
        await asyncio.sleep(0.1)
        loaded.append(True)

    def observe() -> Surroundings:
        assert loaded, "the canary's thread opens a tokenizer"
        return TOLD

    monkeypatch.setattr(FakeRanks, "load", load)
    world = LearnerWorld(tmp_path, steps=0)
    world.observe = observe
    world.admit(8)
    await world.learn(lambda: len(world.events("checkpointed")) >= 1)
    await world.learn(lambda: len(world.events("restored")) >= 2)
    assert len(loaded) == 2


async def test_an_unchanged_learner_passes_and_the_record_says_so(tmp_path: Path) -> None:
    world = await checkpointed(tmp_path)
    await world.learn(lambda: len(world.events("restored")) >= 2)
    first, second = world.events("restored")
    assert first.canary == ""
    assert second.canary.startswith("passed: 8 tasks, logits within 0 of 0.001")


@pytest.mark.parametrize("corruption", CORRUPTIONS)
async def test_whatever_changed_around_the_learner_is_refused_before_it_trains(
    tmp_path: Path, corruption: str
) -> None:
    world = await checkpointed(tmp_path)
    trials, named = CORRUPTIONS[corruption]
    world.observe = lambda: replace(TOLD, trials=trials)
    before = len(world.events("step"))
    with pytest.raises(SettingsError, match=named):
        await world.learn(lambda: False)
    assert len(world.events("restored")) == 1
    assert len(world.events("step")) == before


@pytest.mark.parametrize("at", [0, 7])
async def test_one_corrupted_tensor_is_refused_by_its_logits(tmp_path: Path, at: int) -> None:
    world = await checkpointed(tmp_path)
    load = _spoiling_load(at)
    with pytest.raises(SettingsError, match="logits differ by"):
        await world.learn(lambda: False, after_load=load)
    assert len(world.events("restored")) == 1


def _spoiling_load(at: int) -> Callable[[np.ndarray], None]:
    def spoil(weights: np.ndarray) -> None:
        weights[at] += 0.01

    return spoil


async def test_a_changed_fact_is_refused_by_name_before_the_weights_are_loaded(
    tmp_path: Path,
) -> None:
    world = await checkpointed(tmp_path)
    world.observe = lambda: replace(TOLD, facts={**TOLD.facts, "mixture": "another"})
    with pytest.raises(SettingsError, match="made with mixture 'one', this learner has 'another'"):
        await world.learn(lambda: False)


async def test_a_checkpoint_without_a_card_is_refused_unless_the_canary_is_off(
    tmp_path: Path,
) -> None:
    world = LearnerWorld(tmp_path, steps=0)
    world.observe = lambda: replace(TOLD, trials=())
    world.admit(8)
    await world.learn(lambda: len(world.events("checkpointed")) >= 1)
    world.observe = lambda: TOLD
    with pytest.raises(SettingsError, match="holds no canary"):
        await world.learn(lambda: False)
    await world.learn(lambda: len(world.events("restored")) >= 2, canary=False)
    assert "off" in world.events("restored")[-1].canary


async def test_a_rubric_that_hangs_refuses_the_start_within_its_bound(tmp_path: Path) -> None:
    world = LearnerWorld(tmp_path, steps=0)
    released = threading.Event()

    def hang() -> Surroundings:
        released.wait(10)
        return TOLD

    world.observe = hang
    with pytest.raises(SettingsError, match=r"not made within 0\.05 s"):
        await world.learn(lambda: False, canary_s=0.05)
    released.set()


def card(logits: list[float]) -> Card:
    return Card(trials=TRIALS, logits_KV=np.array([logits] * 8, dtype=np.float32))


def test_the_tolerance_is_inclusive_and_what_is_no_number_never_passes() -> None:
    assert differences(card([0.0, 1.0]), card([0.0, 1.5]), tolerance=0.5) == ()
    assert len(differences(card([0.0, 1.0]), card([0.0, 1.75]), tolerance=0.5)) == 8
    assert differences(card([0.0, 1.0]), card([0.0, float("nan")]), tolerance=0.5)
    assert differences(card([0.0]), card([0.0, 1.0]), tolerance=0.5)


def test_the_order_of_the_trials_does_not_matter() -> None:
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    first = Card(trials=TRIALS, logits_KV=values)
    second = Card(trials=TRIALS[::-1], logits_KV=values[::-1])
    assert differences(first, second, tolerance=0.0) == ()
