"""Replies are taken apart the way the model was told to write them."""

from __future__ import annotations

from inference.core.messages import plain, read_reply, says_exactly, says_the_same

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_a_tool_call_is_read_with_its_arguments_as_json_text() -> None:
    reply = read_reply(f"Let me see. {CALL}", with_tools=True)
    assert reply.content == "Let me see."
    assert [(c.name, c.arguments) for c in reply.calls] == [("add", '{"a": 1}')]


def test_two_calls_in_one_reply_keep_their_order() -> None:
    second = '<tool_call>{"name": "sub", "arguments": {}}</tool_call>'
    assert [c.name for c in read_reply(CALL + second, with_tools=True).calls] == ["add", "sub"]


def test_a_call_that_is_no_json_stays_text() -> None:
    for broken in (
        "<tool_call>{name: add}</tool_call>",
        "<tool_call>{",
        "<tool_call>[1]</tool_call>",
    ):
        reply = read_reply(broken, with_tools=True)
        assert not reply.calls
        assert reply.content == broken


def test_without_tools_in_the_request_a_call_is_text() -> None:
    assert read_reply(CALL, with_tools=False).content == CALL


def test_a_returned_reply_is_the_same_when_only_its_json_layout_changed() -> None:
    reply = read_reply(CALL, with_tools=True)
    exact = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}],
    }
    spaced = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": '{"a":1}'}}],
    }
    other = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2}'}}],
    }
    assert says_exactly(exact, reply)
    assert not says_exactly(spaced, reply)
    assert says_the_same(spaced, reply, CALL)
    assert not says_the_same(other, reply, CALL)


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain({"role": "user", "content": parts}) == {"role": "user", "content": "ab"}
