"""A fifth of all verdicts fails at random: what is left trains exactly as if nobody had failed
(C14).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from schemas.enums import (
    ClockOwner,
    DropReason,
    GateOutcome,
    StopCause,
    VerdictCode,
)
from schemas.ids import EpisodeId, WorkerId, episode_id, group_id, task_id
from schemas.records.gate_decision import GateDecision
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from stream_jobs.core.deciding import Writer, decision_on
from stream_jobs.core.gate import Arrived, OpenGroup
from stream_jobs.core.outcome import outcome_of
from stream_jobs.core.staleness import Judged
from stream_jobs.settings import GroupRule
from tests.support.fake_rollout import RUN, verdict
from tests.unit.stream_jobs.scheduling import issued_event
from tests.unit.stream_jobs.trajectories import arrived, judged, learner, trajectory

GROUPS, SIZE, SHARE = 100, 4, 0.2
FAILURES = (
    {"code": VerdictCode.INFRA_ERROR},
    {"code": VerdictCode.VERIFIER_ERROR},
    {"code": VerdictCode.TIMEOUT, "clock_owner": ClockOwner.VERIFIER},
    None,
)
"""The last is no verdict at all, when its deadline passed."""


def judged_episode(
    ordinal: int, member: int, reward: float, dice: random.Random | None
) -> Trajectory:
    base = verdict(issued_event(ordinal, member=member), reward)
    code = VerdictCode.CORRECT if reward > 0 else VerdictCode.WRONG_ANSWER
    result: VerifierResult | None = replace(base, code=code, reward=reward)
    if dice is not None and dice.random() < SHARE:
        failure = dice.choice(FAILURES)
        result = None if failure is None else replace(base, reward=None, **failure)
    outcome = outcome_of(StopCause.POLICY_STOP, result, fault_reward=0.0)
    return trajectory(
        ordinal, member, group_size=SIZE, termination=outcome.termination,
        verdict_code=outcome.verdict_code, reward=outcome.reward, reward_source=outcome.source,
    )  # fmt: skip


def decided(records: list[Trajectory], rule: GroupRule) -> GateDecision:
    first = records[0]
    group = OpenGroup(
        group_id=group_id(RUN, first.ordinal), task_id=task_id(RUN, first.ordinal),
        ordinal=first.ordinal, size=SIZE, issued_offset=0, fence=(1, WorkerId("scheduler-0:a")),
        firsts={r.episode_id: arrived(r, offset) for offset, r in enumerate(records)},
    )  # fmt: skip
    return decision_on(
        group, judge=judge_now, rule=rule, learner=learner(), is_draining=False,
        writer=Writer(run_id=RUN, worker_id=WorkerId("gate-0"), at_us=1),
    )  # fmt: skip


def judge_now(one: Arrived) -> Judged:
    assert one.trajectory is not None
    return judged(one.trajectory)


@pytest.mark.parametrize("rule", list(GroupRule))
@pytest.mark.parametrize("seed", [3])
def test_rewards_and_advantages_of_the_rest_are_those_of_the_run_without_failures(
    seed: int, rule: GroupRule
) -> None:
    dice = random.Random(seed)
    rewards = {
        (ordinal, member): float(dice.random() < 0.4)
        for ordinal in range(GROUPS)
        for member in range(SIZE)
    }
    failed, admitted = 0, 0
    means: tuple[list[float], list[float]] = ([], [])
    for ordinal in range(GROUPS):
        records = [judged_episode(ordinal, m, rewards[ordinal, m], dice) for m in range(SIZE)]
        decision = decided(records, rule)
        kept = {r.episode_id: r for r in records if r.reward is not None}
        failed += SIZE - len(kept)
        # The run without failures, on the same ids: plain statistics of what they are worth.
        worth = [rewards[ordinal, m] for m in range(SIZE) if episode_id(RUN, ordinal, m) in kept]
        for member in decision.members:
            if member.episode_id not in kept:
                assert (member.outcome, member.reason) == (
                    GateOutcome.DROP, DropReason.NO_REWARD
                ) or member.reason is DropReason.VERDICT_TIMEOUT  # fmt: skip
                continue
            reward = kept[member.episode_id].reward
            assert reward is not None
            assert reward == rewards[ordinal, _member(member.episode_id)]
            if member.outcome is GateOutcome.ADMIT:
                admitted += 1
                assert decision.group_count == len(worth)
                assert math.isclose(decision.group_mean, fmean(worth), abs_tol=1e-12)
                assert math.isclose(decision.group_deviation, pstdev(worth), abs_tol=1e-12)
                means[0].append(reward - decision.group_mean)
                means[1].append(rewards[ordinal, _member(member.episode_id)] - fmean(worth))
    assert 0.15 < failed / (GROUPS * SIZE) < 0.25, f"seed {seed}"
    assert admitted > 100
    assert math.isclose(fmean(means[0]), fmean(means[1]), abs_tol=1e-12)


def test_scoring_a_failure_as_zero_would_be_seen() -> None:
    records = [judged_episode(0, member, 1.0, None) for member in range(SIZE)]
    naive = [replace(records[0], reward=0.0), *records[1:]]
    assert decided(records, GroupRule.KEEP).group_mean == 1.0
    assert decided(naive, GroupRule.KEEP).group_mean < 1.0


def _member(episode: EpisodeId) -> int:
    return int(episode.rpartition(".")[2])
