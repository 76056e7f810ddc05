"""`summary.json`: the accounts of a run, computed from its topics.

Counts of trajectories come from the audit, so that the summary cannot tell another story than the
proof; quantiles come from the rows of `learner-steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infra.run.history import History, Interval, StepRow, quantiles

_QUARTERS = 4


def quarters(steps: Sequence[StepRow]) -> tuple[Sequence[StepRow], Sequence[StepRow]]:
    """Return the first and the last quarter of the steps, at least one step each."""
    size = max(1, len(steps) // _QUARTERS)
    return steps[:size], steps[-size:]


def _rounded(interval: Interval) -> dict[str, float | int | None]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(interval).items()}


def summarise(
    history: History, *, counts: Mapping[str, Any], violations: int, settings: Mapping[str, Any],
    restarts: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the summary of a run.

    `counts` are the audit's: issued, trained, dropped by reason, abandoned by reason, evaluated,
    pending. Rates are per second of one wall clock, that of the view `run_wall`: from the run's
    Start to its last update or token, idle time and failures included.
    """
    steps = history.ordered_steps()
    first, last = quarters(steps) if steps else ((), ())
    begin_ms = history.first_ms or 0
    stepped_ms = max((row.at_ms for row in steps), default=0)
    ended_ms = max(stepped_ms, history.last_token_ms) or history.last_ms
    wall_s = max(0.0, (ended_ms - begin_ms) / 1e3)
    members = [member for row in steps for member in row.event.trained]
    effective = sum(m.kept_tokens for m in members if m.repeat >= 1)
    environments = sorted({m.environment for m in members})
    return {
        "run_id": history.run_id,
        "name": settings["run"]["name"],
        "seed": settings["run"]["seed"],
        "steps": len(steps),
        "wall_s": round(wall_s, 1),
        "reward_first_quarter": _rounded(history.rewards(first)),
        "reward_last_quarter": _rounded(history.rewards(last)),
        "reward_by_environment": {
            name: {
                "first_quarter": _rounded(history.rewards(first, name)),
                "last_quarter": _rounded(history.rewards(last, name)),
            }
            for name in environments
        },
        **counts,
        "lag_steps": asdict(quantiles(m.lag_steps for m in members)),
        "buffer_age_s": asdict(quantiles(m.age_ms / 1e3 for m in members)),
        "ttft_ms": asdict(quantiles(history.ttft_ms)),
        "commit_latency_ms": asdict(quantiles(history.commit_ms)),
        "verifier_ms": asdict(quantiles(history.verify_ms)),
        "refresh_pause_ms": asdict(quantiles(history.refresh_ms)),
        "step_phases_ms": {k: asdict(quantiles(v)) for k, v in sorted(history.phases_ms.items())},
        "sampled_tokens": history.action_tokens,
        "raw_tokens_per_s": round(history.action_tokens / wall_s, 2) if wall_s else None,
        "effective_tokens_per_s": round(effective / wall_s, 2) if wall_s else None,
        "effective_trajectories_per_s": round(len(members) / wall_s, 3) if wall_s else None,
        "versions_published": history.versions,
        "process_restarts": restarts,
        "closed": history.closed is not None,
        "audit_violations": violations,
    }
