"""Whether kills bias the lengths of what is trained, and how much a restart from the prompt would.

Pure. A run that goes on from its committed tokens trains the lengths of an undisturbed one. One
that starts interrupted episodes again keeps the short ones: with a hazard h a token, the kept
lengths have the density p(L) (1 - h)^L / Z, with any number of retries (requirements, F10).
Distances and p-values are those of Kolmogorov and Smirnov; both sides must be independent draws, so
of a group of rollouts that share a seeded prompt one is taken.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

P_MIN = 0.01
"""Below this the two distributions are taken to differ."""
N_MIN = 5_000
"""How many lengths a verdict asks for, on each side. Unit: episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A two-sample test of Kolmogorov and Smirnov."""

    d: float
    """Largest difference of the two distribution functions."""
    p: float
    """Probability of at least this under one distribution; ties make it larger."""
    n: int
    n_other: int

    @property
    def is_same(self) -> bool:
        """Whether nothing speaks against one distribution."""
        return self.p > P_MIN


def compare(lengths: Sequence[float], others: Sequence[float]) -> Distance:
    """Compare two samples; raise ValueError when one is empty."""
    return weighted(lengths, others, [1.0] * len(others))


def weighted(
    lengths: Sequence[float], others: Sequence[float], weights: Sequence[float]
) -> Distance:
    """Compare a sample with another one whose members have weights; its size is then the effective
    one, (sum w)^2 / sum w^2 (F13). Raises ValueError when one is empty or weighs nothing.
    """
    from scipy.stats import kstwobign

    total, squares = sum(weights), sum(w * w for w in weights)
    if not lengths or not total > 0:
        raise ValueError("two samples that are not empty are needed")
    ours = sorted(lengths)
    pairs = sorted(zip(others, weights, strict=True))
    theirs, sums = [value for value, _ in pairs], list(accumulate(w for _, w in pairs))
    d = max(
        abs(
            bisect_right(ours, value) / len(ours)
            - (sums[at - 1] / total if (at := bisect_right(theirs, value)) else 0.0)
        )
        for value in {*ours, *theirs}
    )
    n_other = total * total / squares
    root = math.sqrt(len(ours) * n_other / (len(ours) + n_other))
    # Stephens' form of the asymptotic law holds from some four draws on.
    p = float(kstwobign.sf(d * (root + 0.12 + 0.11 / root)))
    return Distance(d=d, p=p, n=len(ours), n_other=round(n_other))


def restarted(lengths: Sequence[int], hazard: float, *, chance: random.Random) -> list[int]:
    """Return the lengths that restarts from the prompt would keep: one into which an interruption
    falls is given up for the next. hazard: interruptions a token, below 1.
    """
    if not 0.0 <= hazard < 1.0:
        raise ValueError(f"a hazard of {hazard} a token leaves nothing to keep")
    return [length for length in lengths if chance.random() < (1.0 - hazard) ** length]


def restart_weights(lengths: Sequence[int], hazard: float) -> list[float]:
    """Return the weight of each undisturbed length under restarts (F10)."""
    return [math.exp(length * math.log1p(-hazard)) for length in lengths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What two runs say."""

    kills: Distance
    """Lengths under kills against the undisturbed ones."""
    restart: Distance
    """What restarts would have kept, against the undisturbed ones."""
    restart_fit: Distance
    """The same against F10."""
    mean: float
    mean_undisturbed: float
    mean_restart: float
    hazard: float
    """Interruptions a sampled token. Unit: 1/token."""
    is_enough: bool
    """Whether both sides have `N_MIN` lengths."""

    @property
    def holds(self) -> bool:
        """Whether kills do not bias lengths, restarts would, and as predicted."""
        return self.is_enough and self.kills.is_same and self.restart_fit.is_same


def judge(
    killed: Sequence[int], undisturbed: Sequence[int], *, hazard: float, seed: int
) -> Verdict:
    """Hold the lengths trained under kills against those of an undisturbed run. Raises ValueError
    for an empty side.
    """
    chance = random.Random(seed)
    shuffled = chance.sample(list(undisturbed), len(undisturbed))
    # Drawn from one half and held against the other, so that no length is compared with itself.
    half = len(shuffled) // 2
    kept, rest = restarted(shuffled[:half], hazard, chance=chance), shuffled[half:]
    return Verdict(
        kills=compare(killed, undisturbed),
        restart=compare(kept, rest),
        restart_fit=weighted(kept, rest, restart_weights(rest, hazard)),
        mean=sum(killed) / len(killed),
        mean_undisturbed=sum(undisturbed) / len(undisturbed),
        mean_restart=sum(kept) / len(kept),
        hazard=hazard,
        is_enough=min(len(killed), len(undisturbed)) >= N_MIN,
    )
