"""What is done about a call, given what the tool log says of it; how calls are read from text."""

from __future__ import annotations

import pytest

from environments.core.tool_calls import AskByKey, GiveUp, Replay, Run, declared, plan
from environments.core.tool_text import arguments_of, code_blocks, read_reply, tool_messages
from environments.ports import Tool, ToolCall, ToolOutput
from inference.core.messages import read_reply as read_by_gateway
from schemas.enums import ToolEventKind, ToolExit
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.tool_event import ToolEvent
from schemas.rules.tools import ToolLog

KEY = "run.0.0:0:0:0"


def tool(*, idempotent: bool = False, asks: bool = False, external: bool = True) -> Tool:
    return Tool(
        name="add", description="", parameters={}, idempotent=idempotent, external=external,
        timeout_s=1.0, asks_by_key=asks,
    )  # fmt: skip


def log(*events: tuple[ToolEventKind, int]) -> ToolLog:
    """Return the log of one call after events of (kind, attempt), at offsets 10, 11, ..."""
    tools = ToolLog()
    for offset, (kind, attempt) in enumerate(events, start=10):
        event = ToolEvent(
            run_id=RunId("run"), episode_id=EpisodeId("run.0.0"), group_id=GroupId("run.0.g"),
            kind=kind, attempt=attempt, writer_id=WorkerId("w"), incarnation="a", call_key=KEY,
            output="42", exit_class=ToolExit.OK, at_us=1,
        )  # fmt: skip
        tools.take(offset, event)
    return tools


INTENT, RESULT = ToolEventKind.INTENT, ToolEventKind.RESULT
FENCE, UNKNOWN = ToolEventKind.FENCE, ToolEventKind.UNKNOWN_OUTCOME


def test_a_new_call_is_run() -> None:
    assert plan(tool(), log().calls.get(KEY)) == Run(again=False)


def test_a_call_with_a_result_is_replayed_whatever_the_tool_declares() -> None:
    found = log((INTENT, 1), (RESULT, 1), (FENCE, 2)).calls.get(KEY)
    for one in (tool(), tool(idempotent=True), tool(asks=True)):
        planned = plan(one, found)
        assert isinstance(planned, Replay)
        assert (planned.output.output, planned.offset) == ("42", 11)


@pytest.mark.parametrize(
    ("declared_tool", "planned"),
    [
        (tool(asks=True), AskByKey(intent_offset=10)),
        (tool(asks=True, idempotent=True), AskByKey(intent_offset=10)),
        (tool(idempotent=True), Run(again=True)),
        (tool(), GiveUp(intent_offset=10, is_recorded=False)),
    ],
)
def test_a_call_with_only_an_intent_is_asked_for_run_again_or_given_up(
    declared_tool: Tool, planned: object
) -> None:
    assert plan(declared_tool, log((INTENT, 1), (FENCE, 2)).calls.get(KEY)) == planned


def test_a_recorded_unknown_stays_unknown() -> None:
    found = log((INTENT, 1), (FENCE, 2), (UNKNOWN, 2), (FENCE, 3)).calls.get(KEY)
    assert plan(tool(asks=True), found) == GiveUp(intent_offset=10, is_recorded=True)


def test_a_result_that_came_after_the_fence_counts_only_when_an_observation_shows_it() -> None:
    tools = log((INTENT, 1), (FENCE, 2), (RESULT, 1))
    assert plan(tool(idempotent=True), tools.calls.get(KEY)) == Run(again=True)
    tools.accept_result(12)
    assert isinstance(plan(tool(idempotent=True), tools.calls.get(KEY)), Replay)


def test_a_name_that_no_tool_has_harms_nothing() -> None:
    found = declared((tool(),), ToolCall(id="x", name="nonsense", arguments=""))
    assert (found.external, found.idempotent) == (False, True)


TEXTS = [
    "plain text",
    'I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
    '<tool_call>{"name": "a"}</tool_call>, <tool_call>{"name": "b", "arguments": {}}</tool_call>',
    "<tool_call>no json</tool_call> after",
    '<tool_call>{"name": "open", "arguments": {}}',
    '<tool_call>{"name": 3}</tool_call>',
    '<tool_call>{"name": "x", "arguments": "text"}</tool_call>',
    '<tool_call>["name"]</tool_call>',
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_turn_replayed_from_text_gives_what_the_gateway_handed_out(text: str) -> None:
    content, calls = read_reply(text)
    theirs = read_by_gateway(text, with_tools=True)
    assert content == theirs.content
    assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in theirs.calls]


def test_code_is_read_from_fences_closed_or_not() -> None:
    text = "First\n```python\nprint(1)\n```\nthen\n```py\nprint(2)"
    assert code_blocks(text) == ("print(1)\n", "print(2)")


def test_arguments_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        arguments_of(ToolCall(id="", name="x", arguments="[1]"))


def test_only_calls_that_the_gateway_read_are_answered_in_the_role_of_a_tool() -> None:
    output = ToolOutput(output="42")
    call = ToolCall(id="call_0", name="x", arguments="{}")
    [as_tool] = tool_messages((call,), (output,))
    [as_user] = tool_messages((), (output,))
    assert (as_tool.role, as_tool.tool_call_id, as_user.role) == ("tool", "call_0", "user")
