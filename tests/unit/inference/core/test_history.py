"""A history only grows, and what the client sends never changes a sampled id (case C17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.core.history import History, Plan, Refusal, Segment, align_chat, align_ids
from inference.rendering import Renderer
from schemas.enums import CutReason, Drift, FinishReason, TokenKind
from tests.support.merging_tokenizer import MergingTokenizer

TOKENIZER = MergingTokenizer()
RENDER = Renderer(TOKENIZER)
END = TOKENIZER.stop_ids[0]
USER = {"role": "user", "content": "ab?"}
# Ids that spell texts which encode to other ids: "a","b" is "ab", and so on.
ODD = st.lists(st.sampled_from([97, 98, 99, 300, 302, 49, 50, 51, 304, 32]), max_size=12)


def plan_of(history: History, messages: list[dict[str, Any]], **extra: Any) -> Plan:
    plan = align_chat(history, messages, tools=None, render=RENDER, **extra)
    assert isinstance(plan, Plan), plan
    return plan


def grown(history: History, plan: Plan, turn: int, sampled: tuple[int, ...]) -> History:
    if plan.cut_reason is not CutReason.NONE:
        history = history.cut(plan.cut_start, fork=plan.cut_reason is CutReason.FORK)
    segments = list(history.segments)
    for index, known in plan.adopted:
        segments[index] = replace(segments[index], messages=known)
    history = replace(history, segments=tuple(segments))
    if plan.ids:
        history = history.extended(
            Segment(
                is_action=False, turn=turn, branch=history.branch, start=history.length,
                ids=plan.ids, messages=plan.messages, kind=plan.kind,
            )
        )  # fmt: skip
    return history.extended(
        Segment(
            is_action=True, turn=turn, branch=history.branch, start=history.length, ids=sampled,
            finish_reason=FinishReason.STOP if sampled[-1:] == (END,) else FinishReason.LENGTH,
        )
    )  # fmt: skip


def forgotten(history: History) -> History:
    """Return the history as another worker reads it from the log: without messages."""
    segments = tuple(
        Segment(
            is_action=s.is_action, turn=s.turn, branch=s.branch, start=s.start, ids=s.ids,
            finish_reason=s.finish_reason, kind=s.kind,
        )
        for s in history.segments
    )  # fmt: skip
    return History(segments=segments, branch=history.branch)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ODD, st.booleans(), st.text("abc 123", max_size=8)), max_size=5))
def test_every_turn_extends_the_ids_of_the_turn_before(
    turns: list[tuple[list[int], bool, str]],
) -> None:
    history, messages = History(), [dict(USER)]
    for turn, (sampled, stops, said) in enumerate(turns):
        plan = plan_of(history, messages)
        assert plan.ids == plan_of(forgotten(history), messages).ids
        before = history.ids()
        ids = (*sampled, END) if stops or not sampled else tuple(sampled)
        history = grown(history, plan, turn, ids)
        assert history.ids()[: len(before)] == before
        text = TOKENIZER.decode(ids)
        messages = [
            *messages, {"role": "assistant", "content": text}, {"role": "user", "content": said},
        ]  # fmt: skip
        follow = plan_of(history, messages)
        drifted = TOKENIZER.encode(text) != [i for i in ids if i != END]
        assert follow.drift is (Drift.REALIGN if drifted else Drift.CLEAN)
        assert follow.cut_reason is CutReason.NONE
        whole = TOKENIZER.decode([*history.ids(), *follow.ids], with_special=True)
        assert whole == TOKENIZER.render(messages, generate=True)


def test_ids_that_encode_otherwise_are_kept_and_the_drift_is_on_record() -> None:
    history = grown(History(), plan_of(History(), [USER]), 0, (97, 98, END))
    answer = {"role": "assistant", "content": "ab"}
    plan = plan_of(history, [USER, answer, USER])
    assert plan.drift is Drift.REALIGN
    assert history.segments[1].ids == (97, 98, END)


def test_a_reader_of_the_log_alone_plans_the_same_turn() -> None:
    history = grown(History(), plan_of(History(), [USER]), 0, (300, END))
    messages = [USER, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "x"}]
    ours, theirs = plan_of(history, messages), plan_of(forgotten(history), messages)
    assert ours.ids == theirs.ids
    assert theirs.adopted == ((1, (messages[1],)), (0, (USER,)))


def test_another_history_is_refused_unless_a_fork_is_asked_for() -> None:
    history = grown(History(), plan_of(History(), [USER]), 0, (300, END))
    messages = [USER, {"role": "assistant", "content": "not that"}, USER]
    refused = align_chat(history, messages, tools=None, render=RENDER)
    assert isinstance(refused, Refusal)
    plan = plan_of(history, messages, may_fork=True)
    assert (plan.drift, plan.cut_reason, plan.cut_start) == (Drift.FORK, CutReason.FORK, 0)
    assert plan.kind is TokenKind.PROMPT
    forked = history.cut(plan.cut_start, fork=True)
    assert forked.branch == 1
    assert TOKENIZER.decode(plan.ids, with_special=True) == TOKENIZER.render(
        messages, generate=True
    )


def test_a_fork_at_a_later_turn_shares_the_tokens_before_it() -> None:
    history = grown(History(), plan_of(History(), [USER]), 0, (300, END))
    first = [USER, {"role": "assistant", "content": "ab"}]
    history = grown(history, plan_of(history, [*first, USER]), 1, (99, END))
    other = {"role": "user", "content": "something else"}
    plan = plan_of(history, [*first, other], may_fork=True)
    assert plan.cut_start == history.segments[2].start
    assert plan.kind is TokenKind.OBSERVATION


def test_an_input_that_was_committed_in_part_is_completed() -> None:
    whole = plan_of(History(), [USER]).ids
    part = Segment(is_action=False, turn=0, branch=0, start=0, ids=whole[:5], kind=TokenKind.PROMPT)
    plan = plan_of(History(segments=(part,)), [USER])
    assert plan.ids == whole[5:]
    assert plan.cut_reason is CutReason.NONE


def test_an_input_that_changed_before_anything_was_sampled_starts_anew() -> None:
    part = Segment(is_action=False, turn=0, branch=0, start=0, ids=(1, 2), kind=TokenKind.PROMPT)
    plan = plan_of(History(segments=(part,)), [USER])
    assert (plan.cut_reason, plan.cut_start) == (CutReason.RESTART, 0)


def test_an_open_turn_goes_on_where_it_stands() -> None:
    history = grown(History(), plan_of(History(), [USER]), 0, (97, 98))
    tail = history.segments[-1]
    open_tail = Segment(is_action=True, turn=0, branch=0, start=tail.start, ids=tail.ids)
    history = History(segments=(history.segments[0], open_tail))
    plan = plan_of(history, [USER])
    assert plan.ids == ()
    assert plan.cut_reason is CutReason.NONE


def test_ids_given_as_such_are_appended_as_they_are() -> None:
    plan = align_ids(History(), (97, 98))
    assert isinstance(plan, Plan)
    assert plan.ids == (97, 98)
    assert plan.kind is TokenKind.PROMPT
