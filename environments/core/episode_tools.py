"""The life of one tool call within an attempt: Intent, run, Result, or what is left of them.

A call with a Result in the log is replayed; one with only an Intent is asked for by key, run again
or given up, as `environments/core/tool_calls.py` decides.
"""

from __future__ import annotations

from dataclasses import replace

from environments.core.episode_commands import (
    AskTool,
    Observe,
    ReadBack,
    RunTool,
    WriteIntent,
    WritePaused,
    WriteResult,
    WriteUnknown,
)
from environments.core.episode_endings import Next, finish, let_go, must_be
from environments.core.episode_events import (
    Cleared,
    Event,
    IntentWritten,
    ResultWritten,
    ToolAnswered,
    ToolEnded,
    ToolLost,
    UnknownWritten,
)
from environments.core.episode_state import Episode, Phase
from environments.core.tool_calls import (
    AskByKey,
    GiveUp,
    Replay,
    Run,
    call_key,
    declared,
    plan,
    timed_out,
)
from environments.ports import Done, ToolCall
from schemas.enums import StopCause
from schemas.errors import InvariantError
from schemas.rules.episodes import UNKNOWN_TOOL


def _key(episode: Episode) -> str:
    return call_key(episode.episode_id, episode.branch, episode.turn, len(episode.outputs))


def _current(episode: Episode) -> ToolCall:
    return episode.calls[len(episode.outputs)]


def next_call(episode: Episode) -> Next:
    """Return the command for the next call of the reply, or the observation once all are done."""
    while len(episode.outputs) < len(episode.calls):
        call = _current(episode)
        tool = declared(episode.tools, call)
        match plan(tool, episode.recorded.get(_key(episode))):
            case Replay(output=output, offset=offset):
                episode = replace(
                    episode,
                    outputs=(*episode.outputs, output),
                    result_offsets=(*episode.result_offsets, offset),
                    tool_calls=episode.tool_calls + 1,
                )
            case Run(again=again):
                return _intend(replace(episode, was_lost=False), again=again)
            case AskByKey(intent_offset=intent_offset):
                asking = replace(episode, intent_offset=intent_offset, was_lost=False)
                return _inquire(asking)
            case GiveUp(is_recorded=True):
                return _unknown(episode)
            case GiveUp(intent_offset=intent_offset):
                return _give_up(replace(episode, intent_offset=intent_offset))
    return replace(episode, phase=Phase.OBSERVING), Observe(outputs=episode.outputs)


def _intend(episode: Episode, *, again: bool) -> Next:
    if episode.pause_asked:
        return replace(episode, phase=Phase.PAUSING), WritePaused()
    call = _current(episode)
    command = WriteIntent(
        call=call,
        tool=declared(episode.tools, call),
        key=_key(episode),
        number=len(episode.outputs),
    )
    return replace(episode, phase=Phase.INTENDING, runs_again=again), command


def _inquire(episode: Episode) -> Next:
    call = _current(episode)
    command = AskTool(call=call, tool=declared(episode.tools, call), key=_key(episode))
    return replace(episode, phase=Phase.INQUIRING), command


def _give_up(episode: Episode) -> Next:
    call = _current(episode)
    command = WriteUnknown(
        call=call,
        tool=declared(episode.tools, call),
        key=_key(episode),
        number=len(episode.outputs),
        intent_offset=episode.intent_offset,
    )
    return replace(episode, phase=Phase.GIVING_UP), command


def _unknown(episode: Episode) -> Next:
    detail = f"{UNKNOWN_TOOL}: nobody knows the outcome of {_key(episode)}"
    return finish(episode, Done(cause=StopCause.ENVIRONMENT_ERROR, detail=detail))


def _run(episode: Episode) -> Next:
    call = _current(episode)
    command = RunTool(call=call, tool=declared(episode.tools, call), key=_key(episode))
    return replace(episode, phase=Phase.CALLING), command


def _record(episode: Episode, event: ToolEnded | ToolAnswered) -> Next:
    call = _current(episode)
    assert event.output is not None
    command = WriteResult(
        call=call,
        tool=declared(episode.tools, call),
        key=_key(episode),
        number=len(episode.outputs),
        intent_offset=episode.intent_offset,
        output=event.output,
        replayed=episode.runs_again or isinstance(event, ToolAnswered),
    )
    return replace(episode, phase=Phase.RECORDING), command


def at_tool(episode: Episode, event: Event) -> Next:
    """Return what follows from an event of the call in hand."""
    phase = episode.phase
    match event:
        case IntentWritten(offset=offset):
            must_be(episode, event, phase is Phase.INTENDING)
            return _intended(replace(episode, intent_offset=offset, tool_position=offset))
        case Cleared(is_clear=is_clear):
            must_be(episode, event, phase is Phase.CLEARING)
            reason = f"the tool of {_key(episode)} may not run under this lease any more"
            return _run(episode) if is_clear else let_go(episode, reason)
        case ToolEnded():
            must_be(episode, event, phase is Phase.CALLING)
            return _record(episode, event)
        case ToolLost():
            must_be(episode, event, phase is Phase.CALLING)
            return _lost(episode)
        case ToolAnswered():
            must_be(episode, event, phase is Phase.INQUIRING)
            return _answered(episode, event)
        case ResultWritten():
            must_be(episode, event, phase is Phase.RECORDING)
            return _recorded(episode, event)
        case UnknownWritten(offset=offset):
            must_be(episode, event, phase is Phase.GIVING_UP)
            return _unknown(replace(episode, tool_position=offset))
        case _:
            raise InvariantError(f"episode {episode.episode_id}: {event!r} in phase {phase}")


def _intended(episode: Episode) -> Next:
    tool = declared(episode.tools, _current(episode))
    if not tool.external:
        return _run(episode)
    command = ReadBack(offset=episode.intent_offset, key=_key(episode), tool=tool)
    return replace(episode, phase=Phase.CLEARING), command


def _answered(episode: Episode, event: ToolAnswered) -> Next:
    if event.output is not None:
        return _record(episode, event)
    # A call that was lost in this attempt may still be running, whatever the tool knows.
    return _give_up(episode) if episode.was_lost else _intend(episode, again=False)


def _recorded(episode: Episode, event: ResultWritten) -> Next:
    recorded = replace(
        episode,
        outputs=(*episode.outputs, event.output),
        result_offsets=(*episode.result_offsets, event.offset),
        tool_position=event.offset,
        tool_calls=episode.tool_calls + 1,
    )
    return next_call(recorded)


def _lost(episode: Episode) -> Next:
    call = _current(episode)
    tool = declared(episode.tools, call)
    lost = replace(episode, was_lost=True)
    if tool.asks_by_key:
        return _inquire(lost)
    if tool.idempotent:
        output = timed_out(tool.timeout_s)
        return _record(lost, ToolEnded(output=output))
    return _give_up(lost)
