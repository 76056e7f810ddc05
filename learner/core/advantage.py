"""Group-relative advantages from the statistics that the gate stored with each trajectory.

The group need not be complete at the learner: mean, deviation and count travel on the record, so a
step can hold any part of a group and the advantage is the same.
"""

from __future__ import annotations

from enum import StrEnum

from schemas.errors import InvariantError

# Rewards are often 0 or 1; a deviation below this is rounding, not spread.
DEVIATION_MIN = 1e-8
DEVIATION_SHIFT = 1e-6


class Scaling(StrEnum):
    """What the centred reward is divided by."""

    NONE = "none"
    DEVIATION = "deviation"


def group_advantage(
    reward: float,
    *,
    mean: float,
    deviation: float,
    count: int,
    group_size: int,
    scaling: Scaling = Scaling.NONE,
    single_baseline: float = 0.0,
) -> float:
    """Return reward minus the group's mean, optionally over its deviation; exactly 0 for a group
    without spread.

    A task that is rolled out once (group_size 1) has no siblings: its baseline is
    `single_baseline`. Units: reward. Raises InvariantError when the statistics cannot be those of a
    group that holds this reward. Source: arXiv 2402.03300, section 4.1; division by the deviation
    is optional since arXiv 2503.20783.
    """
    if count < 1 or deviation < 0.0:
        raise InvariantError(
            f"group statistics count {count}, deviation {deviation} hold no rewarded member",
            hint="the gate admits only members whose reward is in the statistics",
        )
    if group_size == 1:
        return reward - single_baseline
    if deviation <= DEVIATION_MIN:
        return 0.0
    centred = reward - mean
    return centred / (deviation + DEVIATION_SHIFT) if scaling is Scaling.DEVIATION else centred
