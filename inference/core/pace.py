"""How fast the tokens of one turn came, of an engine that may hand over several at a time.

The tokens of the first chunk are there at first-token time: however many they are, none of them
came in the time from the first token to the last. That time is shared by the tokens after them; an
engine that hands over four at a time reads some five percent too fast otherwise, at 80 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Pace:
    """When the tokens of a turn came."""

    first_us: int = -1
    """When the first chunk came; -1 before. Unit: us, monotonic."""
    last_us: int = -1
    """When the newest chunk came. Unit: us, monotonic."""
    later_tokens: int = 0
    """Tokens after the first chunk. Unit: tokens."""

    def take(self, count: int, *, now_us: int) -> None:
        """Take a chunk of so many tokens; one of none says nothing."""
        if not count:
            return
        self.last_us = now_us
        if self.first_us < 0:
            self.first_us = now_us
        else:
            self.later_tokens += count

    @property
    def inter_token_us(self) -> float | None:
        """The mean time between tokens, None when all came at once. Unit: us."""
        if not self.later_tokens:
            return None
        return (self.last_us - self.first_us) / self.later_tokens
