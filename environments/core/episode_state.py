"""The state of one attempt at an episode; `environments/core/episode.py` holds the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from environments.ports import (
    Done,
    Message,
    Reply,
    Tool,
    ToolCall,
    ToolOutput,
)
from schemas.ids import EpisodeId
from schemas.rules.tools import Call


class Phase(StrEnum):
    """What the episode waits for."""

    LEASED = "leased"
    FENCING = "fencing"
    """Its tool fence, and the read up to it."""
    OPENING = "opening"
    """The gateway session, which fences the WAL and returns the accepted prefix."""
    RESETTING = "resetting"
    ASKING = "asking"
    """A turn at the gateway."""
    ACTING = "acting"
    INTENDING = "intending"
    """The acknowledgement of an Intent."""
    CLEARING = "clearing"
    """The Intent of an external tool to be read back."""
    CALLING = "calling"
    INQUIRING = "inquiring"
    """A tool's answer by key."""
    RECORDING = "recording"
    """The acknowledgement of a Result."""
    GIVING_UP = "giving_up"
    """The acknowledgement of an Unknown."""
    OBSERVING = "observing"
    JUDGING = "judging"
    """The acknowledgement of the VerifyRequest."""
    ENDING = "ending"
    PAUSING = "pausing"
    OVER = "over"

    @property
    def is_at_gateway(self) -> bool:
        """Whether the gateway is what it waits for, so that a Progress renews the lease."""
        return self in (Phase.OPENING, Phase.ASKING)

    @property
    def can_be_interrupted(self) -> bool:
        """Whether what is in flight may be dropped for a pause: no acknowledgement is awaited."""
        return self in (
            Phase.OPENING,
            Phase.RESETTING,
            Phase.ASKING,
            Phase.ACTING,
            Phase.CALLING,
            Phase.INQUIRING,
            Phase.OBSERVING,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What an episode may use; 0 is no bound."""

    tokens_max: int
    turn_tokens_max: int
    turns_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTurn:
    """A turn of the accepted prefix that ended, to be replayed."""

    branch: int
    reply: Reply
    offset: int
    """WAL offset of its last commit. Unit: records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Everything the rules know of one attempt."""

    episode_id: EpisodeId
    attempt: int
    budgets: Budgets
    phase: Phase = Phase.LEASED
    fence_number: int = 0
    """The number last named to a gateway. Unit: fences."""
    is_built: bool = False
    """The environment was reset in this attempt."""
    began_ms: int = 0
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    past: tuple[PastTurn, ...] = ()
    """Turns of the accepted prefix not yet replayed."""
    recorded: Mapping[str, Call] = field(default_factory=dict)
    branch: int = 0
    turns: int = 0
    """Turns taken, replayed ones included. Unit: turns."""
    tokens: int = 0
    """Action tokens taken. Unit: tokens."""
    calls: tuple[ToolCall, ...] = ()
    outputs: tuple[ToolOutput, ...] = ()
    result_offsets: tuple[int, ...] = ()
    """Results that the next turn's observation shows. Unit: records."""
    intent_offset: int = -1
    runs_again: bool = False
    was_lost: bool = False
    """The call in hand ran out of time, and may still run."""
    tool_calls: int = 0
    wal_position: int = -1
    tool_position: int = -1
    length: int = 0
    """Tokens on the main line. Unit: tokens."""
    done: Done | None = None
    pause_asked: bool = False

    @property
    def turn(self) -> int:
        """Index of the turn that was answered last."""
        return self.turns - 1
