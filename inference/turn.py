"""A turn as values: what is asked, what is answered, and what is kept of a call taken back."""

from __future__ import annotations

from dataclasses import dataclass

from inference.core.moment import Moment
from inference.refusals import Code
from inference.release import DurableTokens
from schemas.enums import FinishReason
from schemas.ids import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """What one turn samples and under which parameters."""

    turn: int
    branch: int
    start: int
    """Index of the turn's first sampled token in the episode. Unit: tokens."""
    prompt_ids: tuple[int, ...]
    """All tokens before it. [start]"""
    resumed: tuple[DurableTokens, ...]
    """What an earlier writer committed of this turn."""
    tokens_max: int
    """Sampled tokens of the turn at most, the resumed ones included. Unit: tokens."""
    temperature: float
    top_p: float
    top_k: int
    stop_ids: tuple[int, ...]
    requested: Moment
    """When the gateway received the request."""
    planned_us: int
    """When everything before sampling was done. Unit: us, monotonic."""

    @property
    def sampling(self) -> tuple[float, ...]:
        """What its commits say of it: temperature, top_p, top_k, tokens_max."""
        return (
            float(self.temperature),
            float(self.top_p),
            float(self.top_k),
            float(self.tokens_max),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A call that was taken back, with the evidence."""

    code: Code
    why: str
    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Where a finished turn stands in the log, with its counts."""

    attempt: int
    fence_number: int
    position: int
    """Offset of its last commit in tokens.v1. Unit: records."""
    turn: int
    branch: int
    length: int
    """Tokens of the episode up to the turn's end. Unit: tokens."""
    finish_reason: FinishReason
    prompt_tokens: int
    sampled_tokens: int
    reused_tokens: int
    versions: tuple[Version, ...]
