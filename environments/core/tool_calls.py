"""What to do about one tool call, given what the tool log says of it (design section 6).

A call with a Result is replayed and never run. A call with only an Intent is asked for by key if
the tool can answer, run again if the tool declares itself idempotent, and else its outcome is
Unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from environments.ports import Tool, ToolCall, ToolOutput
from schemas.enums import ToolExit
from schemas.ids import EpisodeId
from schemas.records.tool_event import ToolEvent
from schemas.rules.tools import Call

_UNDECLARED_TIMEOUT_S = 5.0


def call_key(episode: EpisodeId, branch: int, turn: int, call: int) -> str:
    """Return the idempotency key of a call; it is the same in every attempt."""
    return f"{episode}:{branch}:{turn}:{call}"


def declared(tools: Sequence[Tool], call: ToolCall) -> Tool:
    """Return the declaration of a call's tool.

    A name that no tool has is the policy's mistake: the environment answers it, which harms
    nothing.
    """
    for tool in tools:
        if tool.name == call.name:
            return tool
    return Tool(
        name=call.name,
        description="",
        parameters={},
        idempotent=True,
        external=False,
        timeout_s=_UNDECLARED_TIMEOUT_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The log holds the Result."""

    output: ToolOutput
    offset: int
    """Of the Result in tool-events. Unit: records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Write an Intent and run the tool."""

    again: bool
    """An earlier Intent stands: the tool may have run already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskByKey:
    """Ask the tool what became of the call."""

    intent_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Nobody can tell what became of the call."""

    intent_offset: int
    is_recorded: bool
    """The log says so already."""


Plan: TypeAlias = Replay | Run | AskByKey | GiveUp


def plan(tool: Tool, recorded: Call | None) -> Plan:
    """Return what to do about a call; `recorded` is what counts of it in the log, or None."""
    if recorded is None or recorded.intent is None:
        return Run(again=False)
    if recorded.result is not None:
        return Replay(output=output_of(recorded.result), offset=recorded.result_offset)
    if recorded.unknown is not None:
        return GiveUp(intent_offset=recorded.intent_offset, is_recorded=True)
    if tool.asks_by_key:
        return AskByKey(intent_offset=recorded.intent_offset)
    if tool.idempotent:
        return Run(again=True)
    return GiveUp(intent_offset=recorded.intent_offset, is_recorded=False)


def output_of(result: ToolEvent) -> ToolOutput:
    """Return the output that a Result record holds."""
    return ToolOutput(
        output=result.output,
        exit_class=result.exit_class,
        status_raw=result.status_raw,
        output_digest=result.output_digest,
        truncation=result.truncation,
    )


def timed_out(seconds: float) -> ToolOutput:
    """Return what the policy sees of a harmless call that did not return in time."""
    return ToolOutput(
        output=f"The call did not return within {seconds:g} s.",
        exit_class=ToolExit.TIMEOUT,
        status_raw=f"timeout after {seconds:g} s",
    )
