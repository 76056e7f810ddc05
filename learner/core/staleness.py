"""Lag and age of one trajectory where the learner consumes it, and what follows from them (design
section 8).

Lag is a difference of ordinals, taken from the oldest action token at consumption. Bounds are
inclusive: a lag equal to the bound is trained. A version that is not an ancestor of the consuming
one is orphaned, whatever its number says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from schemas.enums import DropReason
from schemas.errors import InvariantError
from schemas.ids import Version
from schemas.records.trajectory import Trajectory


class LagRule(StrEnum):
    """What a lag inside the bound does to the loss weight; over the bound a trajectory is always
    dropped.
    """

    DROP = "drop"
    DOWN_WEIGHT = "down_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What the consuming version descends from."""

    ordinal: int
    """Ordinal of the consuming version. Unit: updates."""
    ordinals: Mapping[Version, int]
    """Ordinal of each ancestor, the consuming version itself included. Unit: updates."""
    published_us: Mapping[Version, int]
    """When each ancestor was published, by broker time. Unit: us."""
    now_published_us: int
    """When the consuming version was published. Unit: us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be consumed."""

    lag_steps_max: int
    """Unit: updates."""
    age_ms_max: int
    """Unit: ms."""
    rule: LagRule = LagRule.DROP
    decay: float = 1.0
    """Weight per update of lag under `down_weight`. Unit: ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Lag and age of one trajectory at one moment."""

    reason: DropReason
    """Why it must not be consumed; none when it may."""
    lag_steps: int
    lag_s: float
    age_ms: int
    first_token_age_ms: int
    weight: float
    """Loss weight from lag alone: 1 at lag 0, never rising with lag. Unit: ratio."""
    clock_skew: bool
    """Whether broker time lies ahead of this clock, so that age was taken as 0."""


def lag_weight(lag_steps: int, bounds: Bounds) -> float:
    """Return the loss weight at a lag inside the bound."""
    if bounds.rule is LagRule.DROP:
        return 1.0
    return float(bounds.decay**lag_steps)


def judge(
    *,
    oldest: Version,
    trajectory_us: int,
    first_token_us: int,
    now_us: int,
    lineage: Lineage,
    bounds: Bounds,
    versions: Collection[Version] = (),
) -> Staleness:
    """Return lag and age at `now_us` and whether the bounds allow consumption.

    `versions` are those of all its action tokens, the oldest apart: a restart of the learner can
    cut off the newer ones of them, and then nothing of the trajectory may be trained.
    Raises InvariantError when an ancestor's ordinal lies above the consuming one: lag is never
    negative.
    """
    skew = trajectory_us > now_us
    age_ms = max(0, now_us - trajectory_us) // 1000
    first_ms = max(0, now_us - first_token_us) // 1000 if first_token_us > 0 else age_ms
    ordinal = lineage.ordinals.get(oldest)
    if ordinal is None or any(version not in lineage.ordinals for version in versions):
        return Staleness(
            reason=DropReason.ORPHANED_VERSION,
            lag_steps=0,
            lag_s=0.0,
            age_ms=age_ms,
            first_token_age_ms=first_ms,
            weight=0.0,
            clock_skew=skew,
        )
    lag = lineage.ordinal - ordinal
    if lag < 0:
        raise InvariantError(
            f"version {oldest} has ordinal {ordinal}, above the consuming {lineage.ordinal}",
            hint="the lineage was read wrongly; restart the learner",
        )
    published_us = lineage.published_us.get(oldest, lineage.now_published_us)
    reason = DropReason.NONE
    if lag > bounds.lag_steps_max:
        reason = DropReason.LAG
    elif age_ms > bounds.age_ms_max:
        reason = DropReason.AGE
    return Staleness(
        reason=reason,
        lag_steps=lag,
        lag_s=max(0, lineage.now_published_us - published_us) / 1e6,
        age_ms=age_ms,
        first_token_age_ms=first_ms,
        weight=lag_weight(lag, bounds) if reason is DropReason.NONE else 0.0,
        clock_skew=skew,
    )


def versions_of(trajectory: Trajectory) -> frozenset[Version]:
    """Return the policy versions of its action tokens."""
    return frozenset(Version(span.epoch, span.number) for span in trajectory.spans)


def oldest_version(trajectory: Trajectory) -> Version:
    """Return the policy version of the oldest action token."""
    return Version(trajectory.oldest_epoch, trajectory.oldest_number)
