"""The plan of a chaos run: drawn from its seed alone, and only what its scope allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.chaos.plan import EDGES, Act, Scope, Tally, deeds, role_of
from schemas.crash_points import CrashPoint

PARTS = ("learner-0", "inference-0", "inference-1", "environment-0", "gate-0", "sink-0")
DEEDS = 400
KILLS = frozenset({Act.KILL, Act.EDGE})


def scope(
    *, with_broker: bool = True, acts: frozenset[Act] = frozenset(Act), parts: Sequence[str] = PARTS
) -> Scope:  # fmt: skip
    return Scope(
        parts=parts, lease_s=30.0, every_s=2.0, with_broker=with_broker, has_engine=True, acts=acts
    )


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_deeds(seed: int) -> None:
    assert list(islice(deeds(seed, scope()), 30)) == list(islice(deeds(seed, scope()), 30))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**31), st.booleans())
def test_only_parts_of_the_run_and_edges_of_their_role_are_hit(seed: int, broker: bool) -> None:
    for deed in islice(deeds(seed, scope(with_broker=broker)), 50):
        assert deed.target in PARTS or (broker and deed.target == "broker")
        assert (deed.act is Act.EDGE) <= (deed.point is not None)
        if deed.point is not None:
            assert deed.point in EDGES[deed.target.rpartition("-")[0]]
        assert (deed.lasts_s > 0) == (deed.act in (Act.STOP, Act.BROKER_STOP, Act.BROKER_KILL))


@pytest.mark.parametrize("seed", range(8))
def test_every_edge_is_hit_within_forty_deeds_and_no_edge_twice_more_than_another(
    seed: int,
) -> None:
    done = list(islice(deeds(seed, scope(acts=KILLS)), 60))
    deaths = Counter(deed.point for deed in done if deed.act is Act.EDGE)
    early = Counter(deed.point for deed in done[:40] if deed.act is Act.EDGE)
    assert early.keys() == set(CrashPoint)
    assert max(deaths.values()) - min(deaths.values()) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_every_act_comes_within_ninety_deeds_and_every_role_too(seed: int) -> None:
    done = list(islice(deeds(seed, scope()), 90))
    assert {deed.act for deed in done} == set(Act)
    assert {role_of(deed.target) for deed in done} >= {role_of(part) for part in PARTS}


def test_some_stops_outlast_the_lease_and_some_begin_at_an_edge() -> None:
    stops = [deed for deed in islice(deeds(1, scope()), DEEDS) if deed.act is Act.STOP]
    assert any(deed.lasts_s > 30.0 for deed in stops)
    assert any(deed.point is not None for deed in stops)


@pytest.mark.parametrize("seed", range(8))
def test_who_is_taken_is_spared_and_its_edges_wait(seed: int) -> None:
    tally = Tally(busy=frozenset({"learner-0", "inference-1"}))
    done = list(islice(deeds(seed, scope(), tally), 60))
    assert not {deed.target for deed in done} & tally.busy
    tally.busy = frozenset()
    following = [d for d in islice(deeds(seed, scope(), tally), 60) if d.act is Act.EDGE]
    # They are furthest behind now, so they come first.
    assert {deed.point for deed in following[: len(EDGES["learner"])]} == set(EDGES["learner"])


def test_an_edge_that_was_missed_comes_again_and_one_never_reached_holds_none_up() -> None:
    tally = Tally()
    hits: Counter[CrashPoint] = Counter()
    tried = 0
    for deed in islice(deeds(5, scope(acts=frozenset({Act.EDGE})), tally), 200):
        assert deed.point is not None
        if deed.point is CrashPoint.AFTER_MARKER:
            tried += 1
            tally.give_back(deed)
        else:
            hits[deed.point] += 1
    assert hits.keys() == set(CrashPoint) - {CrashPoint.AFTER_MARKER}
    assert tried > max(hits.values())
    assert min(hits.values()) > 200 / len(CrashPoint) * 0.8


def test_a_plan_of_one_act_has_no_other() -> None:
    done = islice(deeds(3, scope(acts=frozenset({Act.STOP}))), 50)
    assert {deed.act for deed in done} == {Act.STOP}


def test_where_only_learners_may_be_hit_their_edges_share_the_deaths_alike() -> None:
    only = scope(acts=frozenset({Act.EDGE}), parts=["learner-0"], with_broker=False)
    done = list(islice(deeds(4, only), 60))
    assert Counter(deed.point for deed in done) == dict.fromkeys(EDGES["learner"], 10)
    assert {(deed.target, deed.nth) for deed in done} == {("learner-0", 1)}


def test_a_role_without_edges_or_engine_is_hit_in_the_other_ways_only() -> None:
    done = list(islice(deeds(5, scope(parts=["gate-0"], with_broker=False)), 100))
    assert {deed.act for deed in done} == {Act.KILL, Act.STOP, Act.PREEMPT, Act.CUT}
    assert {(deed.target, deed.point) for deed in done} == {("gate-0", None)}
    assert not any(map(scope(parts=["gate-0"], acts=frozenset({Act.EDGE, Act.ENGINE})).allows, Act))
