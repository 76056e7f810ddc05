"""Whether a restored learner is the one that was saved: fixed tasks tried before and after
(requirements R76).

A trial fixes what one task must come to: the ids of its prompt, what its tools look like and how a
call of them is read, what its rubric says of a right and of a wrong answer. A card adds the logits
that the weights give after each prompt. Two cards of the same learner are equal; each way in which
they differ is told by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TRIALS_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fixed task."""

    name: str
    """Component of the mixture and index of the task."""
    digests: Mapping[str, str]
    """What the task was made with: tokenizer, template, tool schema, environment, verifier."""
    prompt: tuple[int, ...]
    """Ids of the first request, as the gateway renders it."""
    protocol: str
    """The tools as the request lists them, and how a fixed reply is read into calls, as one JSON
    text.
    """
    rewards: tuple[float | None, ...]
    """What the rubric gives fixed submissions; None: no reward. Unit: reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the learner is told of the run around it: facts that must not change under a
    checkpoint, and the trials.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the trials came to with certain weights."""

    trials: tuple[Trial, ...]
    logits_KV: NDArray[np.float32]
    """After the last id of each prompt, its end given alone; K trials, V vocabulary."""


def differences(expected: Card, found: Card, *, tolerance: float) -> tuple[str, ...]:
    """Return in how far two cards differ, each difference named; nothing when they agree.

    `tolerance` bounds the largest absolute difference of two logits, inclusive.
    """
    if len(found.trials) < TRIALS_MIN:
        return (f"{len(found.trials)} tasks were tried, at least {TRIALS_MIN} must be",)
    before = {trial.name: trial for trial in expected.trials}
    after = {trial.name: trial for trial in found.trials}
    if before.keys() != after.keys():
        return (f"the fixed tasks were {sorted(before)} and are {sorted(after)}",)
    wrong: list[str] = []
    for name in sorted(before):
        wrong += _trial(before[name], after[name])
    return (*wrong, *_logits(expected, found, tolerance))


def _trial(before: Trial, after: Trial) -> list[str]:
    wrong = [
        f"{after.name}: {what} was {before.digests.get(what)}, is {after.digests.get(what)}"
        for what in sorted(before.digests.keys() | after.digests.keys())
        if before.digests.get(what) != after.digests.get(what)
    ]
    if before.prompt != after.prompt:
        wrong.append(
            f"{after.name}: the ids of its prompt differ {_at(before.prompt, after.prompt)}"
        )
    if before.protocol != after.protocol:
        where = _at(before.protocol.encode(), after.protocol.encode())
        wrong.append(f"{after.name}: the bytes of its tool protocol differ {where}")
    if before.rewards != after.rewards:
        wrong.append(f"{after.name}: the rewards were {before.rewards}, are {after.rewards}")
    return wrong


def _at(before: Sequence[int], after: Sequence[int]) -> str:
    shared = min(len(before), len(after))
    first = next((i for i in range(shared) if before[i] != after[i]), shared)
    return f"at {first} (lengths {len(before)} and {len(after)})"


def _logits(expected: Card, found: Card, tolerance: float) -> tuple[str, ...]:
    if expected.logits_KV.shape != found.logits_KV.shape:
        return (f"the logits had shape {expected.logits_KV.shape}, have {found.logits_KV.shape}",)
    apart_K = _apart(expected, found)
    # A comparison with NaN is never true, so the sound ones are asked for.
    bad = np.flatnonzero(~(apart_K <= tolerance))
    return tuple(
        f"{expected.trials[at].name}: the logits differ by {apart_K[at]:.3g}, {tolerance:g} is "
        "allowed"
        for at in bad
    )


def _apart(expected: Card, found: Card) -> NDArray[np.float64]:
    """Largest absolute difference by trial, in the order of the expected card."""
    places = {trial.name: at for at, trial in enumerate(found.trials)}
    found_KV = found.logits_KV[[places[trial.name] for trial in expected.trials]]
    apart_K: NDArray[np.float64] = np.abs(
        found_KV.astype(np.float64) - expected.logits_KV.astype(np.float64)
    ).max(axis=1)
    return apart_K


def largest(expected: Card, found: Card) -> float:
    """Return the largest absolute difference of two logits of cards that agree otherwise."""
    return float(_apart(expected, found).max(initial=0.0))
