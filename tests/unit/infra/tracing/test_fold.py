"""Records become the same spans in whatever order their topics are read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from infra.tracing.core.fold import READ, TraceFold
from infra.tracing.core.spans import Span
from schemas.enums import (
    AbandonReason,
    EpisodeEventKind,
    LearnerEventKind,
    RefreshEventKind,
    StopCause,
    TokenKind,
    ToolEventKind,
)
from schemas.ids import EpisodeId, Version, WorkerId
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.refresh_event import RefreshEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.topics import EPISODES, LEARNER_STEPS, REFRESHES, Topic
from schemas.tracing import root_span, trace_of_episode, trace_of_version
from tests.support.recorded_run import ABANDONED, DROPPED, EVALUATED, RESUMED, TRAINED
from tests.support.run_records import RUN
from tests.support.traced_run import BEGAN_MS, told, traced_messages


def in_order(logs: list[list[Delivered[Any]]]) -> list[Delivered[Any]]:
    return [message for log in logs for message in log]


def shuffled(logs: list[list[Delivered[Any]]], seed: int) -> Iterator[Delivered[Any]]:
    """Interleave the partitions at random; each keeps its own order."""
    draw = random.Random(seed)
    left = [list(log) for log in logs]
    while left := [log for log in left if log]:
        yield draw.choice(left).pop(0)


def of(spans: list[Span], episode: EpisodeId) -> list[Span]:
    trace = trace_of_episode(episode)
    return [span for span in spans if span.trace_id == trace]


def names(spans: list[Span]) -> Counter[str]:
    return Counter(span.name for span in spans)


def root(spans: list[Span], episode: EpisodeId) -> Span:
    (found,) = (span for span in of(spans, episode) if span.parent_id is None)
    return found


def test_a_trained_episode_is_told_from_issue_to_step() -> None:
    spans = told(in_order(traced_messages()))
    assert names(of(spans, TRAINED)) == {
        "episode": 1,
        "lease wait": 1,
        "attempt": 1,
        "turn": 2,
        "generation": 2,
        "tool add": 1,
        "verification": 1,
        "assembly": 1,
        "gate": 1,
        "learner wait": 1,
    }
    top = root(spans, TRAINED)
    assert top.span_id == root_span(top.trace_id)
    assert top.attributes["sluice.outcome"] == "trained"
    assert top.attributes["sluice.reward"] == 1.0
    assert top.attributes["sluice.version"] == "1/1"
    step = trace_of_version(RUN, Version(1, 1))
    assert [(link.trace_id, link.span_id) for link in top.links] == [(step, root_span(step))]


def test_every_parent_is_told_in_the_same_trace() -> None:
    spans = told(in_order(traced_messages()))
    ids = {(span.trace_id, span.span_id) for span in spans}
    assert len(ids) == len(spans), "no two spans share an id"
    orphans = [s.name for s in spans if s.parent_id and (s.trace_id, s.parent_id) not in ids]
    assert orphans == []


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_topics_are_read_changes_nothing(seed: int) -> None:
    logs = traced_messages(partitions=3)
    expected = sorted(told(in_order(logs)), key=lambda span: (span.trace_id, span.span_id))
    found = sorted(told(list(shuffled(logs, seed))), key=lambda s: (s.trace_id, s.span_id))
    assert found == expected


@pytest.mark.parametrize("topic", [topic.name for topic in READ])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_topic_that_is_read_whole_before_or_after_all_others_changes_nothing(
    topic: str, is_first: bool
) -> None:
    messages = in_order(traced_messages(partitions=3))
    expected = sorted(told(messages), key=lambda span: (span.trace_id, span.span_id))
    moved = sorted(messages, key=lambda message: (message.topic == topic) != is_first)
    found = sorted(told(moved), key=lambda span: (span.trace_id, span.span_id))
    assert found == expected


def test_each_ending_has_its_word() -> None:
    spans = told(in_order(traced_messages()))
    outcomes = {one: root(spans, one).attributes["sluice.outcome"] for one in (
        TRAINED, RESUMED, DROPPED, ABANDONED, EVALUATED)}  # fmt: skip
    assert outcomes == {
        TRAINED: "trained", RESUMED: "trained", DROPPED: "dropped", ABANDONED: "abandoned",
        EVALUATED: "evaluated",
    }  # fmt: skip
    assert root(spans, DROPPED).attributes["sluice.reason"] == "lag"
    assert root(spans, DROPPED).error == "", "to be dropped is no failure"
    assert root(spans, ABANDONED).error == "group_deadline"


def test_to_be_given_up_with_the_run_is_no_failure() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is EpisodeEvent and record.kind is EpisodeEventKind.ABANDONED:
            return replace(record, abandon_reason=AbandonReason.RUN_ENDED)
        return record

    top = root(told(in_order(traced_messages(change))), ABANDONED)
    assert top.attributes["sluice.reason"] == "run_ended"
    assert top.error == ""


def test_a_lost_lease_ends_its_attempt_with_an_error() -> None:
    spans = of(told(in_order(traced_messages())), RESUMED)
    first, second = (span for span in spans if span.name == "attempt")
    assert first.attributes["sluice.outcome"] == "lease_lost"
    assert first.error
    assert second.attributes["sluice.outcome"] == "policy_stop"
    assert second.error == ""
    assert second.attributes["sluice.tokens"] == 13
    assert names(spans)["lease wait"] == 2


def test_a_failed_attempt_is_an_error_and_a_pause_is_not() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        match record:
            case EpisodeEvent(kind=EpisodeEventKind.LEASED, attempt=2):
                failed = replace(
                    record, kind=EpisodeEventKind.ENDED, attempt=1,
                    stop_cause=StopCause.ENVIRONMENT_ERROR, detail="the sandbox died",
                    writer_id=WorkerId("environment-0"), reset_us=2_000, queue_us=500,
                )  # fmt: skip
                return [failed, record]
            case EpisodeEvent(kind=EpisodeEventKind.ENDED, episode_id=episode) if (
                episode == TRAINED
            ):
                paused = replace(record, kind=EpisodeEventKind.PAUSED)
                lease: dict[str, Any] = {
                    "worker_id": record.writer_id,
                    "writer_id": "scheduler-0",
                    "attempt": 2,
                }
                resumed = replace(record, kind=EpisodeEventKind.RESUMED, **lease)
                leased = replace(record, kind=EpisodeEventKind.LEASED, **lease)
                return [paused, resumed, leased, replace(record, attempt=2)]
        return record

    spans = told(in_order(traced_messages(change)))
    failed = next(s for s in of(spans, RESUMED) if s.name == "attempt")
    assert failed.error == "the sandbox died"
    (reset,) = (s for s in of(spans, RESUMED) if s.name == "environment reset")
    assert (reset.start_us - failed.start_us, reset.end_us - reset.start_us) == (500, 2_000)
    assert reset.parent_id == failed.span_id
    assert names(of(spans, TRAINED))["paused"] == 1
    attempts = [s for s in of(spans, TRAINED) if s.name == "attempt"]
    assert [s.attributes["sluice.outcome"] for s in attempts] == ["paused", "policy_stop"]
    assert not any(s.error for s in attempts)


def test_what_a_fenced_scheduler_writes_is_not_told() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is EpisodeEvent and record.kind is EpisodeEventKind.ENDED:
            return [
                replace(record, kind=EpisodeEventKind.ABANDONED, scheduler_id=WorkerId("old")),
                record,
            ]
        return record

    spans = told(in_order(traced_messages(change)))
    assert root(spans, TRAINED).attributes["sluice.outcome"] == "trained"


def test_a_call_that_is_tried_again_has_a_span_for_each_try() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is ToolEvent and record.kind is ToolEventKind.INTENT:
            return [record, record]
        if type(record) is ToolEvent and record.kind is ToolEventKind.RESULT:
            return replace(record, kind=ToolEventKind.UNKNOWN_OUTCOME)
        return record

    spans = of(told(in_order(traced_messages(change))), TRAINED)
    calls = [span for span in spans if span.name == "tool add"]
    assert [one.error for one in calls] == [
        "cut short, and tried again",
        "its outcome is not known",
    ]
    assert len({one.span_id for one in calls}) == 2


def test_a_step_links_to_what_it_trained_and_leads_to_what_loads_it() -> None:
    logs = traced_messages()
    trace = trace_of_version(RUN, Version(1, 1))
    event = RefreshEvent(
        run_id=RUN, worker_id=WorkerId("inference-0"), incarnation="i",
        kind=RefreshEventKind.PREPARE, epoch=1, number=1, at_us=0, writer_id=WorkerId("refresh-0"),
    )  # fmt: skip
    kinds = (RefreshEventKind.PREPARE, RefreshEventKind.LOADED, RefreshEventKind.SERVING)
    refresh = [
        Delivered(topic=REFRESHES.name, partition=0, offset=at, key=None,
                  timestamp_ms=BEGAN_MS + 1_000 + at, record=replace(event, kind=kind, load_us=700))
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    spans = [s for s in told([*in_order(logs), *refresh]) if s.trace_id == trace]
    assert names(spans) == {"learner step": 1, "publication": 1, "refresh": 1}
    by_name = {span.name: span for span in spans}
    linked = {link.trace_id for link in by_name["learner step"].links}
    assert linked == {trace_of_episode(TRAINED), trace_of_episode(RESUMED)}
    assert by_name["refresh"].parent_id == by_name["learner step"].span_id
    assert by_name["refresh"].end_us - by_name["refresh"].start_us == 2_000
    assert [one.name for one in by_name["refresh"].happenings] == ["loaded"]


def test_a_step_of_a_fenced_learner_is_told_as_one_and_trains_nobody() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.STEP:
            return [replace(record, learner_id=WorkerId("zombie")), record]
        return record

    spans = told(in_order(traced_messages(change)))
    steps = [span for span in spans if span.name == "learner step"]
    assert [span.attributes["sluice.counts"] for span in steps] == [False, True]
    assert steps[0].error
    assert steps[0].links


def test_a_step_begins_before_its_phases() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.STEP:
            return replace(record, phases_us={"forward": 300, "backward": 700}, losses={"dis": 0.5})
        return record

    (step,) = (s for s in told(in_order(traced_messages(change))) if s.name == "learner step")
    assert step.end_us - step.start_us == 1_000
    assert step.attributes["sluice.phase.forward_us"] == 300
    assert step.attributes["sluice.loss.dis"] == 0.5


def test_what_was_admitted_and_never_trained_ends_with_the_run() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.STEP:
            return replace(record, trained=record.trained[:1])
        return record

    spans = told(in_order(traced_messages(change)))
    assert root(spans, TRAINED).attributes["sluice.outcome"] == "trained"
    assert root(spans, RESUMED).attributes["sluice.outcome"] == "dropped"
    assert root(spans, RESUMED).attributes["sluice.reason"] == "run_ended"


def test_a_second_copy_of_anything_settled_is_late_and_tells_nothing() -> None:
    messages = in_order(traced_messages())
    fold = TraceFold(RUN, open_max=100)
    for message in messages:
        fold.take(message)
    fold.all_read()
    again = [m for m in messages if m.topic not in (LEARNER_STEPS.name, EPISODES.name)]
    spans = [span for message in again for span in fold.take(message)]
    assert not [span for span in spans if span.name in ("episode", "generation", "verification")]
    assert fold.late > 0
    assert fold.open_count == 0


def test_who_is_put_out_for_others_is_counted_and_told_as_such() -> None:
    messages = in_order(traced_messages())
    fold = TraceFold(RUN, open_max=2)
    spans = [span for message in messages for span in fold.take(message)]
    spans += fold.all_read()
    assert fold.open_count <= 2
    put_out = [s for s in spans if s.attributes.get("sluice.outcome") == "evicted"]
    assert len(put_out) == fold.evicted >= 3
    assert all(span.error for span in put_out)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0])
def test_a_share_of_episodes_is_told_whole_and_all_steps_are(ratio: float) -> None:
    logs = traced_messages()
    fold = TraceFold(RUN, open_max=100, sample_ratio=ratio)
    spans = [span for message in in_order(logs) for span in fold.take(message)]
    spans += fold.all_read()
    everybody = (TRAINED, RESUMED, DROPPED, ABANDONED, EVALUATED)
    sampler = TraceIdRatioBased(ratio)
    chosen = {
        trace_of_episode(one)
        for one in everybody
        if sampler.should_sample(None, trace_of_episode(one), "episode").decision
        is Decision.RECORD_AND_SAMPLE
    }
    assert {span.trace_id for span in spans if span.name == "episode"} == chosen
    expected = [s for s in told(in_order(logs)) if s.trace_id in chosen or s.name in (
        "learner step", "publication")]  # fmt: skip
    assert sorted(map(repr, spans)) == sorted(map(repr, expected))


def test_a_fold_that_goes_on_at_its_floors_tells_what_was_open() -> None:
    """Wherever it is cut: what the first had not told, the second tells, under the same ids."""
    logs = traced_messages()
    messages = list(shuffled(logs, 7))
    expected = {(span.trace_id, span.span_id) for span in told(messages)}
    for cut in range(0, len(messages), 3):
        first = TraceFold(RUN, open_max=100)
        spans = [span for message in messages[:cut] for span in first.take(message)]
        positions = {(log[0].topic, log[0].partition): log[0].offset for log in logs}
        positions |= {(m.topic, m.partition): m.offset + 1 for m in messages[:cut]}
        floors = first.floors(positions)
        second = TraceFold(
            RUN, open_max=100, fences=first.fences(),
            judged_only={p: floor for p, floor in floors.items() if p[0] == LEARNER_STEPS.name},
        )  # fmt: skip
        rest = [
            message for message in messages
            if message.topic == LEARNER_STEPS.name
            or message.offset >= floors[message.topic, message.partition]
        ]  # fmt: skip
        spans += [span for message in rest for span in second.take(message)]
        spans += second.all_read()
        assert {(s.trace_id, s.span_id) for s in spans} == expected, f"cut after {cut}"


def test_records_left_over_of_what_was_told_before_are_forgotten() -> None:
    messages = [m for m in in_order(traced_messages()) if m.topic != EPISODES.name]
    fold = TraceFold(RUN, open_max=100)
    for message in messages:
        fold.take(message)
    fold.all_read()
    assert fold.open_count > 0
    last = messages[-1]
    fold.take(replace(last, offset=99, timestamp_ms=last.timestamp_ms + 61_000))
    fold.all_read()
    assert fold.open_count == 0
    assert fold.evicted == 0


def test_the_tokens_of_a_trace_hold_no_token() -> None:
    """A trace may leave the house where tokens may not."""
    spans = told(in_order(traced_messages()))
    told_of = {key for span in spans for key in span.attributes}
    assert not {key for key in told_of if "ids" in key or "logprob" in key or "output" in key}
    assert any(type(record) is TokenCommit and record.kind is TokenKind.ACTION
               for record in (m.record for m in in_order(traced_messages())))  # fmt: skip
