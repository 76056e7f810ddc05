"""From the outcomes of tries to a verdict, and which requests are judged at all."""

from __future__ import annotations

import pytest

from schemas.enums import ClockOwner, VerdictCode
from schemas.ids import EpisodeId
from verifier.core.memory import Received, VerdictKey, VerdictMemory
from verifier.core.verdicts import (
    Again,
    Died,
    Judged,
    Outcome,
    Raised,
    Refused,
    TimedOut,
    Verdict,
    decide,
)

OURS: list[tuple[Outcome, VerdictCode, ClockOwner]] = [
    (TimedOut(limit_s=1.0), VerdictCode.TIMEOUT, ClockOwner.VERIFIER),
    (Died(detail="killed"), VerdictCode.INFRA_ERROR, ClockOwner.NONE),
    (Raised(detail="down", is_transient=True), VerdictCode.INFRA_ERROR, ClockOwner.NONE),
    (Raised(detail="bug", is_transient=False), VerdictCode.VERIFIER_ERROR, ClockOwner.NONE),
]


@pytest.mark.parametrize(("outcome", "code", "owner"), OURS)
def test_what_is_ours_is_tried_again_and_then_has_a_code_without_reward(
    outcome: Outcome, code: VerdictCode, owner: ClockOwner
) -> None:
    assert decide([outcome] * 2, tries_max=3, is_late=False) == Again()
    for verdict in (
        decide([outcome] * 3, tries_max=3, is_late=False),
        decide([outcome], tries_max=3, is_late=True),
    ):
        assert isinstance(verdict, Verdict)
        assert (verdict.code, verdict.clock_owner, verdict.reward) == (code, owner, None)
        assert verdict.evidence


def test_a_judgement_after_a_failed_try_stands() -> None:
    judged = Judged(code=VerdictCode.CORRECT, components={"a": 1.0, "b": 0.5}, weights={"b": 0.5})
    verdict = decide([Died(detail=""), judged], tries_max=2, is_late=True)
    assert isinstance(verdict, Verdict)
    assert verdict.reward == 1.25
    assert verdict.weights == {"a": 1.0, "b": 0.5}


def test_a_refusal_is_never_tried_again() -> None:
    verdict = decide([Refused(detail="another digest")], tries_max=9, is_late=False)
    assert verdict == Verdict(code=VerdictCode.VERIFIER_ERROR, evidence="another digest")


@pytest.mark.parametrize("code", [c for c in VerdictCode if not c.carries_reward])
def test_no_reward_exists_under_a_code_that_carries_none(code: VerdictCode) -> None:
    judged = Judged(code=code, components={"a": 1.0}, clock_owner=ClockOwner.AGENT)
    verdict = decide([judged], tries_max=1, is_late=False)
    assert isinstance(verdict, Verdict)
    assert verdict.reward is None
    assert verdict.code not in (VerdictCode.NONE, VerdictCode.UNKNOWN)


@pytest.mark.parametrize(
    "judged",
    [
        Judged(code=VerdictCode.CORRECT, components={"a": float("nan")}),
        Judged(code=VerdictCode.CORRECT, components={"a": float("inf")}),
        Judged(code=VerdictCode.CORRECT),
        Judged(code=VerdictCode.TIMEOUT),
        Judged(code=VerdictCode.NONE),
    ],
)
def test_a_judgement_that_contradicts_itself_is_a_verifier_error(judged: Judged) -> None:
    verdict = decide([judged], tries_max=3, is_late=False)
    assert isinstance(verdict, Verdict)
    assert verdict.code is VerdictCode.VERIFIER_ERROR


def key(number: int) -> VerdictKey:
    return VerdictKey(EpisodeId(f"run.{number}.0"), 1, "digest")


def test_a_repeat_is_finished_only_with_the_verdict_that_it_repeats() -> None:
    memory = VerdictMemory(10)
    assert memory.receive(key(1), (0, 5)) is Received.NEW
    assert memory.receive(key(1), (0, 6)) is Received.IN_HAND
    assert memory.give(key(1)) == ((0, 5), (0, 6))
    assert memory.receive(key(1), (0, 7)) is Received.SETTLED


def test_what_is_forgotten_or_dropped_is_judged_again() -> None:
    memory = VerdictMemory(1)
    memory.receive(key(1), (0, 1))
    memory.give(key(1))
    memory.receive(key(2), (0, 2))
    memory.give(key(2))
    assert memory.receive(key(1), (0, 3)) is Received.NEW
    memory.drop(key(1))
    assert memory.receive(key(1), (0, 4)) is Received.NEW
