"""The life of a sampled token: SAMPLED, APPENDED, DURABLE, EXPOSED, one way, no step left out.

Tokens of an episode move in order, so one ledger of four rising marks says where each of them
stands. Source: requirements 3.5 and design section 5 (commit before exposure).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from schemas.errors import InvariantError


class TokenState(IntEnum):
    """How far a token has come."""

    SAMPLED = 0
    APPENDED = 1
    DURABLE = 2
    EXPOSED = 3


EDGES: frozenset[tuple[TokenState, TokenState]] = frozenset(
    {
        (TokenState.SAMPLED, TokenState.APPENDED),
        (TokenState.APPENDED, TokenState.DURABLE),
        (TokenState.DURABLE, TokenState.EXPOSED),
    }
)


def move(before: TokenState, after: TokenState) -> TokenState:
    """Return `after` when the edge is legal; raise InvariantError otherwise."""
    if (before, after) not in EDGES:
        raise InvariantError(
            f"a token cannot go from {before.name} to {after.name}",
            hint="exposure before durability would show what the log may not hold",
        )
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLedger:
    """How many tokens of an episode have reached each state; each mark is at most the one before
    it. Unit: tokens.
    """

    sampled: int
    appended: int
    durable: int
    exposed: int

    @classmethod
    def resumed(cls, length: int) -> TokenLedger:
        """Return the ledger of an accepted prefix: all of it is durable, and may have been shown
        before.
        """
        return cls(sampled=length, appended=length, durable=length, exposed=length)

    def state_of(self, index: int) -> TokenState:
        """Return the state of the token at an index; raise InvariantError when it was never
        sampled.
        """
        for state, mark in (
            (TokenState.EXPOSED, self.exposed),
            (TokenState.DURABLE, self.durable),
            (TokenState.APPENDED, self.appended),
            (TokenState.SAMPLED, self.sampled),
        ):
            if index < mark:
                return state
        raise InvariantError(f"token {index} was never sampled; {self.sampled} were")

    def sample(self, count: int) -> TokenLedger:
        """Return the ledger after `count` more tokens were sampled, or rendered as input."""
        return self._with(sampled=self.sampled + count)

    def append(self, count: int) -> TokenLedger:
        """Return the ledger after the next `count` sampled tokens were handed to the log."""
        return self._with(appended=self.appended + count)

    def acknowledge(self, count: int) -> TokenLedger:
        """Return the ledger after the next `count` appended tokens became durable."""
        return self._with(durable=self.durable + count)

    def expose(self, until: int) -> TokenLedger:
        """Return the ledger after everything below index `until` was shown; showing twice is no
        step.
        """
        return self._with(exposed=max(self.exposed, until))

    def _with(
        self,
        *,
        sampled: int | None = None,
        appended: int | None = None,
        durable: int | None = None,
        exposed: int | None = None,
    ) -> TokenLedger:
        after = TokenLedger(
            sampled=self.sampled if sampled is None else sampled,
            appended=self.appended if appended is None else appended,
            durable=self.durable if durable is None else durable,
            exposed=self.exposed if exposed is None else exposed,
        )
        if not 0 <= after.exposed <= after.durable <= after.appended <= after.sampled:
            raise InvariantError(
                f"token marks out of order: {after}",
                hint="each token is sampled, appended, durable and exposed in this order",
            )
        return after
