"""Which Intents and Results of the tool log count."""

from __future__ import annotations

from schemas.enums import ToolEventKind, ToolExit
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.tool_event import ToolEvent
from schemas.rules.tools import ToolLog


def event(kind: ToolEventKind, attempt: int = 1, key: str = "k") -> ToolEvent:
    """Return one tool record."""
    return ToolEvent(
        run_id=RunId("r"),
        episode_id=EpisodeId("r.0.0"),
        group_id=GroupId("r.0.g"),
        kind=kind,
        attempt=attempt,
        writer_id=WorkerId("e"),
        incarnation="i",
        call_key="" if kind is ToolEventKind.FENCE else key,
        exit_class=ToolExit.OK if kind is ToolEventKind.RESULT else ToolExit.NONE,
        at_us=0,
    )


FENCE, INTENT, RESULT = ToolEventKind.FENCE, ToolEventKind.INTENT, ToolEventKind.RESULT
UNKNOWN = ToolEventKind.UNKNOWN_OUTCOME


def _taken(*events: ToolEvent) -> tuple[ToolLog, list[bool]]:
    log = ToolLog()
    return log, [log.take(offset, e) for offset, e in enumerate(events)]


def test_a_call_with_a_result_is_closed_and_names_both_records() -> None:
    log, counts = _taken(event(FENCE), event(INTENT), event(RESULT))
    assert counts == [True, True, True]
    call = log.calls["k"]
    assert (call.intent_offset, call.result_offset, call.is_open) == (1, 2, False)
    assert (log.first_offset, log.last_offset, log.fence_attempt) == (0, 2, 1)


def test_records_of_a_lower_attempt_after_the_fence_are_void() -> None:
    log, counts = _taken(event(FENCE), event(INTENT), event(FENCE, 2), event(RESULT), event(INTENT))
    assert counts == [True, True, True, False, False]
    assert log.void == 2
    assert log.calls["k"].is_open


def test_an_accepted_observation_makes_the_result_it_names_count() -> None:
    log, _ = _taken(event(INTENT), event(FENCE, 2), event(RESULT))
    assert log.accept_result(2)
    assert (log.calls["k"].result_offset, log.void) == (2, 0)
    assert not log.accept_result(2)


def test_an_observation_read_before_its_result_counts_too() -> None:
    log, _ = _taken(event(INTENT), event(FENCE, 2))
    assert not log.accept_result(2)
    assert log.take(2, event(RESULT))


def test_of_two_fences_or_results_the_first_counts() -> None:
    _, counts = _taken(event(FENCE), event(FENCE), event(INTENT), event(RESULT), event(RESULT))
    assert counts == [True, False, True, True, False]


def test_a_result_needs_an_intent_before_it() -> None:
    log, counts = _taken(event(RESULT), event(UNKNOWN))
    assert counts == [False, False]
    assert not log.calls


def test_a_call_may_run_again_until_it_has_a_result() -> None:
    log, counts = _taken(
        event(INTENT), event(FENCE, 2), event(INTENT, 2), event(RESULT, 2), event(INTENT, 2)
    )
    assert counts == [True, True, True, True, False]
    assert log.calls["k"].intent_offset == 2


def test_an_unknown_outcome_closes_the_call() -> None:
    log, counts = _taken(event(INTENT), event(FENCE, 2), event(UNKNOWN, 2))
    assert all(counts)
    assert log.calls["k"].unknown is not None
    assert not log.calls["k"].is_open
