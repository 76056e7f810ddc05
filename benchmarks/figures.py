"""What measurements share: one row of the table, and the interval of paired ratios."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

_DRAWS = 2_000


def row(name: str, value: float, *, unit: str, goal: float, conditions: str) -> dict[str, Any]:
    """Return one row of the table; a goal that is an upper bound is named so by its conditions."""
    return {"name": name, "value": value, "unit": unit, "goal": goal, "conditions": conditions}


def ratio_row(
    name: str, ratios: Sequence[float], *, goal: float, conditions: str
) -> dict[str, Any]:
    """Return the row of paired ratios: their median, with its interval of 95 % in the
    conditions.
    """
    low, high = interval(ratios)
    said = f"{conditions}; 95 % interval of the median {low:.3f} to {high:.3f}"
    return row(name, round(median(ratios), 3), unit="ratio", goal=goal, conditions=said)


def median(values: Sequence[float]) -> float:
    """Return the upper median."""
    return sorted(values)[len(values) // 2]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, from those that were seen."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of 95 % of the median; the draws are the same for the same
    values.
    """
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(_DRAWS))
    return medians[int(_DRAWS * 0.025)], medians[int(_DRAWS * 0.975)]
