"""How many episodes may be issued: the bound on lag at its source (requirements F6), and the
barrier of a partial rollout.

A slot is freed when its work is used or dropped for a named reason, not when it ends. Source of F6:
AReaL (arXiv 2505.24298), with the counters of design section 9; of F12: the Kimi K3 report.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal


def admits(*, requests: int, batch: int, version: int, eta: int) -> bool:
    """Whether the `requests`-th request of the run may be made at a version (F6). Units: episodes,
    updates.
    """
    return (requests - 1) // batch <= version + eta


def capacity(
    *, max_concurrent: int, running: int, eta: int, version: int, batch: int, held: int
) -> int:
    """Return how many episodes may be issued now, never below 0 (F6).

    held: accepted + open, that is issued and neither abandoned, dropped by the gate nor skipped by
    the learner on its lineage. Units: episodes, updates.
    """
    return max(0, min(max_concurrent - running, (eta + version + 1) * batch - held))


def barrier(share: Decimal, *, prompts: int, completions: int) -> int:
    """Return how many of the episodes of an iteration release it: ceil(share * prompts *
    completions) (F12).

    `share` is a decimal because binary floating point makes 0.07 * 100 more than 7.
    """
    return int((share * prompts * completions).to_integral_value(rounding=ROUND_CEILING))
