"""Whether a trajectory may be trained at this moment."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from schemas.enums import (
    DropReason,
    LearnerEventKind,
    Termination,
    VerdictCode,
    VersionSwitch,
)
from schemas.ids import Version, WorkerId
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import PolicySpan
from stream_jobs.core.staleness import (
    DIGESTS,
    Bounds,
    age_of,
    constant,
    exponential,
    inverse,
    rejects,
)
from tests.support.fake_rollout import RUN
from tests.unit.stream_jobs.trajectories import (
    BOUNDS,
    judged,
    learner,
    reason,
    registry,
    trajectory,
)


def test_the_lag_bound_is_inclusive_and_taken_from_the_oldest_token() -> None:
    assert reason(trajectory(), steps=4) is DropReason.NONE
    assert reason(trajectory(), steps=5) is DropReason.LAG
    newer = PolicySpan(start=5, end=8, epoch=1, number=5)
    mixed = replace(trajectory(), spans=(PolicySpan(start=3, end=5, epoch=0, number=0), newer))
    assert judged(mixed, steps=5).lag_steps == 5
    assert reason(mixed, steps=5) is DropReason.LAG


def test_a_bound_of_zero_keeps_only_what_is_strictly_on_policy() -> None:
    bounds = replace(BOUNDS, max_lag_steps=0)
    for steps in range(3):
        for number in range(steps + 1):
            version = Version(1, number) if number else Version(0, 0)
            found = reason(trajectory(version=version), steps=steps, bounds=bounds)
            assert (found is DropReason.NONE) == (number == steps)


def test_the_age_bound_is_inclusive_and_a_clock_ahead_counts_as_zero() -> None:
    assert reason(trajectory(), age_ms=600_000) is DropReason.NONE
    assert reason(trajectory(), age_ms=600_001) is DropReason.AGE
    assert age_of(timestamp_ms=5, now_ms=3) == (0, True)
    assert judged(trajectory(), age_ms=-7).is_skewed


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("value", ["", "latest", "ab" * 31, "AB" * 32])
def test_a_record_without_one_of_the_six_digests_is_refused_by_its_name(
    name: str, value: str
) -> None:
    found = judged(replace(trajectory(), **{name: value}))  # type: ignore[arg-type]  # by name
    assert found.reason is DropReason.INVALID_RECORD
    assert name in found.detail


def test_a_version_off_the_lineage_or_out_of_the_registry_is_orphaned() -> None:
    assert reason(trajectory(version=Version(1, 3)), steps=2) is DropReason.ORPHANED_VERSION
    known = registry(2)
    del known[Version(1, 1)]
    late = trajectory(version=Version(1, 1))
    assert reason(late, steps=2, registry=known) is DropReason.ORPHANED_VERSION
    other = trajectory(version=Version(2, 1))
    assert (
        reason(other, steps=2, registry=registry(2) | {Version(2, 1): "x"})
        is DropReason.ORPHANED_VERSION
    )


def test_lag_is_never_negative_for_a_version_that_a_restart_cut_off() -> None:
    log = learner(steps=3)
    fence = LearnerEvent(
        run_id=RUN,
        kind=LearnerEventKind.EPOCH_STARTED,
        epoch=2,
        learner_id=WorkerId("learner-0"),
        at_us=1,
        writer_id=WorkerId("learner-0"),
    )
    assert log.take(10, 2_000, fence)
    assert log.take(11, 2_000, replace(fence, kind=LearnerEventKind.RESTORED))
    assert log.newest_ordinal == 0
    lost = judged(trajectory(version=Version(1, 3)), learner=log, registry=registry(3))
    assert (lost.reason, lost.lag_steps) == (DropReason.ORPHANED_VERSION, 0)


def test_a_digest_that_is_not_the_registrys_is_a_version_mismatch() -> None:
    assert reason(replace(trajectory(), policy_digest="12" * 32)) is DropReason.VERSION_MISMATCH


def test_pinned_refuses_more_than_one_version() -> None:
    spans = (
        PolicySpan(start=3, end=5, epoch=0, number=0),
        PolicySpan(start=5, end=8, epoch=1, number=1),
    )
    mixed = replace(trajectory(), spans=spans)
    assert reason(mixed, steps=1) is DropReason.NONE
    pinned = replace(mixed, version_switch=VersionSwitch.PINNED)
    assert reason(pinned, steps=1) is DropReason.VERSION_MISMATCH


def test_without_a_reward_the_reason_says_whether_a_verdict_came() -> None:
    none = replace(trajectory(), reward=None, verdict_code=VerdictCode.NONE)
    assert reason(none) is DropReason.VERDICT_TIMEOUT
    ours = replace(trajectory(), reward=None, verdict_code=VerdictCode.INFRA_ERROR)
    assert reason(ours) is DropReason.NO_REWARD
    assert reason(replace(trajectory(), reward=math.nan)) is DropReason.NO_REWARD
    cancelled = replace(trajectory(), termination=Termination.USER_CANCEL)
    assert reason(cancelled) is DropReason.NO_REWARD


def test_what_the_assembler_found_in_the_tokens_is_the_reason() -> None:
    found = replace(trajectory(), reward=None, attribution="invalid_logprob: V4: nan at token 7")
    assert reason(found) is DropReason.INVALID_LOGPROB


def test_spans_must_cover_the_action_tokens_and_chunks_must_be_there() -> None:
    assert reason(replace(trajectory(), action_tokens=6)) is DropReason.INVALID_RECORD
    assert reason(replace(trajectory(), spans=(), action_tokens=0)) is DropReason.INVALID_RECORD
    assert reason(replace(trajectory(), chunks=())) is DropReason.PAYLOAD_LOST


def test_after_draining_everything_is_dropped_as_run_ended() -> None:
    assert reason(trajectory(), is_draining=True) is DropReason.RUN_ENDED


@pytest.mark.parametrize("weight", [constant, inverse(0.25), exponential(0.5)])
def test_a_weight_is_1_at_lag_0_and_never_rises_with_lag(weight: object) -> None:
    assert callable(weight)
    weights = [weight(lag) for lag in range(10)]
    assert weights[0] == 1.0
    assert all(a >= b > 0 for a, b in pairwise(weights))


def test_what_is_over_the_bound_is_dropped_however_it_is_weighted() -> None:
    bounds = Bounds(max_lag_steps=2, max_age_ms=600_000, weight=inverse(1.0))
    assert judged(trajectory(), steps=2, bounds=bounds).weight == pytest.approx(1 / 3)
    assert reason(trajectory(), steps=3, bounds=bounds) is DropReason.LAG


def test_over_1000_random_schedules_nothing_admitted_is_over_either_bound() -> None:
    dice = random.Random(20260829)
    logs = {steps: (learner(steps), registry(steps)) for steps in range(12)}
    admitted = 0
    for _ in range(1000):
        bounds = Bounds(
            max_lag_steps=dice.randrange(6), max_age_ms=dice.randrange(100), weight=constant
        )
        sampled = [dice.randrange(12) for _ in range(dice.randint(1, 3))]
        sampled.sort()
        steps = min(11, sampled[-1] + dice.randrange(6))
        spans = tuple(
            PolicySpan(start=i, end=i + 1, epoch=1 if n else 0, number=n)
            for i, n in enumerate(sampled)
        )
        oldest = Version(1, sampled[0]) if sampled[0] else Version(0, 0)
        record = replace(trajectory(version=oldest), spans=spans, action_tokens=len(spans))
        age = dice.randrange(150)
        log, known = logs[steps]
        found = judged(record, age_ms=age, learner=log, registry=known, bounds=bounds)
        f7 = rejects(ordinals=tuple(sampled), current=steps, bound=bounds.max_lag_steps)
        assert found.is_valid == (not f7 and age <= bounds.max_age_ms)
        assert found.lag_steps == steps - sampled[0] >= 0
        admitted += found.is_valid
    assert admitted > 100
