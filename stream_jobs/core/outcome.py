"""Termination and reward of an episode: stop cause and verdict together (requirements 3.4).

A reward comes from a verdict that carries one, or from attribution when the policy is to blame and
no verdict can say so; no verdict is never a reward of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        case _:
            pass
    if verdict is None or code.is_ours:
        return Outcome(termination=Termination.VERIFIER_ERROR, verdict_code=code)
    if code is VerdictCode.TAMPER_DETECTED:
        return _fault("tamper_detected", code, fault_reward)
    if code is VerdictCode.TIMEOUT:
        if verdict.clock_owner is ClockOwner.AGENT:
            return _fault("timeout on the agent's clock", code, fault_reward)
        return Outcome(termination=Termination.VERIFIER_ERROR, verdict_code=code)
    return Outcome(
        termination=_termination(cause, code),
        verdict_code=code,
        reward=verdict.reward,
        components=verdict.components,
        source=RewardSource.NONE if verdict.reward is None else RewardSource.VERDICT,
    )


def _fault(blame: str, code: VerdictCode, reward: float) -> Outcome:
    return Outcome(
        termination=Termination.AGENT_CAUSED_FAULT,
        verdict_code=code,
        reward=reward,
        source=RewardSource.ATTRIBUTION,
        attribution=blame,
    )


def _termination(cause: StopCause, code: VerdictCode) -> Termination:
    match cause:
        case StopCause.BUDGET_TRUNCATION:
            return Termination.BUDGET_TRUNCATION
        case StopCause.INVALID_ACTION:
            return Termination.INVALID_ACTION
        case _:
            is_right = code is VerdictCode.CORRECT
            return Termination.SUCCESS if is_right else Termination.TASK_FAILURE
