"""The audit's own reading of the tool log: what is an execution, and what is only an answer."""

from __future__ import annotations

from typing import Any

from infra.audit.calls import Calls
from infra.audit.report import Findings
from schemas.enums import ToolEventKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.tool_event import ToolEvent
from schemas.topics import TOOL_EVENTS

KEY = "r.0.0:0:0:0"


def broken(*records: tuple[ToolEventKind, int, dict[str, Any]]) -> list[str]:
    """Return what an audit says of a log of (kind, attempt, fields)."""
    findings = Findings()
    calls = Calls(findings)
    for offset, (kind, attempt, fields) in enumerate(records):
        event = ToolEvent(
            run_id=RunId("r"),
            episode_id=EpisodeId("r.0.0"),
            group_id=GroupId("r.0.g"),
            kind=kind,
            attempt=attempt,
            call_key="" if kind is ToolEventKind.FENCE else KEY,
            writer_id=WorkerId("environment-0"),
            incarnation="a",
            at_us=1,
            **{"deadline_us": 1, "intent_offset": 0, **fields},
        )
        message = Delivered(
            topic=TOOL_EVENTS.name, partition=0, offset=offset, timestamp_ms=1, key=None,
            record=event,
        )  # fmt: skip
        calls.take(message)
    return [violation.what for violation in findings.violations]


def test_a_result_that_lands_after_the_tool_was_asked_is_no_second_execution() -> None:
    assert not broken(
        (ToolEventKind.INTENT, 1, {}),
        (ToolEventKind.FENCE, 2, {}),
        (ToolEventKind.RESULT, 2, {"replayed": True}),
        (ToolEventKind.RESULT, 1, {}),
    )


def test_two_results_of_executions_are_two_executions() -> None:
    assert broken(
        (ToolEventKind.INTENT, 1, {}),
        (ToolEventKind.RESULT, 1, {}),
        (ToolEventKind.INTENT, 1, {}),
        (ToolEventKind.RESULT, 1, {"intent_offset": 2}),
    ) == [f"{KEY} was executed twice and is not idempotent"]
