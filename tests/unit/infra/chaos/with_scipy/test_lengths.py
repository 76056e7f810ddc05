"""Lengths under kills: equal laws pass, planted bias is found, and F10 fits restarts only."""

from __future__ import annotations

import random

import pytest
from scipy.stats import ks_2samp

from infra.chaos.lengths import (
    N_MIN,
    compare,
    judge,
    restart_weights,
    restarted,
    weighted,
)

HAZARD = 0.004


def law(seed: int, count: int = N_MIN) -> list[int]:
    """Lengths as the scripted engine draws them: log-normal, median 32, sigma 1."""
    chance = random.Random(seed)
    return [max(1, round(chance.lognormvariate(3.4657, 1.0))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_distance_and_p_are_those_of_scipy(seed: int) -> None:
    ours, theirs = law(seed, 400), [2 * one for one in law(seed + 100, 300)]
    found, known = compare(ours, theirs), ks_2samp(ours, theirs, method="asymp")
    assert found.d == pytest.approx(known.statistic)
    assert found.p == pytest.approx(known.pvalue, rel=0.5, abs=1e-4)


def test_two_runs_of_one_law_are_taken_for_the_same() -> None:
    verdict = judge(law(1), law(2), hazard=HAZARD, seed=0)
    assert verdict.kills.is_same
    assert verdict.restart_fit.is_same
    assert verdict.holds


def test_a_run_that_starts_interrupted_episodes_again_is_found_out() -> None:
    biased = restarted(law(3, 3 * N_MIN), HAZARD, chance=random.Random(1))[:N_MIN]
    verdict = judge(biased, law(2), hazard=HAZARD, seed=0)
    assert verdict.kills.p < 1e-6
    assert verdict.mean < verdict.mean_undisturbed
    assert not verdict.holds


def test_a_bias_of_one_episode_in_ten_is_found_out() -> None:
    lengths = law(4)
    chance = random.Random(2)
    # One in ten of the longer half is replaced by a short one.
    planted = [
        chance.randint(1, 16) if one > 32 and chance.random() < 0.2 else one for one in lengths
    ]
    assert not compare(planted, law(5)).is_same


def test_restarts_fit_the_predicted_tilt_and_no_other_hazard() -> None:
    whole = law(6, 3 * N_MIN)
    kept = restarted(whole, HAZARD, chance=random.Random(3))[:N_MIN]
    other = law(7)
    assert weighted(kept, other, restart_weights(other, HAZARD)).is_same
    assert not weighted(kept, other, restart_weights(other, HAZARD / 3)).is_same
    assert not compare(kept, other).is_same


def test_too_few_lengths_are_no_verdict() -> None:
    verdict = judge(law(1, 900), law(2, 900), hazard=HAZARD, seed=0)
    assert verdict.kills.is_same
    assert not verdict.holds


def test_nothing_and_a_certain_interruption_are_refused() -> None:
    with pytest.raises(ValueError, match="not empty"):
        compare([], [1.0])
    with pytest.raises(ValueError, match="nothing to keep"):
        restarted([1], 1.0, chance=random.Random(0))
