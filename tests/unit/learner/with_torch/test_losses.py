"""The losses against their closed forms and the numeric oracles of the requirements (part 6)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.core.loss_registry import LOSSES, BoundLoss, LossInput, bind
from learner.core.losses import LossInputs, LossResult, global_mean
from schemas.errors import InvariantError, SettingsError

ALL = [
    ("dis", {}),
    ("ppo_clip", {}),
    ("ppo_clip", {"anchor": "old"}),
    ("cispo", {}),
    ("cispo", {"anchor": "old"}),
]


def inputs(
    logp: list[float],
    behaviour: list[float],
    advantage: list[float],
    mask: list[bool] | None = None,
    dtype: Any = torch.float64,
) -> LossInputs:
    logp_N = torch.tensor(logp, dtype=dtype, requires_grad=True)
    return LossInputs(
        logp_N=logp_N,
        behaviour_N=torch.tensor(behaviour, dtype=dtype),
        mask_N=torch.tensor([True] * len(logp) if mask is None else mask),
        advantage_N=torch.tensor(advantage, dtype=dtype),
        old_N=logp_N.detach().clone(),
    )


def gradient(loss: BoundLoss, given_inputs: LossInputs) -> tuple[LossResult, Tensor]:
    result = loss(given_inputs)
    (found,) = torch.autograd.grad(result.loss, given_inputs.logp_N)
    return result, found


def dis_by_hand(logp: float, behaviour: float, advantage: float, low: float, high: float) -> float:
    """The reference: the gradient of one token's DIS loss, in plain Python."""
    ratio = math.exp(logp - behaviour)
    return -advantage * ratio if low < ratio < high else 0.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_dis_gives_the_oracle_gradient_on_its_band(sign: float) -> None:
    ratios = [1.0, 2.0, 0.25, 0.2, 4.0]
    behaviour = [-3.0] * 5
    logp = [math.log(ratio) - 3.0 for ratio in ratios]
    result, found = gradient(bind("dis", {}), inputs(logp, behaviour, [sign] * 5))
    expected = torch.tensor([-0.2, -0.4, -0.05, 0.0, 0.0], dtype=torch.float64) * sign
    assert torch.allclose(found / 5, expected, atol=1e-6)
    assert result.kept_N.tolist() == [True, True, True, False, False]
    assert result.low_N.tolist() == [False, False, False, True, False]
    assert result.high_N.tolist() == [False, False, False, False, True]


def test_dis_rejects_both_bounds_in_float32_too() -> None:
    logp = [math.log(0.2) - 1.5, math.log(4.0) - 7.5]
    one = inputs(logp, [-1.5, -7.5], [1.0, -1.0], dtype=torch.float32)
    result = bind("dis", {})(one)
    assert result.kept_N.tolist() == [False, False]


def test_dis_does_not_differentiate_the_ratio_below_one_over_e() -> None:
    # Without the detach the coefficient at pi = 0.1 and rho = 1 would be -1.30 instead of +1.
    logp = math.log(0.1)
    result, found = gradient(bind("dis", {}), inputs([logp], [logp], [1.0]))
    assert found.item() == pytest.approx(-1.0, abs=1e-6)
    assert result.coefficient_N.item() == pytest.approx(1.0, abs=1e-6)
    assert (1.0 + logp) == pytest.approx(-1.30, abs=0.01)


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_on_policy_the_gradient_is_minus_the_advantage(
    name: str, parameters: dict[str, float | str]
) -> None:
    logp = [-0.1, -1.0, -2.3, -6.0]
    advantage = [1.0, -1.0, 0.5, -2.0]
    _, found = gradient(bind(name, parameters), inputs(logp, logp, advantage))
    assert torch.allclose(found, -torch.tensor(advantage, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize(("name", "parameters"), ALL)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_gradients_equal_the_coefficient_everywhere(
    name: str, parameters: dict[str, float | str], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 8))
    numbers = st.floats(-8.0, -0.01)
    logp = data.draw(st.lists(numbers, min_size=size, max_size=size))
    behaviour = data.draw(st.lists(numbers, min_size=size, max_size=size))
    advantage = data.draw(st.lists(st.floats(-3.0, 3.0), min_size=size, max_size=size))
    result, found = gradient(bind(name, parameters), inputs(logp, behaviour, advantage))
    assert torch.allclose(found, -result.coefficient_N, atol=1e-6)
    assert not bool((result.kept_N & (result.low_N | result.high_N)).any())


def test_dis_agrees_with_its_reference_on_a_thousand_random_tokens() -> None:
    generator = torch.Generator().manual_seed(7)
    logp = (-8.0 * torch.rand(1000, generator=generator, dtype=torch.float64)).tolist()
    behaviour = (-8.0 * torch.rand(1000, generator=generator, dtype=torch.float64)).tolist()
    advantage = torch.randn(1000, generator=generator, dtype=torch.float64).tolist()
    _, found = gradient(bind("dis", {"low": 0.7, "high": 6.0}), inputs(logp, behaviour, advantage))
    expected = [
        dis_by_hand(*token, 0.7, 6.0) for token in zip(logp, behaviour, advantage, strict=True)
    ]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_ppo_stops_the_gradient_only_where_the_clip_binds() -> None:
    ratios = [1.5, 0.5, 1.5, 0.5]
    advantage = [1.0, -1.0, -1.0, 1.0]
    logp = [math.log(ratio) - 4.0 for ratio in ratios]
    result, found = gradient(bind("ppo_clip", {}), inputs(logp, [-4.0] * 4, advantage))
    assert found.tolist() == pytest.approx([0.0, 0.0, 1.5, -0.5], abs=1e-6)
    assert result.high_N.tolist() == [True, False, False, False]
    assert result.low_N.tolist() == [False, True, False, False]


def test_cispo_keeps_every_token_with_a_clipped_weight() -> None:
    logp = [math.log(10.0) - 4.0, math.log(0.5) - 4.0]
    result, found = gradient(bind("cispo", {}), inputs(logp, [-4.0] * 2, [1.0, 1.0]))
    assert found.tolist() == pytest.approx([-5.0, -0.5], abs=1e-6)
    assert bool(result.kept_N.all())


@pytest.mark.parametrize(("name", "parameters"), ALL)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_positions_are_inert_whatever_they_hold(
    name: str, parameters: dict[str, float | str], poison: float
) -> None:
    loss = bind(name, parameters)
    clean, expected = gradient(loss, inputs([-1.0, -2.0], [-1.2, -1.5], [1.0, -1.0]))
    holed = inputs(
        [-1.0, poison, -2.0], [-1.2, poison, -1.5], [1.0, poison, -1.0], [True, False, True]
    )
    result, found = gradient(loss, holed)
    assert result.loss.item() == clean.loss.item()
    assert found.tolist() == [expected[0].item(), 0.0, expected[1].item()]
    assert torch.isfinite(result.coefficient_N).all()


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_an_unmasked_value_that_is_not_finite_raises(
    name: str, parameters: dict[str, float | str]
) -> None:
    with pytest.raises(InvariantError, match="non-finite"):
        bind(name, parameters)(inputs([math.nan], [-1.0], [1.0]))


def test_half_precision_logprobs_are_refused() -> None:
    with pytest.raises(InvariantError, match="float32 or wider"):
        bind("dis", {})(inputs([-1.0], [-1.0], [1.0], dtype=torch.bfloat16))


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_an_extreme_ratio_leaves_the_gradient_finite(
    name: str, parameters: dict[str, float | str]
) -> None:
    for advantage in (1.0, -1.0):
        _, found = gradient(bind(name, parameters), inputs([-0.1], [-500.0], [advantage]))
        assert torch.isfinite(found).all()


def test_the_global_mean_is_no_mean_of_means() -> None:
    assert global_mean([2.0, 12.0], [1.0, 3.0]) == 3.5


def test_a_stale_batch_diverges_without_the_band_and_not_with_it() -> None:
    def trained(name: str, parameters: dict[str, float | str]) -> float:
        logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        behaviour = torch.full((2,), -9.0, dtype=torch.float64)
        loss = bind(name, parameters)
        for _ in range(50):
            logp_N = torch.log_softmax(logits, 0)[:2]
            result = loss(
                LossInputs(
                    logp_N=logp_N,
                    behaviour_N=behaviour,
                    mask_N=torch.ones(2, dtype=torch.bool),
                    advantage_N=torch.tensor([-1.0, -1.0], dtype=torch.float64),
                )
            )
            (grad,) = torch.autograd.grad(result.loss, logits)
            with torch.no_grad():
                logits -= 0.05 * grad
        return float(logits.detach().abs().max())

    assert trained("dis", {}) == 0.0
    assert trained("cispo", {"high": 1e6}) > 5.0


def test_an_unknown_loss_or_parameter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="cispo"):
        bind("cisp", {})
    with pytest.raises(SettingsError, match="'low'"):
        bind("dis", {"lo": 0.2})
    with pytest.raises(SettingsError, match="band"):
        bind("dis", {"low": 1.5})


def test_a_loss_that_lacks_an_input_is_refused_at_start() -> None:
    with pytest.raises(SettingsError, match="behaviour_logprobs"):
        bind("dis", {}, supplied={LossInput.ADVANTAGES})
    bind("ppo_clip", {"anchor": "old"}, supplied={LossInput.ADVANTAGES, LossInput.OLD_LOGPROBS})
    assert all(spec.inputs for spec in LOSSES.values())
