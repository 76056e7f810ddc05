"""The cutter loses nothing, mixes no versions and keeps its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core import commit_cutter as cutting
from inference.core.commit_cutter import Cut, CutterLimits, CutterState
from schemas.enums import FinishReason
from schemas.ids import Version

LIMITS = CutterLimits(commit_tokens=4, commit_interval_us=50_000)
V1, V2 = Version(1, 1), Version(1, 2)
DELTAS = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 60_000)), max_size=30)


def _add(
    state: CutterState, ids: range, version: Version, now_us: int, *, is_last: bool = False
) -> tuple[CutterState, tuple[Cut, ...]]:
    return cutting.add(
        state,
        limits=LIMITS,
        token_ids=list(ids),
        logprobs=[-1.0] * len(ids),
        version=version,
        now_us=now_us,
        is_last=is_last,
    )


def test_a_full_commit_goes_out_at_once() -> None:
    state, cuts = _add(CutterState(), range(9), V1, 0)
    assert [len(cut.token_ids) for cut in cuts] == [4, 4]
    assert state.token_ids == (8,)


def test_a_young_commit_waits_for_its_interval() -> None:
    state, cuts = _add(CutterState(), range(2), V1, 1000)
    assert not cuts
    assert state.due_us(LIMITS) == 51_000
    state, cuts = _add(state, range(2, 3), V1, 51_000)
    assert [cut.token_ids for cut in cuts] == [(0, 1, 2)]
    assert state.due_us(LIMITS) is None


def test_a_change_of_version_cuts_what_came_before_it() -> None:
    state, _ = _add(CutterState(), range(2), V1, 0)
    state, cuts = _add(state, range(2, 3), V2, 1)
    assert [(cut.token_ids, cut.version) for cut in cuts] == [((0, 1), V1)]
    assert state.version == V2


def test_the_end_of_a_turn_stands_on_a_commit_with_tokens() -> None:
    state, cuts = _add(CutterState(), range(4), V1, 0, is_last=True)
    assert not cuts
    _, cuts = cutting.finish(state, reason=FinishReason.STOP, version=V1, now_us=1)
    assert [(len(cut.token_ids), cut.finish_reason) for cut in cuts] == [(4, FinishReason.STOP)]


def test_a_turn_that_ends_without_a_waiting_token_still_says_so() -> None:
    _, cuts = cutting.finish(CutterState(), reason=FinishReason.LENGTH, version=V1, now_us=1)
    assert [(cut.token_ids, cut.finish_reason) for cut in cuts] == [((), FinishReason.LENGTH)]


@pytest.mark.slow
@given(DELTAS)
def test_every_token_comes_out_once_in_order_under_its_own_version(
    deltas: list[tuple[int, bool, int]],
) -> None:
    state, out, now_us, given_ids = CutterState(), list[Cut](), 0, 0
    labels: list[Version] = []
    for count, second, pause_us in deltas:
        now_us += pause_us
        version = V2 if second else V1
        state, cuts = _add(state, range(given_ids, given_ids + count), version, now_us)
        labels += [version] * count
        given_ids += count
        out += cuts
        due_us = state.due_us(LIMITS)
        assert due_us is None or due_us > now_us
    _, cuts = cutting.flush(state)
    out += cuts
    assert [i for cut in out for i in cut.token_ids] == list(range(given_ids))
    assert [cut.version for cut in out for _ in cut.token_ids] == labels
    assert all(len(cut.token_ids) <= LIMITS.commit_tokens for cut in out)
