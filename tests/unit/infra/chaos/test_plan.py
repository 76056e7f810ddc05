"""The plan of a chaos run: drawn from its seed alone, and only what its scope allows."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from infra.chaos.plan import EDGES, Act, Scope, deeds
from schemas.crash_points import CrashPoint

PARTS = ("learner-0", "inference-0", "inference-1", "environment-0", "gate-0", "sink-0")
DEEDS = 400


def scope(*, with_broker: bool = True, acts: frozenset[Act] = frozenset(Act)) -> Scope:
    return Scope(
        parts=PARTS, lease_s=30.0, every_s=2.0, with_broker=with_broker, has_engine=True, acts=acts
    )


@given(st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_deeds(seed: int) -> None:
    assert list(islice(deeds(seed, scope()), 30)) == list(islice(deeds(seed, scope()), 30))


@given(st.integers(0, 2**31), st.booleans())
def test_only_parts_of_the_run_and_edges_of_their_role_are_hit(seed: int, broker: bool) -> None:
    for deed in islice(deeds(seed, scope(with_broker=broker)), 50):
        assert deed.target in PARTS or (broker and deed.target == "broker")
        assert (deed.act is Act.EDGE) <= (deed.point is not None)
        if deed.point is not None:
            assert deed.point in EDGES[deed.target.rpartition("-")[0]]
        assert (deed.lasts_s > 0) == (deed.act in (Act.STOP, Act.BROKER_STOP, Act.BROKER_KILL))


def test_every_edge_every_act_and_a_stop_past_the_lease_come_in_a_long_plan() -> None:
    done = list(islice(deeds(1, scope()), DEEDS))
    assert {deed.act for deed in done} == set(Act)
    assert {deed.point for deed in done if deed.point} == set(CrashPoint)
    assert any(deed.act is Act.STOP and deed.lasts_s > 30.0 for deed in done)


def test_a_plan_of_one_act_has_no_other() -> None:
    done = islice(deeds(3, scope(acts=frozenset({Act.STOP}))), 50)
    assert {deed.act for deed in done} == {Act.STOP}
