"""What becomes of a group whose members are not all valid (F8), and its statistics."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_jobs.core.group_repair import baseline, repeats
from stream_jobs.settings import GroupRule

REPAIR = GroupRule.REPAIR


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ((True,) * 4, (1, 1, 1, 1)),
        ((True, False, True, True), (2, 0, 1, 1)),
        ((True, True, False, False), (0, 0, 0, 0)),
        ((False, False, True, False), (0, 0, 0, 0)),
        ((False,) * 4, (0, 0, 0, 0)),
    ],
)
def test_of_four_members_four_are_kept_three_repaired_and_two_or_fewer_dropped(
    valid: tuple[bool, ...], expected: tuple[int, ...]
) -> None:
    assert repeats(valid, size=4, rule=REPAIR) == expected


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=16), st.integers(0, 4))
def test_a_repaired_group_is_full_and_repeats_are_as_even_as_can_be(
    valid: list[bool], missing: int
) -> None:
    size = len(valid) + missing
    times = repeats(valid, size=size, rule=REPAIR)
    used = [count for count in times if count]
    if 2 * sum(valid) > size:
        assert sum(times) == size
        assert max(used) - min(used) <= 1
        assert [count > 0 for count in times] == valid
    else:
        assert not used


def test_a_single_rollout_is_a_group_of_one() -> None:
    assert repeats((True,), size=1, rule=REPAIR) == (1,)
    assert repeats((False,), size=1, rule=REPAIR) == (0,)


def test_the_other_rules_keep_the_valid_or_want_all() -> None:
    assert repeats((True, False), size=2, rule=GroupRule.KEEP) == (1, 0)
    assert repeats((True, False), size=2, rule=GroupRule.WHOLE) == (0, 0)
    assert repeats((True, True), size=3, rule=GroupRule.WHOLE) == (0, 0)
    assert repeats((True, True), size=2, rule=GroupRule.WHOLE) == (1, 1)


def test_statistics_are_those_of_the_members_with_a_reward() -> None:
    shared = baseline([0.0, 1.0, 1.0, 0.0])
    assert (shared.mean, shared.deviation, shared.count) == (0.5, 0.5, 4)
    assert baseline([]).count == 0
