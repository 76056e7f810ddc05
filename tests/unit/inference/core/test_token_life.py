"""Tokens go sampled, appended, durable, exposed, and no other way."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.token_life import EDGES, TokenLedger, TokenState, move
from schemas.errors import InvariantError

LEGAL = {
    (TokenState.SAMPLED, TokenState.APPENDED),
    (TokenState.APPENDED, TokenState.DURABLE),
    (TokenState.DURABLE, TokenState.EXPOSED),
}


def test_the_legal_edges_are_exactly_these_three() -> None:
    assert EDGES == LEGAL


@pytest.mark.parametrize(("before", "after"), list(product(TokenState, TokenState)))
def test_every_pair_of_token_states_is_an_edge_or_refused(
    before: TokenState, after: TokenState
) -> None:
    if (before, after) in LEGAL:
        assert move(before, after) is after
    else:
        with pytest.raises(InvariantError):
            move(before, after)


def test_a_token_cannot_be_exposed_before_it_is_durable() -> None:
    ledger = TokenLedger.resumed(0).sample(3).append(3).acknowledge(2)
    assert ledger.expose(2).exposed == 2
    with pytest.raises(InvariantError):
        ledger.expose(3)


def test_the_state_of_each_token_follows_the_marks() -> None:
    ledger = TokenLedger.resumed(1).sample(3).append(2).acknowledge(1).expose(1)
    states = [ledger.state_of(index) for index in range(4)]
    assert states == [
        TokenState.EXPOSED,
        TokenState.DURABLE,
        TokenState.APPENDED,
        TokenState.SAMPLED,
    ]
    with pytest.raises(InvariantError):
        ledger.state_of(4)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("sade"), st.integers(0, 4)), max_size=40))
def test_no_order_of_calls_brings_the_marks_out_of_order(calls: list[tuple[str, int]]) -> None:
    ledger = TokenLedger.resumed(0)
    for name, count in calls:
        step = {
            "s": ledger.sample,
            "a": ledger.append,
            "d": ledger.acknowledge,
            "e": ledger.expose,
        }[name]
        try:
            ledger = step(count)
        except InvariantError:
            continue
        assert 0 <= ledger.exposed <= ledger.durable <= ledger.appended <= ledger.sampled
