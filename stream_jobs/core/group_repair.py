"""What becomes of a group whose members are not all valid, and the statistics its members share
(requirements F8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stream_jobs.settings import GroupRule


def repeats(valid: Sequence[bool], *, size: int, rule: GroupRule) -> tuple[int, ...]:
    """Return how often each member counts; 0 where it does not.

    valid: one per member with a Trajectory. size: G, members without one included. Under `repair`
    more than half must be valid, exactly half drops the group; valid ones are repeated, the first
    ones first, until they fill G. Source: GLM-5 report.
    """
    count = sum(valid)
    match rule:
        case GroupRule.KEEP:
            return tuple(int(one) for one in valid)
        case GroupRule.WHOLE:
            return tuple(int(one and count == size) for one in valid)
        case GroupRule.REPAIR:
            if 2 * count <= size:
                return (0,) * len(valid)
            more, rest = divmod(size - count, count)
            place = 0
            out: list[int] = []
            for one in valid:
                out.append((1 + more + (place < rest)) if one else 0)
                place += int(one)
            return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the members of a group share."""

    mean: float
    deviation: float
    """Population standard deviation."""
    count: int


def baseline(rewards: Sequence[float]) -> Baseline:
    """Return the statistics over the members that have a reward; those without have left."""
    count = len(rewards)
    if not count:
        return Baseline(mean=0.0, deviation=0.0, count=0)
    mean = math.fsum(rewards) / count
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / count
    return Baseline(mean=mean, deviation=math.sqrt(variance), count=count)
