"""The plots of a run's report, each as one inline SVG without external assets.

Lines and texts take the page's own colour, so that one picture serves light and dark.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from infra.run.history import History, StepRow, quantiles
from schemas.records.parts import TrainedMember

_WIDTH_IN = 7.6
_INK = "#010203"
"""Drawn with, then replaced by the colour of the page's text."""
_COLOURS = ("#3f7fd9", "#d9822b", "#2f9e6e", "#b05cc6", "#c9504a", "#7a8a99", "#a58a2a", "#3aa7b8")
_ROW_IN = 0.27
_SMALLEST_MS = 1e-3
"""Zero has no place on a logarithmic axis."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sluice",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "DejaVu Sans"],
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler(color=_COLOURS),
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "grid.color": _INK,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def plots(history: History, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return title, a sentence on how to read it, and SVG of each plot."""
    steps = history.ordered_steps()
    with matplotlib.rc_context(_STYLE):
        return [
            (
                "Reward",
                "Mean of each update's trajectories; the band is the 95 % interval over groups.",
                _reward(history, steps),
            ),
            (
                "Policy lag at consumption",
                "Optimiser updates between the version of the oldest token and the consuming one.",
                _per_step(steps, "updates", lambda member: float(member.lag_steps)),
            ),
            (
                "Buffer age at consumption",
                "From the Trajectory's broker time to its use.",
                _per_step(steps, "seconds", lambda member: member.age_ms / 1e3),
            ),
            (
                "Funnel of trajectories",
                "Every issued episode ends under one heading.",
                _funnel(_trajectory_rows(history, summary), "trajectories"),
            ),
            (
                "Funnel of action tokens",
                "Every sampled token ends under one heading.",
                _funnel(_token_rows(summary), "action tokens"),
            ),
            (
                "Stage latencies",
                "Box: quartiles; whiskers: p5 and p95; logarithmic.",
                _latencies(history),
            ),
            (
                "Where the learner's time goes",
                "Phases of each update; together they are the time from one update to the next.",
                _phases(steps),
            ),
        ]


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def _axes(height_in: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    return figure, figure.subplots()


def _nothing(axes: Axes, what: str) -> None:
    axes.text(0.5, 0.5, what, ha="center", va="center", transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def _updates(axes: Axes, label: str) -> None:
    axes.set(xlabel="optimiser update", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _legend(axes: Axes) -> None:
    # Above the axes: inside it would hide what it explains, and beside them a phone cuts it off.
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1, ncols=4,
        handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def _reward(history: History, steps: Sequence[StepRow]) -> str:
    figure, axes = _axes(2.7)
    names = sorted({member.environment for row in steps for member in row.event.trained})
    for name in (None, *(names if len(names) > 1 else ())):
        rows = [(row.ordinal, history.rewards([row], name)) for row in steps]
        kept = [(x, found, found.mean) for x, found in rows if found.mean is not None]
        xs = [x for x, _, _ in kept]
        means = [mean for _, _, mean in kept]
        only = names[0] if len(names) == 1 else "all"
        axes.plot(xs, means, label=name or only, lw=2.2 if name is None else 1.1, marker=".")
        if name is None:
            low = [mean if found.low is None else found.low for _, found, mean in kept]
            high = [mean if found.high is None else found.high for _, found, mean in kept]
            axes.fill_between(xs, low, high, alpha=0.18)
    if not steps:
        _nothing(axes, "no update yet")
    else:
        _updates(axes, "mean reward")
        _legend(axes)
    return _svg(figure)


def _per_step(steps: Sequence[StepRow], unit: str, value: Callable[[TrainedMember], float]) -> str:
    figure, axes = _axes(2.0)
    rows = [(row.ordinal, quantiles(value(m) for m in row.event.trained)) for row in steps]
    kept = [(x, q) for x, q in rows if q.n]
    # The widest line is drawn first, so that equal percentiles stay visible beside one another.
    for name, width in (("p99", 3.6), ("p95", 2.2), ("p50", 1.0)):
        axes.plot(
            [x for x, _ in kept],
            [getattr(q, name) for _, q in kept],
            label=name,
            lw=width,
            drawstyle="steps-mid",
            color=_COLOURS[("p50", "p95", "p99").index(name)],
        )
    if not kept:
        _nothing(axes, "no update yet")
    else:
        _updates(axes, unit)
        _legend(axes)
    return _svg(figure)


def _trajectory_rows(history: History, summary: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [
        ("issued", summary["issued"]),
        ("assembled", len(history.trajectories)),
        ("trained", summary["trained"]),
        *((f"dropped: {reason}", n) for reason, n in sorted(summary["dropped"].items())),
        *((f"abandoned: {reason}", n) for reason, n in sorted(summary["abandoned"].items())),
        ("evaluated", summary["evaluated"]),
        ("pending", summary["pending"]),
    ]


def _token_rows(summary: Mapping[str, Any]) -> list[tuple[str, int]]:
    tokens = dict(summary.get("tokens") or {"sampled": summary["sampled_tokens"]})
    first = [(name, tokens.pop(name, 0)) for name in ("sampled", "trained")]
    return first + [(name.replace(":", ": "), n) for name, n in sorted(tokens.items()) if n]


def _funnel(rows: Sequence[tuple[str, int]], unit: str) -> str:
    figure, axes = _axes(0.6 + _ROW_IN * len(rows))
    bars = axes.barh([name for name, _ in rows], [count for _, count in rows], height=0.66)
    total = max(1, rows[0][1])
    axes.bar_label(bars, [f"{n:,}  ({n / total:.0%})" for _, n in rows], padding=4)
    axes.invert_yaxis()
    axes.set(xlabel=unit)
    axes.set_xlim(right=total * 1.15)
    axes.grid(visible=False, axis="y")
    return _svg(figure)


def _latencies(history: History) -> str:
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
    figure, axes = _axes(0.7 + _ROW_IN * max(3, len(filled)))
    if not filled:
        _nothing(axes, "nothing measured yet")
        return _svg(figure)
    axes.boxplot(
        [rows for _, rows in filled],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": _COLOURS[0] + "55", "edgecolor": _COLOURS[0]},
        whiskerprops={"color": _COLOURS[0]},
        capprops={"color": _COLOURS[0]},
        medianprops={"color": _COLOURS[1], "linewidth": 1.6},
    )
    axes.set_yticks(
        range(1, len(filled) + 1), [f"{name} (n {len(rows):,})" for name, rows in filled]
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: _time(ms)))
    axes.grid(visible=False, axis="y")
    return _svg(figure)


def _time(ms: float) -> str:
    if ms < 1.0:
        return f"{ms * 1e3:g} µs"
    return f"{ms:g} ms" if ms < 1_000 else f"{ms / 1e3:g} s"


def _phases(steps: Sequence[StepRow]) -> str:
    figure, axes = _axes(2.6)
    names = sorted({name for row in steps for name in row.event.phases_us})
    largest = sorted(names, key=lambda n: -sum(r.event.phases_us.get(n, 0) for r in steps))
    shown, rest = largest[: len(_COLOURS) - 1], largest[len(_COLOURS) - 1 :]
    floor = [0.0] * len(steps)
    for name in (*shown, "the rest") if rest else shown:
        parts = rest if name == "the rest" else [name]
        height = [sum(row.event.phases_us.get(p, 0) for p in parts) / 1e6 for row in steps]
        axes.bar([row.ordinal for row in steps], height, bottom=floor, label=name, width=0.8)
        floor = [low + high for low, high in zip(floor, height, strict=True)]
    if not names:
        _nothing(axes, "no update yet")
    else:
        _updates(axes, "seconds")
        _legend(axes)
    return _svg(figure)
