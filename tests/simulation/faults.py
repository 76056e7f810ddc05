"""The faults of one history as values: drawn from its seed, printed, and taken out one by one when
a failing history is made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Ack(StrEnum):
    """What becomes of one record that was handed to a producer."""

    UNKNOWN_WRITTEN = "unknown_written"
    """In the log; nobody is told."""
    UNKNOWN_LOST = "unknown_lost"
    """Not in the log; nobody is told."""
    UNKNOWN_LATE = "unknown_late"
    """Reported unknown, and in the log seconds later, behind whatever came meanwhile."""
    NO_OFFSET = "no_offset"
    """In the log, and told at once without its offset: unknown."""
    PASSED_OVER = "passed_over"
    """Not in the log, while what the same producer wrote next is; told in the same way."""
    REJECTED = "rejected"
    """Certainly not in the log."""
    SLOW = "slow"
    """In the log at once; acknowledged seconds later."""
    AGAIN = "again"
    """In the log at once, and a second time seconds later, as a copied topic has it. Drawn only for
    records whose readers must bear it: see `scenes.py`.
    """


ANYWHERE = tuple(fate for fate in Ack if fate is not Ack.AGAIN)
"""Fates that any record may meet."""


class Blow(StrEnum):
    """What happens to a process."""

    KILL = "kill"
    PAUSE = "pause"
    STOP = "stop"
    """Asked to stop in order (SIGTERM), then started again."""
    ZOMBIE = "zombie"
    """Paused, replaced by a new process under its name, and resumed: two of that name live."""
    DEAF = "deaf"
    """The same, and it hears nothing of the log any more: it acts on what it knew, for as long as
    its own clock allows, where one that hears of its successor ends at once.
    """
    EXPEL = "expel"
    """Its group session is over; it learns so at its next poll."""
    ENGINE = "engine"
    """Its engine dies, the process does not."""
    CUT = "cut"
    """Its connections are cut: what is being answered is not heard."""


@dataclass(frozen=True, slots=True)
class AckFault:
    """The `nth` record of the history on a topic meets a fate."""

    topic: str
    nth: int
    fate: Ack
    kind: str = ""
    """Only records of this kind are counted; empty for all."""

    def __str__(self) -> str:
        return f"{self.kind or 'record'} {self.nth} on {self.topic}: {self.fate}"


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """Something happens to a process."""

    at_ms: int
    who: str
    blow: Blow
    for_ms: int
    """How long it is down or paused. Unit: ms."""

    def __str__(self) -> str:
        return f"{self.at_ms} ms: {self.blow} {self.who} for {self.for_ms} ms"


WRITER = "writer"
"""Stands for the role that wrote the record."""


@dataclass(frozen=True, slots=True)
class AtRecord:
    """Something happens to a process soon after the `nth` record of a kind has landed."""

    topic: str
    nth: int
    who: str
    """A role's name, or WRITER."""
    blow: Blow
    for_ms: int
    """How long it is down or paused. Unit: ms."""
    kind: str = ""
    """Only records of this kind are counted; empty for all."""
    after_ms: int = 0
    """Unit: ms."""

    def __str__(self) -> str:
        when = f"{self.after_ms} ms after {self.kind or 'record'} {self.nth} on {self.topic}"
        return f"{when}: {self.blow} {self.who} for {self.for_ms} ms"


Fault = AckFault | ProcessFault | AtRecord


def draw(
    chance: random.Random,
    *,
    topics: Mapping[str, int],
    processes: Mapping[str, Sequence[Blow]],
    until_ms: int,
) -> tuple[Fault, ...]:
    """Draw the faults of a history. topics: name to about how many records it sees; processes: name
    to what may happen to it.
    """
    faults: list[Fault] = []
    names = list(topics)
    for _ in range(chance.choice((0, 1, 2, 3, 5))):
        topic = chance.choice(names)
        faults.append(AckFault(topic, chance.randrange(topics[topic]), chance.choice(ANYWHERE)))
    who = list(processes)
    for _ in range(chance.choice((0, 1, 2, 3, 4, 6))):
        name = chance.choice(who)
        blow = chance.choice(processes[name])
        for_ms = chance.choice(_LENGTHS_MS.get(blow, _LONG_MS))
        # Most work is done early, so most blows fall early.
        at_ms = int(250 + until_ms * chance.random() ** 1.5)
        faults.append(ProcessFault(at_ms, name, blow, for_ms))
    return tuple(faults)


_LONG_MS = (20, 200, 1_500, 4_000, 9_000, 45_000)
_LENGTHS_MS = {
    Blow.KILL: (20, 200, 1_500, 4_000, 9_000),
    # Back while its leases still hold by its own clock, before or after others have them.
    Blow.ZOMBIE: (5, 300, 800, 1_500, 3_000, 9_000),
    Blow.DEAF: (5, 300, 800, 1_500, 3_000, 9_000),
}
