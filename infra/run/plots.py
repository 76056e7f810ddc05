"""The plots of a run's report, each as one inline SVG without external assets."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from infra.run.history import History, StepRow, quantiles
from schemas.records.parts import TrainedMember

_WIDTH_IN = 9.0
_SMALLEST_MS = 1e-3
"""Zero has no place on a logarithmic axis."""


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def plots(history: History, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return title and SVG of each plot."""
    steps = history.ordered_steps()
    return [
        ("Reward, with its 95 % interval over groups", _reward(history, steps)),
        (
            "Policy lag at consumption",
            _per_step(steps, "updates", lambda member: float(member.lag_steps)),
        ),
        ("Buffer age at consumption", _per_step(steps, "s", lambda member: member.age_ms / 1e3)),
        ("Funnel of trajectories", _funnel(history, summary)),
        ("Stage latencies", _latencies(history)),
    ]


def _reward(history: History, steps: Sequence[StepRow]) -> str:
    figure = Figure(figsize=(_WIDTH_IN, 3.2))
    axes = figure.subplots()
    names = sorted({member.environment for row in steps for member in row.event.trained})
    for name in (None, *names):
        rows = [(row.ordinal, history.rewards([row], name)) for row in steps]
        kept = [(x, found, found.mean) for x, found in rows if found.mean is not None]
        xs = [x for x, _, _ in kept]
        means = [mean for _, _, mean in kept if mean is not None]
        axes.plot(xs, means, label=name or "all", lw=2 if name is None else 1)
        if name is None:
            low = [mean if found.low is None else found.low for _, found, mean in kept]
            high = [mean if found.high is None else found.high for _, found, mean in kept]
            axes.fill_between(xs, low, high, alpha=0.2)
    axes.set(xlabel="optimiser update", ylabel="mean reward")
    axes.legend()
    return _svg(figure)


def _per_step(steps: Sequence[StepRow], unit: str, value: Callable[[TrainedMember], float]) -> str:
    figure = Figure(figsize=(_WIDTH_IN, 2.6))
    axes = figure.subplots()
    rows = [(row.ordinal, quantiles(value(m) for m in row.event.trained)) for row in steps]
    kept = [(x, q) for x, q in rows if q.n]
    for name in ("p50", "p95", "p99"):
        axes.plot(
            [x for x, _ in kept],
            [getattr(q, name) for _, q in kept],
            label=name,
            drawstyle="steps-mid",
        )
    axes.set(xlabel="optimiser update", ylabel=unit)
    axes.legend()
    return _svg(figure)


def _funnel(history: History, summary: Mapping[str, Any]) -> str:
    figure = Figure(figsize=(_WIDTH_IN, 2.6))
    axes = figure.subplots()
    rows = [
        ("issued", summary["issued"]),
        ("assembled", len(history.trajectories)),
        ("trained", summary["trained"]),
        *((f"dropped: {reason}", n) for reason, n in summary["dropped"].items()),
        *((f"abandoned: {reason}", n) for reason, n in summary["abandoned"].items()),
        ("evaluated", summary["evaluated"]),
        ("pending", summary["pending"]),
    ]
    bars = axes.barh([name for name, _ in rows], [count for _, count in rows])
    axes.bar_label(bars)
    axes.invert_yaxis()
    axes.set(xlabel="trajectories")
    return _svg(figure)


def _latencies(history: History) -> str:
    figure = Figure(figsize=(_WIDTH_IN, 3.0))
    axes = figure.subplots()
    stages = [
        ("first token", history.ttft_ms),
        ("commit", history.commit_ms),
        ("verify", history.verify_ms),
        ("environment reset", history.reset_ms),
        ("environment step", history.step_ms),
        ("refresh pause", history.refresh_ms),
        *((f"learner: {name}", rows) for name, rows in sorted(history.phases_ms.items())),
    ]
    filled = [(name, [max(v, _SMALLEST_MS) for v in rows]) for name, rows in stages if rows]
    if filled:
        axes.boxplot(
            [rows for _, rows in filled], orientation="horizontal", whis=(5, 95), showfliers=False
        )
        axes.set_yticks(range(1, len(filled) + 1), [name for name, _ in filled])
        axes.set_xscale("log")
    axes.set(xlabel="ms (box: quartiles; whiskers: p5 and p95)")
    return _svg(figure)
