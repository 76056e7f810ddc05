"""The life of one attempt, bare: every edge, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from environments.core import episode_commands as c
from environments.core import episode_events as e
from environments.core.episode import step
from environments.core.episode_state import Budgets, Episode, PastTurn, Phase
from environments.ports import (
    CallTools,
    Continue,
    Done,
    Message,
    Opening,
    Reply,
    Tool,
    ToolCall,
    ToolOutput,
)
from schemas.enums import FinishReason, StopCause
from schemas.errors import InvariantError
from schemas.ids import EpisodeId

NONE = Budgets(tokens_max=0, turn_tokens_max=0, turns_max=0, seconds_max=0.0)
QUESTION = Message(role="user", content="?")
EXTERNAL = Tool(
    name="add", description="", parameters={}, idempotent=False, external=True, timeout_s=1.0
)
ASKABLE = replace(EXTERNAL, asks_by_key=True)
HARMLESS = replace(EXTERNAL, external=False, idempotent=True)
CALL = ToolCall(id="0", name="add", arguments="{}")
OUTPUT = ToolOutput(output="42")
POLICY_STOP = Done(cause=StopCause.POLICY_STOP)


def new(attempt: int = 1, budgets: Budgets = NONE) -> Episode:
    return Episode(episode_id=EpisodeId("run.0.0"), attempt=attempt, budgets=budgets)


def opened(attempt: int = 1, number: int = 1, **more: Any) -> e.SessionOpened:
    fields = {"position": 5, "length": 0, "turns": (), **more}
    return e.SessionOpened(attempt=attempt, fence_number=number, **fields)


def replied(number: int = 1, *, attempt: int = 1, tokens: int = 2, **more: Any) -> e.Replied:
    reply = Reply(text="hm", tokens=tokens, **more)
    return e.Replied(
        attempt=attempt, fence_number=number, position=9, length=7, branch=0, reply=reply, now_ms=0
    )


def reset(tool: Tool = EXTERNAL) -> e.EnvironmentReset:
    return e.EnvironmentReset(opening=Opening(messages=(QUESTION,), tools=(tool,)), now_ms=0)


def stepped(taken: Any, now_ms: int = 0) -> e.Stepped:
    return e.Stepped(step=taken, now_ms=now_ms)


def run(episode: Episode, *events: e.Event) -> tuple[Episode, c.Command | None]:
    command: c.Command | None = None
    for event in events:
        episode, command = step(episode, event)
    return episode, command


def calling(tool: Tool = EXTERNAL, *, attempt: int = 1) -> Episode:
    """Return an episode that waits for the acknowledgement of its first Intent."""
    fenced: tuple[e.Event, ...] = (e.ToolsFenced(offset=3),) if attempt > 1 else ()
    episode, command = run(
        new(attempt), e.Begun(now_ms=0), *fenced, opened(attempt), reset(tool),
        replied(attempt=attempt), stepped(CallTools(calls=(CALL,))),
    )  # fmt: skip
    assert isinstance(command, c.WriteIntent)
    return episode


def test_the_first_attempt_opens_under_number_one_without_a_read() -> None:
    episode, command = run(new(), e.Begun(now_ms=0))
    assert command == c.OpenSession(fence_number=1, first=True)
    assert episode.phase is Phase.OPENING


def test_a_later_attempt_fences_the_tools_before_it_opens_a_session() -> None:
    episode, command = run(new(2), e.Begun(now_ms=0))
    assert command == c.FenceTools()
    _, command = run(episode, e.ToolsFenced(offset=3))
    assert command == c.OpenSession(fence_number=1, first=False)


def test_a_single_turn_goes_through_verdict_to_its_end() -> None:
    episode, command = run(new(), e.Begun(now_ms=0), opened(), reset())
    assert isinstance(command, c.AskGateway)
    assert (command.turn, command.max_tokens, command.messages) == (0, 0, (QUESTION,))
    episode, command = run(episode, replied())
    assert isinstance(command, c.ActOn)
    assert (episode.wal_position, episode.length, episode.tokens) == (9, 7, 2)
    episode, command = run(episode, stepped(POLICY_STOP))
    assert command == c.AskVerdict(done=POLICY_STOP)
    episode, command = run(episode, e.VerdictAsked())
    assert command == c.WriteEnded(done=POLICY_STOP)
    episode, command = run(episode, e.EndedWritten())
    assert (episode.phase, command) == (Phase.OVER, None)


@pytest.mark.parametrize(("highest", "number"), [(-1, 2), (1, 2), (7, 8)])
def test_refence_makes_the_environment_name_a_higher_number(highest: int, number: int) -> None:
    for waiting in (
        run(new(), e.Begun(now_ms=0))[0],
        run(new(), e.Begun(now_ms=0), opened(), reset())[0],
    ):
        _, command = run(waiting, e.Refenced(highest=highest))
        assert command == c.OpenSession(fence_number=number, first=False)


def test_a_lost_gateway_means_a_higher_number_and_the_same_turn_again() -> None:
    asking, first = run(new(), e.Begun(now_ms=0), opened(), reset())
    episode, command = run(asking, e.GatewayLost(reason="reset"))
    assert command == c.OpenSession(fence_number=2, first=False)
    _, again = run(episode, opened(number=2))
    assert isinstance(first, c.AskGateway)
    assert again == replace(first, fence_number=2)


@pytest.mark.parametrize(("attempt", "number"), [(1, 0), (0, 5), (1, 2)])
def test_an_answer_under_another_pair_than_asked_for_is_never_acted_on(
    attempt: int, number: int
) -> None:
    asking = run(new(), e.Begun(now_ms=0), opened(), reset())[0]
    episode, command = run(asking, replied(number, attempt=attempt))
    assert isinstance(command, c.OpenSession)
    assert command.fence_number > max(1, number)
    assert episode.turns == 0


def test_an_answer_under_a_higher_attempt_means_that_the_lease_is_lost() -> None:
    asking = run(new(), e.Begun(now_ms=0), opened(), reset())[0]
    episode, command = run(asking, replied(1, attempt=2))
    assert isinstance(command, c.LetGo)
    assert episode.phase is Phase.OVER


def test_a_prefix_shorter_than_what_was_acted_upon_ends_the_attempt() -> None:
    _, command = run(
        new(), e.Begun(now_ms=0), opened(), reset(), replied(),
        stepped(Continue(messages=(QUESTION,))), e.GatewayLost(reason=""), opened(number=2),
    )  # fmt: skip
    assert isinstance(command, c.WriteEnded)
    assert command.done.cause is StopCause.INFRASTRUCTURE_ERROR


def past(text: str, tokens: int = 2) -> PastTurn:
    return PastTurn(branch=0, reply=Reply(text=text, tokens=tokens), offset=4)


def test_finished_turns_of_the_prefix_are_replayed_and_not_asked_for() -> None:
    session = opened(2, turns=(past("one"), past("two")), length=9)
    episode, command = run(new(2), e.Begun(now_ms=0), e.ToolsFenced(offset=3), session, reset())
    assert command == c.ActOn(reply=Reply(text="one", tokens=2))
    episode, command = run(episode, stepped(Continue(messages=(QUESTION,))))
    assert command == c.ActOn(reply=Reply(text="two", tokens=2))
    episode, command = run(episode, stepped(Continue(messages=(QUESTION,))))
    assert isinstance(command, c.AskGateway)
    assert (command.turn, episode.tokens, len(command.messages)) == (2, 4, 5)


@pytest.mark.parametrize("announced", [True, False])
def test_a_replayed_turn_has_its_calls_read_where_tools_were_announced(announced: bool) -> None:
    text = 'so <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    session = opened(2, turns=(past(text),))
    tool = replace(EXTERNAL, announced=announced)
    _, command = run(new(2), e.Begun(now_ms=0), e.ToolsFenced(offset=3), session, reset(tool))
    assert isinstance(command, c.ActOn)
    assert len(command.reply.tool_calls) == announced
    assert (command.reply.text == text) is not announced


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        (replace(NONE, turns_max=1), "1 turns"),
        (replace(NONE, tokens_max=2), "2 action tokens"),
        (replace(NONE, seconds_max=1.5), "1.5 s"),
    ],
)
def test_each_budget_ends_the_episode_by_its_name(budgets: Budgets, said: str) -> None:
    asking = run(new(budgets=budgets), e.Begun(now_ms=0), opened(), reset(), replied())[0]
    _, command = run(asking, stepped(Continue(messages=(QUESTION,)), now_ms=1500))
    assert isinstance(command, c.AskVerdict)
    assert command.done.cause is StopCause.BUDGET_TRUNCATION
    assert said in command.done.detail


def test_a_turn_may_use_what_is_left_of_the_episodes_tokens() -> None:
    budgets = replace(NONE, tokens_max=10, turn_tokens_max=8)
    episode, command = run(new(budgets=budgets), e.Begun(now_ms=0), opened(), reset())
    assert isinstance(command, c.AskGateway)
    assert command.max_tokens == 8
    _, command = run(episode, replied(tokens=6), stepped(Continue(messages=())))
    assert isinstance(command, c.AskGateway)
    assert command.max_tokens == 4


def test_an_external_tool_runs_only_after_its_intent_was_read_back() -> None:
    episode, command = run(calling(), e.IntentWritten(offset=8))
    assert isinstance(command, c.ReadBack)
    assert command.offset == 8
    cleared, command = run(episode, e.Cleared(is_clear=True))
    assert isinstance(command, c.RunTool)
    stopped, command = run(episode, e.Cleared(is_clear=False))
    assert isinstance(command, c.LetGo)
    assert (cleared.phase, stopped.phase) == (Phase.CALLING, Phase.OVER)


def test_a_harmless_tool_runs_on_the_acknowledgement_of_its_intent() -> None:
    _, command = run(calling(HARMLESS), e.IntentWritten(offset=8))
    assert isinstance(command, c.RunTool)


def test_the_result_is_durable_before_the_environment_sees_it_and_the_next_turn_names_it() -> None:
    episode, command = run(calling(HARMLESS), e.IntentWritten(offset=8), e.ToolEnded(output=OUTPUT))
    assert isinstance(command, c.WriteResult)
    assert (command.intent_offset, command.replayed, command.key) == (8, False, "run.0.0:0:0:0")
    episode, command = run(episode, e.ResultWritten(offset=9, output=OUTPUT))
    assert command == c.Observe(outputs=(OUTPUT,))
    _, command = run(episode, stepped(Continue(messages=(QUESTION,))))
    assert isinstance(command, c.AskGateway)
    assert (command.turn, command.result_offsets) == (1, (9,))


def test_a_call_that_does_not_return_is_asked_for_and_otherwise_unknown() -> None:
    running = run(calling(ASKABLE), e.IntentWritten(offset=8), e.Cleared(is_clear=True))[0]
    episode, command = run(running, e.ToolLost())
    assert isinstance(command, c.AskTool)
    _, known = run(episode, e.ToolAnswered(output=OUTPUT))
    assert isinstance(known, c.WriteResult)
    # It may still be running: a second run could be a second effect.
    _, unknown = run(episode, e.ToolAnswered(output=None))
    assert isinstance(unknown, c.WriteUnknown)


def test_a_harmless_call_that_does_not_return_is_a_result_of_its_own() -> None:
    running = run(calling(HARMLESS), e.IntentWritten(offset=8))[0]
    _, command = run(running, e.ToolLost())
    assert isinstance(command, c.WriteResult)
    assert command.output.exit_class == "timeout"


def test_an_unknown_outcome_ends_the_attempt_after_it_is_recorded() -> None:
    running = run(calling(), e.IntentWritten(offset=8), e.Cleared(is_clear=True))[0]
    episode, command = run(running, e.ToolLost())
    assert isinstance(command, c.WriteUnknown)
    _, command = run(episode, e.UnknownWritten(offset=9))
    assert isinstance(command, c.WriteEnded)
    assert command.done.cause is StopCause.ENVIRONMENT_ERROR
    assert command.done.detail.startswith("unknown_tool")


@pytest.mark.parametrize("cause", [s for s in StopCause if s not in ("none", "unknown")])
def test_only_what_may_be_final_asks_for_a_verdict(cause: StopCause) -> None:
    asking = run(new(), e.Begun(now_ms=0), opened(), reset())[0]
    _, command = run(asking, e.Broke(cause=cause, detail="x"))
    wants = cause.is_final and cause is not StopCause.USER_CANCEL
    assert isinstance(command, c.AskVerdict if wants else c.WriteEnded)


def test_an_end_that_cannot_be_written_is_let_go() -> None:
    ending = run(
        new(), e.Begun(now_ms=0), opened(), reset(), replied(), stepped(POLICY_STOP),
        e.VerdictAsked(),
    )[0]  # fmt: skip
    broke = e.Broke(cause=StopCause.INFRASTRUCTURE_ERROR, detail="bus")
    episode, command = run(ending, broke)
    assert isinstance(command, c.LetGo)
    assert episode.phase is Phase.OVER


def test_a_pause_waits_for_the_next_place_where_nothing_is_lost() -> None:
    asking = run(new(), e.Begun(now_ms=0), opened(), reset())[0]
    waiting, command = run(asking, e.PauseAsked(at_once=False))
    assert command is None
    _, command = run(waiting, replied(), stepped(Continue(messages=())))
    assert command == c.WritePaused()
    # An Intent that is begun gets its Result first.
    writing = run(calling(HARMLESS), e.PauseAsked(at_once=True))[0]
    _, command = run(writing, e.IntentWritten(offset=8))
    assert isinstance(command, c.RunTool)


def test_a_pause_at_once_drops_a_wait_at_the_gateway() -> None:
    asking = run(new(), e.Begun(now_ms=0), opened(), reset())[0]
    episode, command = run(asking, e.PauseAsked(at_once=True))
    assert command == c.Interrupt()
    episode, command = run(episode, e.Interrupted())
    assert command == c.WritePaused()
    episode, command = run(episode, e.EndedWritten())
    assert (episode.phase, command) == (Phase.OVER, None)


def test_after_the_lease_is_lost_nothing_follows_from_anything() -> None:
    lost, command = run(calling(), e.LeaseLost(reason="attempt 2"))
    assert command == c.LetGo(reason="attempt 2")
    for event in EVENTS.values():
        assert step(lost, event) == (lost, None)


EVENTS: Mapping[str, e.Event] = {
    "begun": e.Begun(now_ms=0),
    "fenced": e.ToolsFenced(offset=1),
    "opened": opened(),
    "refenced": e.Refenced(highest=1),
    "gateway_lost": e.GatewayLost(reason=""),
    "reset": reset(),
    "replied": replied(finish_reason=FinishReason.STOP),
    "stepped": stepped(Continue(messages=())),
    "intent": e.IntentWritten(offset=1),
    "cleared": e.Cleared(is_clear=True),
    "tool_ended": e.ToolEnded(output=OUTPUT),
    "tool_lost": e.ToolLost(),
    "answered": e.ToolAnswered(output=None),
    "result": e.ResultWritten(offset=1, output=OUTPUT),
    "unknown": e.UnknownWritten(offset=1),
    "verdict": e.VerdictAsked(),
    "ended": e.EndedWritten(),
    "interrupted": e.Interrupted(),
}
ALLOWED: Mapping[Phase, set[str]] = {
    Phase.LEASED: {"begun"},
    Phase.FENCING: {"fenced"},
    Phase.OPENING: {"opened", "refenced", "gateway_lost", "interrupted"},
    Phase.RESETTING: {"reset", "interrupted"},
    Phase.ASKING: {"replied", "refenced", "gateway_lost", "interrupted"},
    Phase.ACTING: {"stepped", "interrupted"},
    Phase.INTENDING: {"intent"},
    Phase.CLEARING: {"cleared"},
    Phase.CALLING: {"tool_ended", "tool_lost", "interrupted"},
    Phase.INQUIRING: {"answered", "interrupted"},
    Phase.RECORDING: {"result"},
    Phase.GIVING_UP: {"unknown"},
    Phase.OBSERVING: {"stepped", "interrupted"},
    Phase.JUDGING: {"verdict"},
    Phase.ENDING: {"ended"},
    Phase.PAUSING: {"ended"},
}


@pytest.mark.parametrize("phase", list(ALLOWED))
def test_every_edge_of_a_phase_is_taken_and_every_other_pair_refused(phase: Phase) -> None:
    base = replace(calling(), phase=phase, done=POLICY_STOP if phase is Phase.JUDGING else None)
    for name, event in EVENTS.items():
        if name in ALLOWED[phase]:
            moved, _ = step(base, event)
            assert moved != base, name
        else:
            with pytest.raises(InvariantError, match=str(phase)):
                step(base, event)


def test_the_phases_of_the_table_are_all_but_the_last() -> None:
    assert set(ALLOWED) == set(Phase) - {Phase.OVER}
