"""Turns and generations, worked out by hand, and the worked cases of the WAL's reading rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.tracing.core.spans import Span
from infra.tracing.core.tokens import TokenTrace
from schemas.enums import CutReason, FinishReason, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import (
    Span as PolicySpan,
)
from schemas.packing import (
    Timing,
    crc32c,
    pack_ids,
    pack_spans,
    pack_timing,
)
from schemas.records.token_commit import TokenCommit
from schemas.tracing import attempt_span, trace_of_episode, turn_span

EPISODE = EpisodeId("r.0.0")
TRACE = trace_of_episode(EPISODE)
ROOT = Path(__file__).resolve().parents[3]
CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "schemas" / "cases" / "wal_reading_rule.json").read_text()
)["cases"]


def commit(
    kind: TokenKind,
    *,
    turn: int = 0,
    start: int = 0,
    count: int = 0,
    fence: tuple[int, int, str] = (1, 1, "inference-0"),
    timing: Timing | None = None,
    version: Version | None = None,
    **fields: Any,
) -> TokenCommit:
    ids = pack_ids(range(count))
    spans = pack_spans([PolicySpan(start, start + count, version)]) if version else b""
    return TokenCommit(
        run_id=RunId("r"), episode_id=EPISODE, group_id=GroupId("r.0.g"), attempt=fence[0],
        fence_number=fence[1], writer_id=WorkerId(fence[2]), incarnation="i", producer_number=1,
        kind=kind, turn=turn, start=start, count=count, token_ids=ids, spans=spans,
        timing=pack_timing(timing) if timing else b"", crc32c=crc32c(ids, b"", spans), at_us=0,
        **fields,
    )  # fmt: skip


def timed(asked: int, first: int, last: int, prefilled: int = 0, reused: int = 0) -> Timing:
    return Timing(
        requested_us=asked, first_token_us=first, last_token_us=last,
        prefilled_tokens=prefilled, reused_tokens=reused,
    )  # fmt: skip


def told(*records: tuple[int, TokenCommit]) -> list[Span]:
    """Take records with their times; return all spans, those left open included."""
    trace = TokenTrace(TRACE)
    spans = [
        span
        for offset, (at_us, record) in enumerate(records, start=100)
        for span in trace.take(offset, at_us, at_us + 5, record)
    ]
    return spans + list(trace.finish())


def test_a_turn_goes_from_its_request_to_the_next_and_its_generation_to_its_last_token() -> None:
    action, stop = TokenKind.ACTION, FinishReason.STOP
    spans = told(
        (10, commit(TokenKind.FENCE)),
        (21, commit(TokenKind.PROMPT, count=7)),
        (40, commit(action, start=7, count=3, timing=timed(20, 30, 39, 5, 2),
                    version=Version(1, 4))),
        (60, commit(action, start=10, count=2, timing=timed(20, 30, 59, 5, 2),
                    version=Version(1, 5), finish_reason=stop)),
        (91, commit(TokenKind.OBSERVATION, turn=1, start=12, count=4)),
        (99, commit(action, turn=1, start=16, count=1, timing=timed(90, 95, 98, 1, 15),
                    version=Version(1, 5), finish_reason=stop)),
    )  # fmt: skip
    first, turn, second, last = spans
    assert [span.name for span in spans] == ["generation", "turn", "generation", "turn"]
    assert (first.start_us, first.end_us) == (20, 59)
    assert (turn.start_us, turn.end_us) == (20, 90)
    assert (second.start_us, second.end_us) == (90, 98)
    assert (last.start_us, last.end_us) == (90, 99)
    assert first.parent_id == turn.span_id == turn_span(TRACE, 1, 0, 0)
    assert turn.parent_id == attempt_span(TRACE, 1)
    assert [(one.name, one.at_us) for one in first.happenings] == [
        ("first token", 30), ("durable", 65),
    ]  # fmt: skip
    attributes = {
        "tokens": 5, "commits": 2, "versions": ("1/4", "1/5"), "prefilled_tokens": 5,
        "reused_tokens": 2, "finish_reason": "stop", "worker_id": "inference-0",
        "wal.first": 102, "wal.last": 103,
    }  # fmt: skip
    for name, value in attributes.items():
        assert first.attributes[f"sluice.{name}"] == value
    assert turn.attributes["sluice.prompt_tokens"] == 7
    assert last.attributes["sluice.observation_tokens"] == 4
    assert not any(span.error for span in spans)


def test_a_turn_that_another_worker_goes_on_with_has_a_generation_of_each() -> None:
    other = (1, 2, "inference-1")
    spans = told(
        (10, commit(TokenKind.FENCE)),
        (40, commit(TokenKind.ACTION, count=3, timing=timed(20, 30, 39))),
        (50, commit(TokenKind.FENCE, fence=other)),
        (55, commit(TokenKind.ACTION, start=3, count=9, timing=timed(20, 30, 54))),
        (70, commit(TokenKind.ACTION, start=3, count=2, timing=timed(52, 60, 69), fence=other,
                    finish_reason=FinishReason.LENGTH)),
    )  # fmt: skip
    first, second, turn = spans
    assert first.error == "another writer took over"
    assert (first.start_us, first.end_us) == (20, 39)
    assert second.error == ""
    assert second.attributes["sluice.tokens"] == 2, "the fenced writer's nine are not told"
    assert first.parent_id == second.parent_id == turn.span_id
    assert first.span_id != second.span_id


def test_a_new_attempt_goes_on_with_the_turn_as_its_own() -> None:
    again = (2, 1, "inference-0")
    spans = told(
        (10, commit(TokenKind.FENCE)),
        (40, commit(TokenKind.ACTION, count=3, timing=timed(20, 30, 39))),
        (50, commit(TokenKind.FENCE, fence=again)),
        (70, commit(TokenKind.ACTION, start=3, count=2, timing=timed(52, 60, 69), fence=again,
                    finish_reason=FinishReason.STOP)),
    )  # fmt: skip
    turns = [span for span in spans if span.name == "turn"]
    assert [span.parent_id for span in turns] == [attempt_span(TRACE, 1), attempt_span(TRACE, 2)]
    assert turns[0].end_us == 40


def test_a_cut_is_told_in_its_turn_and_what_is_sampled_anew_is_another_generation() -> None:
    action, stop = TokenKind.ACTION, FinishReason.STOP
    spans = told(
        (10, commit(TokenKind.FENCE)),
        (40, commit(action, count=3, timing=timed(20, 30, 39), finish_reason=stop)),
        (50, commit(TokenKind.CUT, cut_reason=CutReason.RESTART)),
        (70, commit(action, count=2, timing=timed(20, 60, 69), finish_reason=stop)),
    )  # fmt: skip
    first, second, turn = spans
    assert first.span_id != second.span_id
    assert [one.name for one in turn.happenings] == ["cut"]
    assert turn.happenings[0].attributes["sluice.cut_reason"] == "restart"


def test_times_that_a_record_does_not_tell_are_those_of_the_record() -> None:
    spans = told(
        (10, commit(TokenKind.FENCE)),
        (40, commit(TokenKind.ACTION, count=3)),
        (60, commit(TokenKind.ACTION, start=3, count=1, timing=timed(0, 0, 0),
                    finish_reason=FinishReason.STOP)),
    )  # fmt: skip
    assert (spans[0].start_us, spans[0].end_us) == (40, 60)
    assert [one.name for one in spans[0].happenings] == ["durable"]


def test_a_damaged_packing_costs_an_attribute_and_nothing_else() -> None:
    record = commit(TokenKind.ACTION, count=3, finish_reason=FinishReason.STOP, logprobs=b"xyz")
    spans = told((10, commit(TokenKind.FENCE)), (40, record))
    assert spans[0].attributes["sluice.tokens"] == 3
    assert "sluice.versions" not in spans[0].attributes


def _record(raw: dict[str, Any]) -> TokenCommit:
    kinds = {"fence": TokenKind.FENCE, "cut": TokenKind.CUT, "commit": TokenKind.ACTION}
    return commit(
        kinds[raw["kind"]], start=raw.get("start", 0), count=raw.get("n", 0),
        fence=tuple(raw["w"]), seq=raw.get("seq", -1),
        cut_reason=CutReason(raw.get("reason", "none")),
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_token_that_counts_is_told_of_its_writer(case: dict[str, Any]) -> None:
    """Whoever wrote under a void fence is told of nowhere."""
    records = [raw for raw in case["log"] if raw["kind"] != "bad"]
    verdicts = [v for raw, v in zip(case["log"], case["expect"]["records"], strict=True)
                if raw["kind"] != "bad"]  # fmt: skip
    trace = TokenTrace(TRACE)
    spans = [s for at, raw in enumerate(records) for s in trace.take(at, at + 1, at, _record(raw))]
    spans += list(trace.finish())
    generations = [span.attributes for span in spans if span.name == "generation"]
    for at, (raw, verdict) in enumerate(zip(records, verdicts, strict=True)):
        if raw["kind"] == "commit" and verdict == "accepted":
            number, writer = raw["w"][1:]
            assert any(
                one["sluice.wal.first"] <= at <= one["sluice.wal.last"]  # type: ignore[operator]  # both are offsets
                and (one["sluice.fence_number"], one["sluice.worker_id"]) == (number, writer)
                for one in generations
            ), f"record {at}"
    assert trace.superseded <= len([v for v in verdicts if v in ("superseded", "duplicate", "gap")])
    assert len({span.span_id for span in spans}) == len(spans)
