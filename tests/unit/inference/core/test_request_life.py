"""A request's life has these nine edges and no other."""

from __future__ import annotations

from itertools import product

import pytest

from inference.core.request_life import (
    EDGES,
    Discard,
    Drain,
    Event,
    Finish,
    Phase,
    Request,
    Resume,
    Run,
    Suspend,
    Suspension,
    step,
)  # fmt: skip
from schemas.errors import InvariantError
from schemas.ids import Version

V1, V2 = Version(1, 1), Version(1, 2)
LEGAL = {
    ("queued", "running"),
    ("running", "draining"),
    ("draining", "suspended"),
    ("suspended", "resuming_kv"),
    ("suspended", "resuming_prefill"),
    ("resuming_kv", "running"),
    ("resuming_prefill", "running"),
    ("running", "finished"),
    ("running", "discarded"),
}
KV = Suspension(wal_position=7, kv_id="kv-1", version=V1)


def _event(after: Phase) -> Event:
    match after:
        case Phase.RUNNING:
            return Run()
        case Phase.DRAINING:
            return Drain()
        case Phase.SUSPENDED:
            return Suspend(suspension=KV)
        case Phase.RESUMING_KV:
            return Resume(version=V1)
        case Phase.RESUMING_PREFILL:
            return Resume(version=V2)
        case Phase.FINISHED:
            return Finish()
        case Phase.DISCARDED:
            return Discard(reason="refence")
        case Phase.QUEUED:
            raise AssertionError("nothing leads back to the queue")


def test_the_legal_edges_are_exactly_these() -> None:
    assert {(a.value, b.value) for a, b in EDGES} == LEGAL


@pytest.mark.parametrize(
    ("before", "after"), [p for p in product(Phase, Phase) if p[1] is not Phase.QUEUED]
)
def test_every_pair_of_phases_is_an_edge_or_refused(before: Phase, after: Phase) -> None:
    request = Request(phase=before, suspension=KV)
    if (before.value, after.value) in LEGAL:
        assert step(request, _event(after)).phase is after
    else:
        with pytest.raises(InvariantError):
            step(request, _event(after))


def test_saved_kv_of_another_version_is_not_used() -> None:
    suspended = Request(phase=Phase.SUSPENDED, suspension=KV)
    assert step(suspended, Resume(version=V1)).phase is Phase.RESUMING_KV
    assert step(suspended, Resume(version=V2)).phase is Phase.RESUMING_PREFILL


def test_without_saved_kv_only_prefill_remains() -> None:
    lost = Suspension(wal_position=7, kv_id=None, version=V1)
    suspended = Request(phase=Phase.SUSPENDED, suspension=lost)
    assert step(suspended, Resume(version=V1)).phase is Phase.RESUMING_PREFILL


def test_a_discarded_request_names_its_reason() -> None:
    request = step(step(Request(), Run()), Discard(reason="invalid_logprob"))
    assert request.reason == "invalid_logprob"
    assert request.phase.is_over
