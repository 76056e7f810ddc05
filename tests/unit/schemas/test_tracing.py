"""Ids of traces are digests: the same for everybody, and such as the protocols ask for."""

import re

from schemas.ids import RunId, Version, episode_id
from schemas.tracing import (
    attempt_span,
    root_span,
    span_of,
    trace_of_episode,
    trace_of_version,
    traceparent,
    turn_span,
)

RUN = RunId("0190-run")
TRACE = trace_of_episode(episode_id(RUN, 3, 1))


def test_an_id_is_derived_and_never_changes() -> None:
    """A re-export by another release must tell the same spans: these figures may not change."""
    assert f"{TRACE:032x}" == "840e247bab534108f90ef78eb507db49"
    assert f"{root_span(TRACE):016x}" == "95f1eb1af3ba5982"


def test_what_differs_in_anything_has_another_id() -> None:
    traces = {trace_of_episode(episode_id(RUN, o, m)) for o in range(20) for m in range(20)}
    traces |= {trace_of_version(RUN, Version(e, n)) for e in range(20) for n in range(20)}
    assert len(traces) == 800
    spans = {turn_span(TRACE, a, b, t) for a in range(8) for b in range(8) for t in range(8)}
    spans |= {attempt_span(TRACE, a) for a in range(8)} | {root_span(TRACE)}
    assert len(spans) == 8**3 + 9
    assert span_of(TRACE, "tool", 1, 23) != span_of(TRACE, "tool", 12, 3)


def test_an_id_fits_its_width_and_is_never_zero() -> None:
    assert 0 < TRACE < 1 << 128
    assert 0 < root_span(TRACE) < 1 << 64


def test_the_header_is_what_w3c_asks_for() -> None:
    header = traceparent(TRACE, turn_span(TRACE, 1, 0, 2))
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", header)
    assert header.split("-")[1] == f"{TRACE:032x}"
