"""Group-relative advantages, and the arithmetic of a step."""

from __future__ import annotations

import statistics

import pytest

from learner.core.advantage import Scaling, group_advantage
from learner.core.flops import Shape, step_operations, utilisation
from schemas.errors import InvariantError


def of_group(rewards: list[float], reward: float, scaling: Scaling = Scaling.NONE) -> float:
    return group_advantage(
        reward,
        mean=statistics.fmean(rewards),
        deviation=statistics.pstdev(rewards),
        count=len(rewards),
        group_size=4,
        scaling=scaling,
    )


def test_an_advantage_is_the_reward_less_the_mean_of_its_group() -> None:
    assert of_group([1.0, 0.0, 0.0, 0.0], 1.0) == 0.75
    assert of_group([1.0, 0.0, 0.0, 0.0], 0.0) == -0.25


def test_division_by_the_deviation_gives_unit_spread() -> None:
    assert of_group([1.0, 0.0], 1.0, Scaling.DEVIATION) == pytest.approx(1.0, abs=1e-5)


def test_a_group_that_agrees_has_an_advantage_of_exactly_zero() -> None:
    assert of_group([0.1, 0.1, 0.1], 0.1) == 0.0
    assert of_group([1.0], 1.0) == 0.0


def test_a_task_rolled_out_once_is_measured_against_its_declared_baseline() -> None:
    found = group_advantage(
        1.0, mean=1.0, deviation=0.0, count=1, group_size=1, single_baseline=0.25
    )
    assert found == 0.75


def test_statistics_without_a_rewarded_member_are_refused() -> None:
    with pytest.raises(InvariantError):
        group_advantage(1.0, mean=0.0, deviation=0.0, count=0, group_size=4)


def test_the_arithmetic_of_a_step_is_that_of_a_hand_worked_model() -> None:
    shape = Shape(parameters=1_000, layers=2, width=8)
    # 10 tokens; weights: 2 * 1,000 each; attention over 5 positions: 4 * 2 * 8 * 5; thrice in all.
    assert step_operations(shape, tokens=10, row_tokens=5) == 3 * 10 * (2_000 + 320)
    assert utilisation(69_600, seconds=2.0, peak_per_s=69_600) == 0.5
    assert utilisation(69_600, seconds=2.0, peak_per_s=0.0) == 0.0
