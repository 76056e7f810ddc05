"""Policy losses as pure functions of log-probs, mask, advantages and their own parameters.

Shape letter: N, tokens in any arrangement (the functions are elementwise, so padding and packing
cannot matter). Invariants: a masked position changes nothing, even when it holds NaN; an unmasked
non-finite value raises; log-probs are float32 or wider; `loss` is a sum over tokens, so that the
caller divides once by a count over all ranks (requirements F16). pi is the policy in training, mu
the behaviour policy, r and rho are ratios of probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from schemas.errors import InvariantError, SettingsError

# exp(20) is far outside every band; beyond it float32 overflows and inf times 0 would turn a zero
# gradient into NaN.
LOG_RATIO_MAX = 20.0


class Anchor(StrEnum):
    """Whose log-prob the ratio of a clipped loss is taken against."""

    BEHAVIOUR = "behaviour"
    OLD = "old"


class Denominator(StrEnum):
    """What a token mean divides by (requirements 4.1)."""

    ACTION_TOKENS = "action_tokens"
    KEPT_TOKENS = "kept_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What a loss may see. All tensors share one shape N; masked positions may hold anything."""

    logp_N: Tensor
    """log pi of the sampled token, float32 or wider, carries the gradient. Unit: nats."""
    behaviour_N: Tensor
    """log mu of the sampled token, as the engine committed it. Unit: nats."""
    mask_N: Tensor
    """bool; true for an action token that is trained."""
    advantage_N: Tensor
    """Advantage times the trajectory's weight and repeat, both at least 0. Unit: reward."""
    old_N: Tensor | None = None
    """log pi before the update, for losses that declare it. Unit: nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """The sum of token losses and what became of each token."""

    loss: Tensor
    """Scalar: sum over tokens. Unit: reward times nats."""
    coefficient_N: Tensor
    """Detached; minus the gradient of `loss` with respect to log pi."""
    kept_N: Tensor
    """bool; tokens with a non-zero coefficient allowed."""
    low_N: Tensor
    """bool; tokens rejected below the band."""
    high_N: Tensor
    """bool; tokens rejected above the band."""
    ratio_N: Tensor
    """Detached ratio that was judged; 1 at masked positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisParameters:
    """The open band of DIS. Bounds are stored themselves, as decimals: 1 - 0.8 is just below 0.2 in
    binary.
    """

    low: float = 0.2
    high: float = 4.0

    def __post_init__(self) -> None:
        if not 0.0 < self.low < 1.0 < self.high or not math.isfinite(self.high):
            raise SettingsError(
                f"DIS band ({self.low}, {self.high}) does not hold 0 < low < 1 < high",
                hint="published bands are (0.2, 4.0) and (0.7, 6.0)",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipParameters:
    """Closed bounds of the clipped ratio, and whose policy it is taken against."""

    low: float = 0.8
    high: float = 1.2
    anchor: Anchor = Anchor.BEHAVIOUR

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= 1.0 <= self.high or not math.isfinite(self.high):
            raise SettingsError(
                f"clip bounds [{self.low}, {self.high}] do not hold 0 <= low <= 1 <= high",
                hint="the usual bounds are [0.8, 1.2]",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoParameters:
    """Closed bounds of CISPO's detached ratio. Defaults: epsilon 1.0 and 4.0, as SkyRL and slime
    have them.
    """

    low: float = 0.0
    high: float = 5.0
    anchor: Anchor = Anchor.BEHAVIOUR

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= 1.0 <= self.high or not math.isfinite(self.high):
            raise SettingsError(
                f"CISPO bounds [{self.low}, {self.high}] do not hold 0 <= low <= 1 <= high",
                hint="the published bounds are [0, 5]",
            )


def _clean(values_N: Tensor, mask_N: Tensor, name: str) -> Tensor:
    """Return the values with 0 at masked positions; raise InvariantError on a non-finite unmasked
    one.
    """
    if not values_N.is_floating_point() or torch.finfo(values_N.dtype).bits < 32:
        raise InvariantError(
            f"{name} has dtype {values_N.dtype}", hint="log-probs are float32 or wider"
        )
    clean_N = torch.where(mask_N, values_N, torch.zeros_like(values_N))
    if not bool(torch.isfinite(clean_N.detach()).all()):
        raise InvariantError(
            f"{name} holds a non-finite value at an action token",
            hint="the validator refuses such records before they reach a loss",
        )
    return clean_N


def _log_ratio(inputs: LossInputs, anchor: Anchor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log pi, log ratio (both with gradient) and advantage, clean at masked positions."""
    mask_N = inputs.mask_N
    logp_N = _clean(inputs.logp_N, mask_N, "logp")
    advantage_N = _clean(inputs.advantage_N, mask_N, "advantage")
    if anchor is Anchor.OLD:
        if inputs.old_N is None:
            raise InvariantError("this loss needs log-probs from before the update")
        base_N = _clean(inputs.old_N, mask_N, "old log-prob")
    else:
        base_N = _clean(inputs.behaviour_N, mask_N, "behaviour log-prob")
    return logp_N, logp_N - base_N.detach(), advantage_N.detach()


def direct_importance_sampling(inputs: LossInputs, parameters: DisParameters) -> LossResult:
    """DIS: -sg(f(rho)) * A * log pi, with f(x) = x inside the open band and 0 outside, for either
    sign of A.

    The ratio is detached: otherwise the coefficient becomes A*rho*(1 + log pi), whose sign is wrong
    for every pi < 1/e. A log ratio that differs from a bound by rounding only counts as lying on
    it, and is rejected. Source: GLM-5 (arXiv 2602.15763, eqs. 3 to 5) and SAO (arXiv 2607.07508);
    requirements 4.3.
    """
    mask_N = inputs.mask_N
    logp_N, log_ratio_N, advantage_N = _log_ratio(inputs, Anchor.BEHAVIOUR)
    log_ratio_N = log_ratio_N.detach()
    rounding = 4.0 * torch.finfo(log_ratio_N.dtype).eps
    low_N = mask_N & (log_ratio_N <= math.log(parameters.low) + rounding)
    high_N = mask_N & (log_ratio_N >= math.log(parameters.high) - rounding)
    kept_N = mask_N & ~low_N & ~high_N
    ratio_N = log_ratio_N.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
    coefficient_N = torch.where(kept_N, ratio_N * advantage_N, torch.zeros_like(ratio_N))
    return LossResult(
        loss=-(coefficient_N * logp_N).sum(),
        coefficient_N=coefficient_N,
        kept_N=kept_N,
        low_N=low_N,
        high_N=high_N,
        ratio_N=ratio_N,
    )


def clipped_surrogate(inputs: LossInputs, parameters: ClipParameters) -> LossResult:
    """PPO and GRPO clip: -min(r*A, clip(r, low, high)*A); a token is rejected where the clip
    removes its gradient.

    Source: arXiv 1707.06347, eq. 7; requirements L1. With one update per batch and anchor `old`, r
    is 1 everywhere.
    """
    mask_N = inputs.mask_N
    _, log_ratio_N, advantage_N = _log_ratio(inputs, parameters.anchor)
    ratio_N = log_ratio_N.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
    clipped_N = ratio_N.clamp(parameters.low, parameters.high)
    loss_N = -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
    ratio_N = ratio_N.detach()
    low_N = mask_N & (advantage_N < 0) & (ratio_N < parameters.low)
    high_N = mask_N & (advantage_N > 0) & (ratio_N > parameters.high)
    kept_N = mask_N & ~low_N & ~high_N
    return LossResult(
        loss=torch.where(mask_N, loss_N, torch.zeros_like(loss_N)).sum(),
        coefficient_N=torch.where(kept_N, ratio_N * advantage_N, torch.zeros_like(ratio_N)),
        kept_N=kept_N,
        low_N=low_N,
        high_N=high_N,
        ratio_N=ratio_N,
    )


def clipped_importance_sampling(inputs: LossInputs, parameters: CispoParameters) -> LossResult:
    """CISPO: -sg(clip(r, low, high)) * A * log pi; every token keeps a gradient, so none is
    rejected.

    Source: MiniMax-M1 (arXiv 2506.13585); requirements L10.
    """
    mask_N = inputs.mask_N
    logp_N, log_ratio_N, advantage_N = _log_ratio(inputs, parameters.anchor)
    ratio_N = log_ratio_N.detach().clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
    coefficient_N = ratio_N.clamp(parameters.low, parameters.high) * advantage_N
    nothing_N = torch.zeros_like(mask_N)
    return LossResult(
        loss=-(coefficient_N * logp_N).sum(),
        coefficient_N=coefficient_N,
        kept_N=mask_N,
        low_N=nothing_N,
        high_N=nothing_N,
        ratio_N=ratio_N,
    )


def global_mean(sums: list[float], counts: list[float]) -> float:
    """Sum of sums over sum of counts, never a mean of means (F16); 0 when nothing was counted."""
    count = math.fsum(counts)
    return math.fsum(sums) / count if count else 0.0
