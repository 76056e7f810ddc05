"""Termination and reward of an episode: stop cause and verdict together (requirements 3.4).

A reward comes from a verdict that carries one, or from attribution when the policy is to blame and
no verdict can say so; no verdict is never a reward of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from schemas.enums import ClockOwner, RewardSource, StopCause, Termination, VerdictCode
from schemas.records.verifier_result import VerifierResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a Trajectory says of the end of its episode."""

    termination: Termination
    verdict_code: VerdictCode = VerdictCode.NONE
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    source: RewardSource = RewardSource.NONE
    attribution: str = ""


def waits_for_verdict(cause: StopCause) -> bool:
    """Whether an episode that ended so is sealed with its verdict; the others are settled by their
    cause.
    """
    return cause not in (StopCause.AGENT_CAUSED_FAULT, StopCause.USER_CANCEL)


def outcome_of(cause: StopCause, verdict: VerifierResult | None, *, fault_reward: float) -> Outcome:
    """Return the outcome of a final Ended with this cause. verdict: None when its deadline
    passed.
    """
    code = verdict.code if verdict is not None else VerdictCode.NONE
    match cause:
        case StopCause.USER_CANCEL:
            return Outcome(termination=Termination.USER_CANCEL, verdict_code=code)
        case StopCause.AGENT_CAUSED_FAULT:
            return _fault("the agent's act ended the attempt", code, fault_reward)
        case StopCause.BUDGET_TRUNCATION:
            return _judged(Termination.BUDGET_TRUNCATION, verdict, fault_reward)
        case StopCause.INVALID_ACTION:
            return _judged(Termination.INVALID_ACTION, verdict, fault_reward)
        case StopCause.POLICY_STOP:
            is_right = code is VerdictCode.CORRECT
            reached = Termination.SUCCESS if is_right else Termination.TASK_FAILURE
            return _judged(reached, verdict, fault_reward)
        # None of these is final: such an attempt is retried, or its episode abandoned.
        case StopCause.ENVIRONMENT_ERROR:
            return Outcome(termination=Termination.ENVIRONMENT_ERROR, verdict_code=code)
        case StopCause.INFRASTRUCTURE_ERROR | StopCause.NONE | StopCause.UNKNOWN:
            return Outcome(termination=Termination.INFRASTRUCTURE_ERROR, verdict_code=code)
        case _:
            assert_never(cause)


def _judged(reached: Termination, verdict: VerifierResult | None, fault_reward: float) -> Outcome:
    """Return the outcome of what the policy did, as its verdict has it."""
    code = verdict.code if verdict is not None else VerdictCode.NONE
    match code:
        case VerdictCode.CORRECT | VerdictCode.WRONG_ANSWER | VerdictCode.INVALID_FORMAT:
            assert verdict is not None
            return Outcome(
                termination=reached,
                verdict_code=code,
                reward=verdict.reward,
                components=verdict.components,
                source=RewardSource.NONE if verdict.reward is None else RewardSource.VERDICT,
            )
        case VerdictCode.TAMPER_DETECTED:
            return _fault("tamper_detected", code, fault_reward)
        case VerdictCode.TIMEOUT:
            assert verdict is not None
            if verdict.clock_owner is ClockOwner.AGENT:
                return _fault("timeout on the agent's clock", code, fault_reward)
            return Outcome(termination=Termination.VERIFIER_ERROR, verdict_code=code)
        case (
            VerdictCode.NONE
            | VerdictCode.UNKNOWN
            | VerdictCode.INFRA_ERROR
            | VerdictCode.VERIFIER_ERROR
        ):
            return Outcome(termination=Termination.VERIFIER_ERROR, verdict_code=code)
        case _:
            assert_never(code)


def _fault(blame: str, code: VerdictCode, reward: float) -> Outcome:
    return Outcome(
        termination=Termination.AGENT_CAUSED_FAULT,
        verdict_code=code,
        reward=reward,
        source=RewardSource.ATTRIBUTION,
        attribution=blame,
    )
