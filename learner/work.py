"""What rank 0 asks of every rank, as values that travel by broadcast: metadata and names, never
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from learner.packed import Member
from learner.segments import Segment, read
from schemas.packing import unpack_heavy


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWork:
    """What the loss needs of one trajectory besides its heavy fields."""

    index: int
    """Index in the step."""
    advantage: float
    """Times weight and repeat. Unit: reward."""
    count: float
    """How often its tokens count in the denominator."""
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroWork:
    """One micro-batch: rows of members, whose payloads stand in that order in the segment."""

    segment: Segment | None
    """None: an empty micro-batch, which only keeps the ranks in step."""
    rows: tuple[tuple[MemberWork, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainWork:
    """One step: micro-batches by rank."""

    by_rank: tuple[tuple[MicroWork, ...], ...]
    ordinal: int
    action_tokens: float
    """Global count of action tokens, repeats included. Unit: tokens."""
    reset_optimiser: bool = False
    """Whether the moments of the optimiser are forgotten before this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveWork:
    """Write the tensors of a checkpoint."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWork:
    """Restore the tensors of a checkpoint."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWork:
    """Leave."""


Work: TypeAlias = TrainWork | SaveWork | LoadWork | EndWork


def load_rows(work: MicroWork) -> list[list[Member]]:
    """Return the members of a micro-batch, read from shared memory and checked at this moment."""
    if work.segment is None:
        return []
    payloads = iter(read(work.segment))
    rows = []
    for row in work.rows:
        members = []
        for member in row:
            heavy = unpack_heavy(next(payloads))
            members.append(
                Member(
                    index=member.index,
                    ids=np.frombuffer(heavy.token_ids, dtype="<i4"),
                    logprobs=np.frombuffer(heavy.logprobs, dtype="<f4"),
                    mask=np.frombuffer(heavy.mask, dtype=np.uint8),
                    advantage=member.advantage,
                    count=member.count,
                    temperature=member.temperature,
                )
            )
        rows.append(members)
    return rows
