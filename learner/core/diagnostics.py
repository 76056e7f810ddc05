"""Measures of one step from its tokens: divergence of behaviour and policy, sample size, ratio
quantiles.

Shape letter: N, action tokens, flat. All results are plain floats in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LENGTH_BUCKETS = (16, 64, 256, 1024, 4096)
LAG_BUCKETS = (0, 1, 2, 4, 8)


def mismatch_kl(logp_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """Return rho - log rho - 1 per token, float64 [N], whose mean under the behaviour policy is
    KL(mu || pi).

    Never negative. Source: the k3 estimator, requirements 4.1 and R30.
    """
    log_ratio_N = (logp_N.detach().double() - behaviour_N.detach().double()).clamp(-50.0, 50.0)
    return torch.expm1(log_ratio_N) - log_ratio_N


def effective_sample_size(weight_N: Tensor) -> float:
    """Return (sum w)^2 / sum w^2 in tokens (F13); 0 without tokens."""
    weights_N = weight_N.detach().double()
    squares = float((weights_N * weights_N).sum())
    return float(weights_N.sum()) ** 2 / squares if squares > 0.0 else 0.0


def mean_ratio_distance(logp_N: Tensor, behaviour_N: Tensor) -> float:
    """Return the mean of exp(|log pi - log mu|), 1 on policy; 1 without tokens."""
    if logp_N.numel() == 0:
        return 1.0
    distance_N = (logp_N.detach().double() - behaviour_N.detach().double()).abs().clamp(max=50.0)
    return float(distance_N.exp().mean())


def quantiles(values: Sequence[float], shares: Sequence[float] = (0.5, 0.95, 0.99)) -> list[float]:
    """Return the nearest-rank quantiles of the values; zeros when there are none."""
    ranked = sorted(values)
    if not ranked:
        return [0.0 for _ in shares]
    return [ranked[max(0, math.ceil(share * len(ranked)) - 1)] for share in shares]


def bucket(value: int, bounds: Sequence[int]) -> str:
    """Return the name of the bucket: the smallest bound at or above the value, or above the last
    one.
    """
    for bound in bounds:
        if value <= bound:
            return f"le_{bound}"
    return f"gt_{bounds[-1]}"
