"""The committed offset never passes a record that is not finished."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.core.frontier import Frontier, PartitionFrontier
from schemas.errors import InvariantError


def test_the_frontier_stays_at_the_lowest_unfinished_record() -> None:
    one = PartitionFrontier(10)
    for offset in (10, 11, 15):
        one.begin(offset)
    one.finish(11)
    assert one.offset == 10
    one.finish(10)
    assert one.offset == 15
    one.finish(15)
    assert one.offset == 16


def test_a_record_that_was_passed_cannot_begin_again() -> None:
    one = PartitionFrontier(3)
    with pytest.raises(InvariantError, match="read before"):
        one.begin(2)
    one.begin(3)
    with pytest.raises(InvariantError, match="read before"):
        one.begin(3)


def test_what_finishes_after_a_revoke_moves_nothing_even_when_the_partition_comes_back() -> None:
    frontier = Frontier()
    frontier.assign({0: 5})
    frontier.begin(0, 5)
    frontier.revoke([0])
    frontier.finish(0, 5)
    assert frontier.offsets() == {}
    frontier.assign({0: 5})
    assert frontier.offsets() == {0: 5}
    with pytest.raises(InvariantError, match="not owned"):
        frontier.begin(1, 0)


class FrontierMachine(RuleBasedStateMachine):
    """Against a model that keeps every record: the frontier is the first one not finished."""

    def __init__(self) -> None:
        super().__init__()
        self.one = PartitionFrontier(0)
        self.begun: list[int] = []
        self.finished: set[int] = set()
        self.highest = -1
        self.last = 0

    @rule(gap=st.integers(0, 3))
    def begin(self, gap: int) -> None:
        self.highest += 1 + gap
        self.one.begin(self.highest)
        self.begun.append(self.highest)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.begun))
        self.one.finish(offset)
        self.finished.add(offset)

    @invariant()
    def is_the_first_unfinished(self) -> None:
        pending = [offset for offset in self.begun if offset not in self.finished]
        assert self.one.offset == (pending[0] if pending else self.highest + 1)
        assert self.one.unfinished == len(pending)

    @invariant()
    def never_goes_back(self) -> None:
        assert self.one.offset >= self.last
        self.last = self.one.offset


TestFrontier = pytest.mark.slow(FrontierMachine.TestCase)
TestFrontier.settings = settings(max_examples=30, stateful_step_count=25)
