"""Which verdicts this process has given, so that a repeated request gets the same and no second.

A verdict is named by (episode, attempt, verifier digest). Of several results in the log the first
counts, so forgetting costs work and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from schemas.ids import EpisodeId

Place: TypeAlias = tuple[int, int]
"""Partition and offset of a request."""


class Received(StrEnum):
    """What a request is to this process."""

    NEW = "new"
    """To be judged."""
    IN_HAND = "in_hand"
    """A repeat of one that is being judged; it is finished with it."""
    SETTLED = "settled"
    """A repeat of one whose verdict is in the log."""


@dataclass(frozen=True, slots=True)
class VerdictKey:
    """What names a verdict."""

    episode_id: EpisodeId
    attempt: int
    verifier_digest: str


class VerdictMemory:
    """The newest verdicts and the requests in hand, bounded."""

    def __init__(self, remembered_max: int) -> None:
        self._max = remembered_max
        self._given: OrderedDict[VerdictKey, None] = OrderedDict()
        self._in_hand: dict[VerdictKey, list[Place]] = {}

    def receive(self, key: VerdictKey, place: Place) -> Received:
        """Note a request at a place in the log, and say what is to be done about it."""
        if key in self._given:
            return Received.SETTLED
        if key in self._in_hand:
            self._in_hand[key].append(place)
            return Received.IN_HAND
        self._in_hand[key] = [place]
        return Received.NEW

    def give(self, key: VerdictKey) -> tuple[Place, ...]:
        """Note that a verdict is in the log; return the places of all requests that it settles."""
        places = tuple(self._in_hand.pop(key, ()))
        self._given[key] = None
        while len(self._given) > self._max:
            self._given.popitem(last=False)
        return places

    def drop(self, key: VerdictKey) -> None:
        """Note that a request in hand came to nothing; it may be judged again."""
        self._in_hand.pop(key, None)
