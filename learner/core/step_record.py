"""What a Step says: per trajectory what was kept and masked, over all tokens the measures of the
step.

Totals reconcile: kept + rejected below + rejected above = action tokens that the mask lets train,
for each member and for the step. A member whose group had no spread may not have been run: its
tokens count as kept with coefficient 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from learner.core.consume import Chosen
from learner.core.diagnostics import (
    LAG_BUCKETS,
    LENGTH_BUCKETS,
    bucket,
    effective_sample_size,
    mean_ratio_distance,
    mismatch_kl,
    quantiles,
)
from learner.core.rejected import RejectedIn, RejectedToken
from schemas.enums import Termination
from schemas.records.parts import TrainedMember
from schemas.records.trajectory import Trajectory

_COMPONENTS_MAX = 16
"""Names of components in a step's metrics; the rows of `trajectories` hold all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """One trajectory of the step with what the loss used."""

    chosen: Chosen
    advantage: float
    """Before weight and repeat. Unit: reward."""
    weight: float
    repeat: int
    trained_tokens: int
    """Action tokens that the mask lets train. Unit: tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Action tokens that went through the model, flat [N], in any order."""

    member_N: NDArray[np.int64]
    """Index of the trajectory in the step."""
    at_N: NDArray[np.int64]
    """Index in the episode."""
    logp_N: NDArray[np.float32]
    behaviour_N: NDArray[np.float32]
    entropy_N: NDArray[np.float32]
    ratio_N: NDArray[np.float32]
    kept_N: NDArray[np.bool_]
    low_N: NDArray[np.bool_]
    high_N: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The part of a Step that follows from its tokens."""

    members: tuple[TrainedMember, ...]
    rejected: tuple[RejectedIn, ...]
    action_tokens: int
    kept_tokens: int
    rejected_low: int
    rejected_high: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def account(weighted: Sequence[Weighted], tokens: Tokens) -> Account:
    """Return what the Step says of its trajectories and tokens."""
    kl_N = mismatch_kl(
        torch.from_numpy(tokens.logp_N), torch.from_numpy(tokens.behaviour_N)
    ).numpy()
    members: list[TrainedMember] = []
    rejected: list[RejectedIn] = []
    for index, one in enumerate(weighted):
        mine = np.flatnonzero(tokens.member_N == index)
        low, high = int(tokens.low_N[mine].sum()), int(tokens.high_N[mine].sum())
        members.append(
            _member(one, low=low, high=high, kl=float(kl_N[mine].mean()) if mine.size else 0.0)
        )
        if low + high:
            rejected.append(_rejected(one, tokens, mine))
    return Account(
        members=tuple(members),
        rejected=tuple(rejected),
        action_tokens=sum(member.action_tokens for member in members),
        kept_tokens=sum(member.kept_tokens for member in members),
        rejected_low=sum(member.masked_low for member in members),
        rejected_high=sum(member.masked_high for member in members),
        metrics=_metrics(weighted, tokens, kl_N),
    )


def _member(one: Weighted, *, low: int, high: int, kl: float) -> TrainedMember:
    waiting, staleness = one.chosen.waiting, one.chosen.staleness
    trajectory = waiting.trajectory
    return TrainedMember(
        episode_id=waiting.episode_id,
        group_id=waiting.gated.group_id,
        partition=waiting.partition,
        offset=waiting.offset,
        trajectory_offset=waiting.gated.trajectory_offset,
        environment=trajectory.environment,
        lag_steps=staleness.lag_steps,
        lag_s=staleness.lag_s,
        kl=kl,
        age_ms=staleness.age_ms,
        first_token_age_ms=staleness.first_token_age_ms,
        action_tokens=trajectory.action_tokens,
        kept_tokens=one.trained_tokens - low - high,
        masked_low=low,
        masked_high=high,
        masked_other=dict(trajectory.masked),
        reward=float(trajectory.reward or 0.0),
        advantage=one.advantage,
        weight=one.weight,
        repeat=one.repeat,
    )


def _rejected(one: Weighted, tokens: Tokens, mine: NDArray[np.int64]) -> RejectedIn:
    trajectory = one.chosen.waiting.trajectory
    out = mine[tokens.low_N[mine] | tokens.high_N[mine]]
    return RejectedIn(
        episode_id=trajectory.episode_id,
        task_id=trajectory.task_id,
        environment=trajectory.environment,
        lag_steps=one.chosen.staleness.lag_steps,
        length_bucket=bucket(trajectory.action_tokens, LENGTH_BUCKETS),
        advantage_sign=int(np.sign(one.advantage)),
        tokens=tuple(
            RejectedToken(
                position=int(tokens.at_N[at]),
                ratio=float(tokens.ratio_N[at]),
                low=bool(tokens.low_N[at]),
            )
            for at in out
        ),
    )


def _metrics(
    weighted: Sequence[Weighted], tokens: Tokens, kl_N: NDArray[np.float64]
) -> dict[str, float]:
    logp_N, behaviour_N = torch.from_numpy(tokens.logp_N), torch.from_numpy(tokens.behaviour_N)
    measured = int(tokens.member_N.size)
    rewards = [float(one.chosen.waiting.trajectory.reward or 0.0) for one in weighted]
    advantages = [one.advantage for one in weighted]
    advantage_mean = math.fsum(advantages) / max(1, len(advantages))
    ratio_p50, ratio_p95, ratio_p99 = quantiles([float(r) for r in tokens.ratio_N])
    gated = int(tokens.low_N.sum() + tokens.high_N.sum())
    out = {
        "reward_mean_reward": math.fsum(rewards) / max(1, len(rewards)),
        "advantage_mean_reward": advantage_mean,
        "advantage_variance_reward2": math.fsum((a - advantage_mean) ** 2 for a in advantages)
        / max(1, len(advantages)),
        "zero_advantage_ratio": sum(a == 0.0 for a in advantages) / max(1, len(advantages)),
        "measured_tokens": float(measured),
        "entropy_nats": float(tokens.entropy_N.mean()) if measured else 0.0,
        "kl_nats": float(kl_N.mean()) if measured else 0.0,
        "gate_fraction_ratio": gated / measured if measured else 0.0,
        "sample_size_tokens": effective_sample_size(torch.from_numpy(tokens.ratio_N)),
        "logprob_distance_ratio": mean_ratio_distance(logp_N, behaviour_N),
        "ratio_p50_ratio": ratio_p50,
        "ratio_p95_ratio": ratio_p95,
        "ratio_p99_ratio": ratio_p99,
        "lag_mean_updates": sum(one.chosen.staleness.lag_steps for one in weighted)
        / max(1, len(weighted)),
    }
    out |= _distribution("reward", "reward", rewards)
    out |= _outcomes([one.chosen.waiting.trajectory for one in weighted])
    lags = np.array([one.chosen.staleness.lag_steps for one in weighted], dtype=np.int64)
    if measured:
        names = np.array([bucket(int(lag), LAG_BUCKETS) for lag in lags])[tokens.member_N]
        for name in sorted(set(names)):
            ratio_N = tokens.ratio_N[names == name]
            kl_of_N = kl_N[names == name]
            for what, unit, values in (("ratio", "ratio", ratio_N), ("kl", "nats", kl_of_N)):
                cuts = zip(
                    ("p50", "p95", "p99"), quantiles([float(v) for v in values]), strict=True
                )
                out |= {f"{what}_{cut}_lag_{name}_{unit}": value for cut, value in cuts}
            out[f"measured_lag_{name}_tokens"] = float(ratio_N.size)
            sample_size = effective_sample_size(torch.from_numpy(ratio_N))
            out[f"sample_size_lag_{name}_tokens"] = sample_size
            out[f"kl_lag_{name}_nats"] = float(kl_of_N.mean())
    return out


def _distribution(name: str, unit: str, values: Sequence[float]) -> dict[str, float]:
    """Return spread and quantiles of what a step trained; the rows themselves are its members."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    p50, p95, p99 = quantiles(values)
    return {
        f"{name}_deviation_{unit}": math.sqrt(variance),
        f"{name}_min_{unit}": min(values),
        f"{name}_p50_{unit}": p50,
        f"{name}_p95_{unit}": p95,
        f"{name}_p99_{unit}": p99,
        f"{name}_max_{unit}": max(values),
    }


def _outcomes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return lengths, how the episodes ended, their reward's components and their tools' errors."""
    out = _distribution("length", "tokens", [float(t.action_tokens) for t in trajectories])
    ended = Counter(t.termination for t in trajectories)
    # All classes that can be trained, so that the counts of a step sum to its trajectories.
    for termination in Termination:
        if termination.is_policy_outcome:
            out[f"ended_{termination.value}_trajectories"] = float(ended[termination])
    calls = sum(t.tool_calls for t in trajectories)
    out["tool_error_ratio"] = sum(t.tool_errors for t in trajectories) / calls if calls else 0.0
    names = sorted({name for t in trajectories for name in t.reward_components})
    for name in names[:_COMPONENTS_MAX]:
        values = [t.reward_components[name] for t in trajectories if name in t.reward_components]
        out[f"component_{name}_mean_reward"] = math.fsum(values) / len(values)
    return out
