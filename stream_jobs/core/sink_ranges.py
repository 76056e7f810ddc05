"""Which offsets went into the tables, and what a batch means against what is stored.

Invariants: a range is written ahead as BEFORE, then its rows are inserted under the token
`run:topic:partition:first-last`, then it is written as AFTER; a token names exact content, so a
range that may have been inserted is settled by the same range and by no other. Where several
owners can reach the tables, the border of each new range is agreed on first, so that all of them
insert the same ranges under the same tokens. A server forgets old tokens: an owner that another one
has gone past inserts nothing. Source: the notes on ClickHouse, section 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from schemas.errors import Boundary, InvariantError


class Written(StrEnum):
    """How far the stored range has come."""

    BEFORE = "before"
    """Its rows may or may not be in the tables."""
    AFTER = "after"
    """Its rows are in the tables."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `first` to `last` of one partition, both inclusive; gaps inside hold no record."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise InvariantError(f"a range from {self.first} to {self.last} holds nothing")


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest range of one partition, and its state."""

    range: Range
    state: Written


@dataclass(frozen=True, slots=True)
class Insert:
    """Write BEFORE unless it stands already, insert under the range's token, write AFTER."""

    range: Range


@dataclass(frozen=True, slots=True)
class Skip:
    """The rows are in the tables already."""

    range: Range


@dataclass(frozen=True, slots=True)
class Bury:
    """Part of a range whose token stands for other content: dead-letter it."""

    range: Range


@dataclass(frozen=True, slots=True)
class Rewind:
    """Read again from the start of the stored range, and settle that first."""

    range: Range


Piece = Insert | Skip | Bury | Rewind


def token(run_id: str, topic: str, partition: int, piece: Range) -> str:
    """Return what names the exact content of an insert: runs share topics, and on a server tables
    too.
    """
    return f"{run_id}:{topic}:{partition}:{piece.first}-{piece.last}"


def claim(run_id: str, topic: str, partition: int, first: int) -> str:
    """Return the token under which the border of the range that begins at `first` is chosen: of
    several owners the first one's insert stands, and all of them read it.
    """
    return f"{run_id}:{topic}:{partition}:{first}"


def progress(stored: Stored) -> int:
    """Return a number that rises as a partition goes on, whatever any clock says."""
    return 2 * stored.range.last + (stored.state is Written.AFTER)


def settle(stored: Stored | None, new: Range) -> tuple[Piece, ...]:
    """Return what to do with a new batch against the stored range, in order.

    Raises InvariantError when the batch lies wholly below the stored range: somebody rewound.
    """
    if stored is None:
        return (Insert(new),)
    held = stored.range
    if new.last < held.first:
        raise InvariantError(
            f"offsets {new.first}-{new.last} lie below the stored {held.first}-{held.last}",
            boundary=Boundary.STORE,
            hint="somebody rewound; the tables hold what follows, so start a new run",
        )
    if new.first < held.first:
        return settle(stored, Range(held.first, new.last))
    match stored.state:
        case Written.BEFORE:
            return _against_before(held, new)
        case Written.AFTER:
            return _against_after(held, new)


def _against_before(held: Range, new: Range) -> tuple[Piece, ...]:
    if new.first > held.last:
        return (Rewind(held),)
    if new == held:
        return (Insert(held),)
    if new.first == held.first and new.last > held.last:
        return (Insert(held), Insert(Range(held.last + 1, new.last)))
    if new.last > held.last:
        # It begins inside: the stored range is not all there, so it is read again from its start.
        return (Rewind(held),)
    return (Bury(new),)


def _against_after(held: Range, new: Range) -> tuple[Piece, ...]:
    if new.first > held.last:
        return (Insert(new),)
    if new.last <= held.last:
        return (Skip(new),)
    return (Skip(Range(new.first, held.last)), Insert(Range(held.last + 1, new.last)))


def resume_at(stored: Stored | None, start: int) -> tuple[int, int | None]:
    """Return the offset to read from, and the border that the first batch must end at, if any.

    start: where the run begins in the partition.
    """
    if stored is None:
        return start, None
    if stored.state is Written.BEFORE:
        return stored.range.first, stored.range.last
    return stored.range.last + 1, None


class Passed(StrEnum):
    """How far the tables have come against a range that is about to be inserted."""

    NO = "no"
    INSIDE = "inside"
    """Another owner has cut inside it, and stands there."""
    WHOLLY = "wholly"
    """All its rows are in the tables."""


def passed(stands: Stored | None, part: Range) -> Passed:
    """Return how far another owner has gone past a range, by where the tables stand now."""
    begin, _ = resume_at(stands, part.first)
    if begin <= part.first:
        return Passed.NO
    return Passed.INSIDE if begin <= part.last else Passed.WHOLLY
