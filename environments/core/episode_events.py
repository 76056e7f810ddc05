"""What can happen to an attempt. One command is in flight at a time; its event brings the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from environments.core.episode_state import PastTurn
from environments.ports import Opening, Reply, Step, ToolOutput
from schemas.enums import StopCause
from schemas.rules.tools import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The worker starts the attempt."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsFenced:
    """The tool fence of this attempt is in the log and was read up to."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """A gateway fenced the WAL under the pair and returned the accepted prefix."""

    attempt: int
    fence_number: int
    position: int
    length: int
    turns: tuple[PastTurn, ...]
    """Finished turns of the main line, in order."""
    recorded: Mapping[str, Call] = field(default_factory=dict)
    """What counts in the tool log, accepted Observations applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refenced:
    """A gateway asks for a higher fence number."""

    highest: int
    """The highest number it has read; -1 when it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLost:
    """A gateway failed, or did not answer: the episode turns to another, or to the same again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReset:
    """The environment stands at its start."""

    opening: Opening
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """A turn ended; all of its tokens are durable."""

    attempt: int
    fence_number: int
    position: int
    length: int
    branch: int
    reply: Reply
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The environment took a reply, or the outputs of tools."""

    step: Step
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentWritten:
    """The Intent is durable."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The Intent of an external tool was read back."""

    is_clear: bool
    """No higher Fence stands before it, and the lease covers the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded:
    """The tool returned."""

    output: ToolOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLost:
    """The tool did not return in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """The tool said by key what became of the call; None when it knows of none."""

    output: ToolOutput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWritten:
    """The Result is durable."""

    offset: int
    output: ToolOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownWritten:
    """The Unknown is durable."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAsked:
    """The VerifyRequest is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWritten:
    """The Ended or the Paused is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """Somebody wants the episode paused: at once, or at the next place where nothing is lost."""

    at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """What was in flight was dropped for a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """Another attempt owns the episode, or may."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A command failed for good."""

    cause: StopCause
    detail: str


Event: TypeAlias = (
    Begun | ToolsFenced | SessionOpened | Refenced | GatewayLost | EnvironmentReset | Replied
    | Stepped | IntentWritten | Cleared | ToolEnded | ToolLost | ToolAnswered | ResultWritten
    | UnknownWritten | VerdictAsked | EndedWritten | PauseAsked | Interrupted | LeaseLost | Broke
)  # fmt: skip
