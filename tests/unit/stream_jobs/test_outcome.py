"""Termination and reward of an episode: stop cause and verdict together."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

import pytest

from schemas.enums import ClockOwner, RewardSource, StopCause, Termination, VerdictCode
from schemas.records.verifier_result import VerifierResult
from stream_jobs.core.outcome import outcome_of
from tests.support.fake_rollout import verdict
from tests.unit.stream_jobs.scheduling import issued_event

STOP = StopCause.POLICY_STOP


def result(code: VerdictCode, **fields: object) -> VerifierResult:
    reward = 0.5 if getattr(code, "carries_reward", True) else None
    base = replace(verdict(issued_event(0), 1.0), code=code, reward=reward)
    return replace(base, **fields)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("cause", "code", "termination"),
    [
        (STOP, VerdictCode.CORRECT, Termination.SUCCESS),
        (STOP, VerdictCode.WRONG_ANSWER, Termination.TASK_FAILURE),
        (STOP, VerdictCode.INVALID_FORMAT, Termination.TASK_FAILURE),
        (StopCause.INVALID_ACTION, VerdictCode.WRONG_ANSWER, Termination.INVALID_ACTION),
        (StopCause.BUDGET_TRUNCATION, VerdictCode.CORRECT, Termination.BUDGET_TRUNCATION),
    ],
)
def test_a_verdict_with_a_reward_is_the_reward(
    cause: StopCause, code: VerdictCode, termination: Termination
) -> None:
    found = outcome_of(cause, result(code), fault_reward=-1.0)
    assert (found.termination, found.reward, found.source) == (
        termination,
        0.5,
        RewardSource.VERDICT,
    )
    assert found.termination.is_policy_outcome


@pytest.mark.parametrize("code", [VerdictCode.INFRA_ERROR, VerdictCode.VERIFIER_ERROR])
def test_a_fault_of_ours_is_no_reward_and_never_a_zero(code: VerdictCode) -> None:
    found = outcome_of(STOP, result(code), fault_reward=0.0)
    assert (found.termination, found.reward) == (Termination.VERIFIER_ERROR, None)
    assert not found.termination.is_policy_outcome


def test_no_verdict_is_not_a_verdict_of_zero() -> None:
    found = outcome_of(STOP, None, fault_reward=0.0)
    assert (found.reward, found.verdict_code) == (None, VerdictCode.NONE)


def test_where_the_agent_is_to_blame_the_fault_reward_applies_by_attribution() -> None:
    for blamed in (
        outcome_of(STOP, result(VerdictCode.TAMPER_DETECTED), fault_reward=-1.0),
        outcome_of(
            STOP, result(VerdictCode.TIMEOUT, clock_owner=ClockOwner.AGENT), fault_reward=-1.0
        ),
        outcome_of(StopCause.AGENT_CAUSED_FAULT, None, fault_reward=-1.0),
    ):
        assert blamed.termination is Termination.AGENT_CAUSED_FAULT
        assert (blamed.reward, blamed.source) == (-1.0, RewardSource.ATTRIBUTION)
        assert blamed.attribution


def test_a_timeout_on_the_verifiers_clock_blames_nobody_but_us() -> None:
    late = result(VerdictCode.TIMEOUT, clock_owner=ClockOwner.VERIFIER)
    found = outcome_of(STOP, late, fault_reward=0.0)
    assert (found.termination, found.reward) == (Termination.VERIFIER_ERROR, None)


def test_a_cancelled_episode_has_no_reward() -> None:
    found = outcome_of(StopCause.USER_CANCEL, result(VerdictCode.CORRECT), fault_reward=0.0)
    assert (found.termination, found.reward) == (Termination.USER_CANCEL, None)


def widened(closed: type[StrEnum]) -> Any:
    """Return a member that a closed set would have if somebody added a class to it."""
    names = {one.name: one.value for one in closed} | {"ADDED": "added"}
    return cast(Any, StrEnum("Wider", names))["ADDED"]


def test_every_cause_and_verdict_has_an_outcome_and_only_the_policys_are_trained() -> None:
    for cause in StopCause:
        for code in VerdictCode:
            found = outcome_of(cause, result(code), fault_reward=-1.0)
            assert (found.reward is None) != found.termination.is_policy_outcome
            assert (found.source is RewardSource.NONE) == (found.reward is None)


def test_a_class_that_is_added_is_refused_until_somebody_decides_what_it_means() -> None:
    with pytest.raises(AssertionError, match="added"):
        outcome_of(widened(StopCause), result(VerdictCode.CORRECT), fault_reward=0.0)
    with pytest.raises(AssertionError, match="added"):
        outcome_of(STOP, result(widened(VerdictCode)), fault_reward=0.0)


def test_budget_environment_and_policy_are_three_classes() -> None:
    causes = (StopCause.BUDGET_TRUNCATION, StopCause.ENVIRONMENT_ERROR, STOP)
    found = [
        outcome_of(cause, result(VerdictCode.WRONG_ANSWER), fault_reward=0.0).termination
        for cause in causes
    ]
    assert found == [
        Termination.BUDGET_TRUNCATION,
        Termination.ENVIRONMENT_ERROR,
        Termination.TASK_FAILURE,
    ]
    assert [one.is_truncated for one in found] == [True, False, False]
