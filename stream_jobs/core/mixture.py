"""Which task stands at an ordinal: a pure function of settings, seed and ordinal, so that nothing
of it is kept.

The mixture is exact: every block of as many tasks as the reduced weights sum to holds each
component exactly weight times, in an order drawn from the seed. Each component counts its own tasks
0, 1, 2, ... without gap or repeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from schemas.enums import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What stands at one ordinal."""

    component: int
    """Place of the component in the mixture."""
    index: int
    """Which task of the component's own stream. Unit: tasks."""
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The rule by which tasks are drawn; see `TaskSourceSettings` for the fields."""

    weights: tuple[int, ...]
    seed: int
    evaluate_every: int = 0
    held_out_first: int = 1_000_000_000
    held_out_count: int = 64

    def at(self, ordinal: int) -> Draw:
        """Return what stands at an ordinal. Unit: tasks, from 0."""
        every = self.evaluate_every
        if every and ordinal % every == every - 1:
            component, count = place(self.weights, f"{self.seed}/evaluate", ordinal // every)
            index = self.held_out_first + count % self.held_out_count
            return Draw(component=component, index=index, purpose=Purpose.EVALUATE)
        trained = ordinal - (ordinal // every if every else 0)
        component, count = place(self.weights, f"{self.seed}/train", trained)
        # Training never reaches the held-out range, however long it runs.
        return Draw(component=component, index=count % self.held_out_first, purpose=Purpose.TRAIN)


def place(weights: Sequence[int], seed: str, number: int) -> tuple[int, int]:
    """Return the component that the `number`-th draw falls on, and how often it was drawn
    before.
    """
    divisor = gcd(*weights)
    shares = tuple(weight // divisor for weight in weights)
    block, at = divmod(number, sum(shares))
    order = _order(shares, seed, block)
    component = order[at]
    return component, block * shares[component] + order[:at].count(component)


@lru_cache(maxsize=256)
def _order(shares: tuple[int, ...], seed: str, block: int) -> tuple[int, ...]:
    order = [component for component, share in enumerate(shares) for _ in range(share)]
    for last in range(len(order) - 1, 0, -1):
        swap = digest_number(f"{seed}/{block}/{last}") % (last + 1)
        order[last], order[swap] = order[swap], order[last]
    return tuple(order)


def digest_number(text: str) -> int:
    """Return 63 bits of the sha256 of a text: chance that is the same everywhere and for ever."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
