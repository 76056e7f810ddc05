"""From what the tries of a rubric came to, to another try or to a verdict.

Invariants: a reward exists only under a code that carries one, and is finite; what is ours is never
a wrong answer; a timeout names whose clock ran out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from schemas.enums import ClockOwner, VerdictCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The rubric returned."""

    code: VerdictCode
    components: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    evidence: str = ""
    clock_owner: ClockOwner = ClockOwner.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The rubric did not return inside the verifier's wall clock."""

    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The judging process ended, or could not be started: killed, out of memory, crashed."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The rubric raised."""

    detail: str
    is_transient: bool
    """It says of itself that another try may succeed: something outside failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request cannot be judged here: another digest, no such package, an unreadable record."""

    detail: str


Outcome: TypeAlias = Judged | TimedOut | Died | Raised | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Another try is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the result record says."""

    code: VerdictCode
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    evidence: str = ""
    clock_owner: ClockOwner = ClockOwner.NONE


def decide(outcomes: Sequence[Outcome], *, tries_max: int, is_late: bool) -> Again | Verdict:
    """Return what follows from the outcomes of the tries so far, in order; there is at least one.

    A judgement stands at once, and so does a refusal. Everything else is ours and is tried again,
    `tries_max` times in all and not once the verdict is late.
    """
    last = outcomes[-1]
    match last:
        case Judged():
            return _judged(last)
        case Refused(detail=detail):
            return Verdict(code=VerdictCode.VERIFIER_ERROR, evidence=detail)
        case TimedOut() | Died() | Raised() if len(outcomes) < tries_max and not is_late:
            return Again()
        case TimedOut(limit_s=limit_s):
            return Verdict(
                code=VerdictCode.TIMEOUT,
                evidence=f"the rubric did not return within {limit_s:g} s",
                clock_owner=ClockOwner.VERIFIER,
            )
        case Died(detail=detail) | Raised(detail=detail, is_transient=True):
            return Verdict(code=VerdictCode.INFRA_ERROR, evidence=detail)
        case Raised(detail=detail):
            return Verdict(code=VerdictCode.VERIFIER_ERROR, evidence=detail)


_CODES = frozenset(VerdictCode) - {VerdictCode.UNKNOWN, VerdictCode.NONE}


def _judged(judged: Judged) -> Verdict:
    if judged.code not in _CODES:
        return _broken(f"the rubric gave no verdict code but {judged.code.value!r}")
    if not judged.code.carries_reward:
        owner = judged.clock_owner
        if judged.code is VerdictCode.TIMEOUT and owner in (ClockOwner.NONE, ClockOwner.UNKNOWN):
            return _broken("the rubric gave a timeout without saying whose clock ran out")
        # Components are kept as evidence; a reward there is none.
        return Verdict(
            code=judged.code,
            components=_finite(judged.components),
            evidence=judged.evidence,
            clock_owner=owner if judged.code is VerdictCode.TIMEOUT else ClockOwner.NONE,
        )
    if not judged.components:
        return _broken("the rubric gave a code with a reward and no component of it")
    reward = sum(value * judged.weights.get(name, 1.0) for name, value in judged.components.items())
    if not math.isfinite(reward):
        return _broken(f"the reward {reward} is not finite")
    return Verdict(
        code=judged.code,
        reward=float(reward),
        components=judged.components,
        weights={name: judged.weights.get(name, 1.0) for name in judged.components},
        evidence=judged.evidence,
    )


def _broken(detail: str) -> Verdict:
    return Verdict(code=VerdictCode.VERIFIER_ERROR, evidence=detail)


def _finite(components: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in components.items() if math.isfinite(value)}
