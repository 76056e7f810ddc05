"""Verifier calls that fail at random leave the rewards and advantages of the others alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from learner.core.advantage import group_advantage
from learner.core.validate import refuse_light
from schemas.enums import DropReason, GateOutcome, StopCause, VerdictCode
from schemas.ids import EpisodeId, Version, WorkerId, group_id, task_id
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.rules.lineage import LearnerLog
from stream_jobs.core.deciding import Writer, decision_on, gated_record
from stream_jobs.core.gate import Arrived, Decided, OpenGroup, Owed
from stream_jobs.core.outcome import outcome_of
from stream_jobs.core.staleness import Bounds, Judged, constant, judge
from stream_jobs.settings import GroupRule
from tests.support.gated_records import RUN, Rollout, random_group, trajectory_of
from verifier.core.verdicts import Judged as Found
from verifier.core.verdicts import Raised, Verdict, decide

GROUPS, SIZE, SHARE = 250, 8, 0.2
WRITER = Writer(run_id=RUN, worker_id=WorkerId("gate-0"), at_us=0)
LEARNER = LearnerLog()
CHUNK = ChunkRef(partition=0, offset=0, length=1, crc32c=0)
WEIGHTS = {"answer": 0.9, "form": 0.1}
TRIES = 3


def verdict_on(rollout: Rollout, *, fails: bool) -> Verdict:
    """What the verifier says after its tries; a failing call fails in every one."""
    if fails:
        failure = Raised(detail="connection refused", is_transient=True)
        verdict = decide([failure] * TRIES, tries_max=TRIES, is_late=False)
    else:
        form = (rollout.ordinal + 3 * rollout.member) % 7 / 7
        found = Found(
            code=VerdictCode.CORRECT if rollout.reward else VerdictCode.WRONG_ANSWER,
            components={"answer": rollout.reward, "form": form},
            weights=WEIGHTS,
        )
        verdict = decide([found], tries_max=TRIES, is_late=False)
    assert isinstance(verdict, Verdict)
    return verdict


def assembled(rollout: Rollout, verdict: Verdict) -> Trajectory:
    blank = trajectory_of(rollout, group_size=SIZE, chunks=[CHUNK])
    result = VerifierResult(
        run_id=RUN, episode_id=blank.episode_id, group_id=blank.group_id, attempt=1,
        verifier_digest=blank.verifier_digest, code=verdict.code, reward=verdict.reward,
        components=dict(verdict.components), component_weights=dict(verdict.weights), at_us=1,
        writer_id=WorkerId("verifier-0"),
    )  # fmt: skip
    outcome = outcome_of(StopCause.POLICY_STOP, result, fault_reward=0.0)
    return replace(
        blank,
        termination=outcome.termination,
        verdict_code=outcome.verdict_code,
        reward=outcome.reward,
        reward_components=dict(outcome.components),
        reward_source=outcome.source,
    )


def judged(arrived: Arrived) -> Judged:
    assert arrived.trajectory is not None
    return judge(
        arrived.trajectory,
        timestamp_ms=0,
        now_ms=0,
        learner=LEARNER,
        registry={Version(0, 0): arrived.trajectory.policy_digest},
        bounds=Bounds(max_lag_steps=4, max_age_ms=600_000, weight=constant),
        is_draining=False,
    )


def gated(members: Mapping[int, Trajectory], ordinal: int) -> dict[EpisodeId, GatedTrajectory]:
    """The gate's records of one group whose present members are given by their offsets."""
    firsts = {
        trajectory.episode_id: Arrived(
            offset=offset, timestamp_ms=0, episode_id=trajectory.episode_id, trajectory=trajectory
        )
        for offset, trajectory in members.items()
    }
    group = OpenGroup(
        group_id=group_id(RUN, ordinal), task_id=task_id(RUN, ordinal), ordinal=ordinal,
        size=SIZE, issued_offset=0, fence=(1, WorkerId("s")), firsts=firsts,
    )  # fmt: skip
    decision = decision_on(
        group, judge=judged, rule=GroupRule.KEEP, learner=LEARNER, is_draining=False, writer=WRITER
    )
    decided = Decided(offset=0, decision=decision)
    out = {}
    for member in decision.members:
        if member.outcome is GateOutcome.DROP:
            assert member.reason is DropReason.NO_REWARD
            continue
        arrived = firsts[member.episode_id]
        owed = Owed(arrived=arrived, decided=decided, member=member)
        out[member.episode_id] = gated_record(owed, committed=0, frame=b"", writer=WRITER)
    return out


def advantage_of(trajectory: Trajectory, record: GatedTrajectory) -> float:
    assert refuse_light(trajectory) is None
    assert trajectory.reward is not None
    return group_advantage(
        trajectory.reward,
        mean=record.group_mean,
        deviation=record.group_deviation,
        count=record.group_count,
        group_size=SIZE,
    )


@pytest.mark.slow
def test_the_rest_has_the_rewards_and_advantages_of_the_failure_free_run_on_the_same_ids() -> None:
    rng = random.Random(4)
    failed = 0
    rewards: list[float] = []
    expected: list[float] = []
    for ordinal in range(GROUPS):
        rollouts = random_group(ordinal, size=SIZE)
        fails = [rng.random() < SHARE for _ in rollouts]
        failed += sum(fails)
        faulty = [
            assembled(r, verdict_on(r, fails=f)) for r, f in zip(rollouts, fails, strict=True)
        ]
        sound = [assembled(r, verdict_on(r, fails=False)) for r in rollouts]
        with_faults = gated(dict(enumerate(faulty)), ordinal)
        same_ids = gated(
            {at: t for at, (t, f) in enumerate(zip(sound, fails, strict=True)) if not f}, ordinal
        )
        assert with_faults.keys() == same_ids.keys()
        by_id = {t.episode_id: t for t in sound}
        for trajectory, is_failed in zip(faulty, fails, strict=True):
            if is_failed:
                assert trajectory.reward is None
                refusal = refuse_light(trajectory)
                assert refusal is not None
                continue
            mine, other = with_faults[trajectory.episode_id], same_ids[trajectory.episode_id]
            twin = by_id[trajectory.episode_id]
            assert advantage_of(trajectory, mine) == advantage_of(twin, other)
            assert trajectory.reward is not None
            assert twin.reward is not None
            rewards.append(trajectory.reward)
            expected.append(twin.reward)
    assert failed == pytest.approx(SHARE * GROUPS * SIZE, rel=0.1)
    assert math.fsum(rewards) / len(rewards) == math.fsum(expected) / len(expected)
    # Counting a failure as zero would have told the policy that the task is harder than it is.
    naive = math.fsum(rewards) / (GROUPS * SIZE)
    assert naive < 0.9 * math.fsum(expected) / len(expected)


def test_the_reward_is_the_weighted_sum_of_the_components_that_the_verdict_keeps() -> None:
    for rollout in random_group(0, size=SIZE):
        verdict = verdict_on(rollout, fails=False)
        again = sum(value * verdict.weights[name] for name, value in verdict.components.items())
        assert verdict.reward == pytest.approx(again, abs=1e-9)
        assert assembled(rollout, verdict).reward_components == dict(verdict.components)
