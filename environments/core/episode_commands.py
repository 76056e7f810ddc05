"""What the shell is told to do for an attempt; each command but the last two yields one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from environments.ports import Done, Message, Reply, Tool, ToolCall, ToolOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceTools:
    """Append this attempt's tool fence and read up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Open a session at the gateway that the episode belongs to."""

    fence_number: int
    first: bool
    """No request was ever sent for the episode, so the gateway need not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetEnvironment:
    """Build the environment's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskGateway:
    """Ask for a turn."""

    turn: int
    branch: int
    fence_number: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    max_tokens: int
    """0 is no bound. Unit: tokens."""
    result_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOn:
    """Give the reply to the environment."""

    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIntent:
    """Make the Intent of a call durable, after an announcement when the call outlasts the lease."""

    call: ToolCall
    tool: Tool
    key: str
    number: int
    """Place of the call within the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """Read the Intent back and look for a higher Fence before it."""

    offset: int
    key: str
    tool: Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTool:
    """Run the call."""

    call: ToolCall
    tool: Tool
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTool:
    """Ask the tool by key."""

    call: ToolCall
    tool: Tool
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Make the Result durable."""

    call: ToolCall
    tool: Tool
    key: str
    number: int
    intent_offset: int
    output: ToolOutput
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnknown:
    """Make it durable that nobody knows the outcome."""

    call: ToolCall
    tool: Tool
    key: str
    number: int
    intent_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Give the outputs to the environment."""

    outputs: tuple[ToolOutput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVerdict:
    """Make the VerifyRequest durable."""

    done: Done


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEnded:
    """Make the Ended durable."""

    done: Done


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePaused:
    """Make the Paused durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Drop what is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Drop what is in flight and write nothing more."""

    reason: str


Command: TypeAlias = (
    FenceTools | OpenSession | ResetEnvironment | AskGateway | ActOn | WriteIntent | ReadBack
    | RunTool | AskTool | WriteResult | WriteUnknown | Observe | AskVerdict | WriteEnded
    | WritePaused | Interrupt | LetGo
)  # fmt: skip
