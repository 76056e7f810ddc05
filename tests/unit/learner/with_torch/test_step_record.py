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
