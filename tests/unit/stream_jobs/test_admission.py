"""The bound on lag at its source, with the numbers of the requirements."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import ValidationError

from stream_jobs.core.admission import admits, barrier, capacity
from stream_jobs.settings import SchedulerSettings


def test_eight_requests_are_admitted_at_version_0_and_the_ninth_is_refused() -> None:
    admitted = [n for n in range(1, 20) if admits(requests=n, batch=4, version=0, eta=1)]
    assert admitted == list(range(1, 9))


def test_one_update_later_up_to_twelve_are_admitted() -> None:
    admitted = [n for n in range(1, 20) if admits(requests=n, batch=4, version=1, eta=1)]
    assert admitted == list(range(1, 13))


def _free(held: int, version: int) -> int:
    return capacity(max_concurrent=100, running=0, eta=1, version=version, batch=4, held=held)


def test_capacity_equals_the_admitted_requests() -> None:
    assert _free(0, 0) == 8
    assert _free(8, 0) == 0
    assert _free(8, 1) == 4


def test_after_recovery_the_accepted_count_leaves_eight_free_and_not_twenty_eight() -> None:
    assert _free(20, 5) == 8
    assert _free(0, 5) == 28


def test_slots_bound_capacity_too_and_it_is_never_negative() -> None:
    assert capacity(max_concurrent=10, running=7, eta=1, version=0, batch=64, held=0) == 3
    assert capacity(max_concurrent=10, running=12, eta=1, version=0, batch=64, held=0) == 0


def test_a_rolled_back_learner_leaves_no_capacity_until_it_catches_up() -> None:
    assert _free(24, 4) == 0


def test_the_barrier_of_7_percent_of_100_is_7() -> None:
    assert barrier(Decimal("0.07"), prompts=10, completions=10) == 7
    assert barrier(Decimal("0.071"), prompts=10, completions=10) == 8


def test_a_group_that_can_never_be_issued_is_refused_at_start() -> None:
    with pytest.raises(ValidationError, match=r"exceeds \(eta \+ 1\) \* batch = 8"):
        SchedulerSettings(batch=4, eta=1, group_size=9)
    with pytest.raises(ValidationError, match="raise max_concurrent"):
        SchedulerSettings(batch=64, group_size=9, max_concurrent=8)
    with pytest.raises(ValidationError, match="multiple of group_size"):
        SchedulerSettings(batch=6, eta=0, group_size=4)
