"""What a step says of its trajectories and tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from learner.core.consume import Chosen, Waiting
from learner.core.staleness import Staleness
from learner.core.step_record import Tokens, Weighted, account
from schemas.enums import DropReason, Termination
from schemas.ids import WorkerId
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef
from schemas.records.trajectory import Trajectory
from tests.support.gated_records import RUN, Rollout, trajectory_of

ROLLOUT = Rollout(
    ordinal=0, member=0, prompt=[7, 8], actions=[9, 10, 11], logprobs=[-1.0, -0.5, 0.0], reward=1.0
)
CHUNK = ChunkRef(partition=0, offset=0, length=1, crc32c=0)
GOOD = trajectory_of(ROLLOUT, group_size=4, chunks=[CHUNK])


def weighted(trajectory: Trajectory) -> Weighted:
    gated = GatedTrajectory(
        run_id=RUN, episode_id=GOOD.episode_id, group_id=GOOD.group_id, trajectory_frame=b"",
        trajectory_offset=0, trajectory_us=0, decision_offset=0, input_offset=0, at_us=1,
        writer_id=WorkerId("gate-0"),
    )  # fmt: skip
    staleness = Staleness(
        reason=DropReason.NONE, lag_steps=1, lag_s=2.5, age_ms=3, first_token_age_ms=4,
        weight=1.0, clock_skew=False,
    )  # fmt: skip
    waiting = Waiting(partition=0, offset=0, arrival=0, gated=gated, trajectory=trajectory)
    return Weighted(
        chosen=Chosen(waiting=waiting, staleness=staleness), advantage=0.5, weight=1.0, repeat=1,
        trained_tokens=3,
    )  # fmt: skip


NO_TOKENS = Tokens(
    member_N=np.zeros(0, dtype=np.int64), at_N=np.zeros(0, dtype=np.int64),
    logp_N=np.zeros(0, dtype=np.float32), behaviour_N=np.zeros(0, dtype=np.float32),
    entropy_N=np.zeros(0, dtype=np.float32), ratio_N=np.zeros(0, dtype=np.float32),
    kept_N=np.zeros(0, dtype=np.bool_), low_N=np.zeros(0, dtype=np.bool_),
    high_N=np.zeros(0, dtype=np.bool_),
)  # fmt: skip


def test_a_step_reconciles_its_tokens_and_lists_each_rejected_one() -> None:
    one = weighted(GOOD)
    logp = np.array([-1.0, -3.0, -0.1], dtype=np.float32)
    behaviour = np.array([-1.0, -0.5, -2.0], dtype=np.float32)
    told = account(
        [one, replace(one, advantage=0.0)],
        Tokens(
            member_N=np.zeros(3, dtype=np.int64),
            at_N=np.array([2, 3, 4]),
            logp_N=logp,
            behaviour_N=behaviour,
            entropy_N=np.ones(3, dtype=np.float32),
            ratio_N=np.exp(logp - behaviour),
            kept_N=np.array([True, False, False]),
            low_N=np.array([False, True, False]),
            high_N=np.array([False, False, True]),
        ),
    )
    first, second = told.members
    assert (first.kept_tokens, first.masked_low, first.masked_high) == (1, 1, 1)
    assert (second.kept_tokens, second.masked_low, second.masked_high) == (3, 0, 0)
    assert told.action_tokens == told.kept_tokens + told.rejected_low + told.rejected_high == 6
    assert [(t.position, t.low) for t in told.rejected[0].tokens] == [(3, True), (4, False)]
    ratios = np.exp((logp - behaviour).astype(np.float64))
    assert first.kl == pytest.approx(float(np.mean(ratios - np.log(ratios) - 1.0)), abs=1e-6)
    assert told.metrics["gate_fraction_ratio"] == pytest.approx(2 / 3)
    assert told.metrics["zero_advantage_ratio"] == 0.5
    assert told.metrics["ended_success_trajectories"] == 2.0
    ended = [v for name, v in told.metrics.items() if name.startswith("ended_")]
    assert sum(ended) == len(told.members)
    assert told.metrics["length_p99_tokens"] == told.metrics["length_max_tokens"] == 3.0
    # Recomputed from the tensors, in another way than the code does.
    assert told.metrics["kl_nats"] == pytest.approx(
        float(np.mean(ratios - np.log(ratios) - 1.0)), abs=1e-6
    )
    assert told.metrics["entropy_nats"] == pytest.approx(1.0, abs=1e-6)
    assert told.metrics["advantage_mean_reward"] == pytest.approx(0.25, abs=1e-6)
    assert told.metrics["advantage_variance_reward2"] == pytest.approx(0.0625, abs=1e-6)
    assert told.metrics["reward_deviation_reward"] == 0.0
    assert told.metrics["reward_mean_reward"] == told.metrics["reward_p50_reward"] == 1.0


def test_components_and_tool_errors_of_a_step_are_those_of_its_trajectories() -> None:
    calls = replace(GOOD, tool_calls=4, tool_errors=1, reward_components={"a": 0.5, "b": 1.0})
    plain = replace(GOOD, reward_components={"a": 0.0}, termination=Termination.TASK_FAILURE)
    told = account([weighted(calls), weighted(plain)], NO_TOKENS).metrics
    assert told["tool_error_ratio"] == 0.25
    assert told["component_a_mean_reward"] == 0.25
    assert told["component_b_mean_reward"] == 1.0
    assert told["ended_task_failure_trajectories"] == 1.0


def test_ratio_sample_size_and_divergence_are_told_by_the_lag_of_the_trajectory() -> None:
    fresh, old = weighted(GOOD), weighted(GOOD)
    fresh = replace(
        fresh, chosen=replace(fresh.chosen, staleness=replace(fresh.chosen.staleness, lag_steps=0))
    )
    # The old one's ratios are 1/2, 1, 2: k3 of r is r - log r - 1.
    ratio = np.array([1.0, 1.0, 1.0, 0.5, 1.0, 2.0], dtype=np.float32)
    told = account(
        [fresh, old],
        Tokens(
            member_N=np.array([0, 0, 0, 1, 1, 1]), at_N=np.array([2, 3, 4, 2, 3, 4]),
            logp_N=(np.log(ratio) - 1.0).astype(np.float32),
            behaviour_N=np.full(6, -1.0, dtype=np.float32),
            entropy_N=np.ones(6, dtype=np.float32), ratio_N=ratio,
            kept_N=np.ones(6, dtype=np.bool_), low_N=np.zeros(6, dtype=np.bool_),
            high_N=np.zeros(6, dtype=np.bool_),
        ),
    ).metrics  # fmt: skip
    half, double = np.log(2) - 0.5, 1.0 - np.log(2)
    assert told["ratio_p50_lag_le_0_ratio"] == told["ratio_p99_lag_le_0_ratio"] == 1.0
    assert told["kl_p99_lag_le_0_nats"] == pytest.approx(0.0, abs=1e-6)
    assert (told["measured_lag_le_0_tokens"], told["sample_size_lag_le_0_tokens"]) == (3.0, 3.0)
    assert told["ratio_p50_lag_le_1_ratio"] == 1.0
    assert told["ratio_p99_lag_le_1_ratio"] == 2.0
    assert told["kl_p50_lag_le_1_nats"] == pytest.approx(half, abs=1e-6)
    assert told["kl_p99_lag_le_1_nats"] == pytest.approx(double, abs=1e-6)
    assert told["kl_lag_le_1_nats"] == pytest.approx((half + double) / 3, abs=1e-6)
    assert told["measured_lag_le_1_tokens"] == 3.0
    # (1/2 + 1 + 2)^2 over 1/4 + 1 + 4.
    assert told["sample_size_lag_le_1_tokens"] == pytest.approx(3.5**2 / 5.25)
