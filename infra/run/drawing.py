"""How the report draws: one inline SVG a plot, in the page's own colour, so that one picture serves
light and dark.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

_WIDTH_IN = 7.6
_INK = "#010203"
"""Drawn with, then replaced by the colour of the page's text."""
COLOURS = ("#3f7fd9", "#d9822b", "#2f9e6e", "#b05cc6", "#c9504a", "#7a8a99", "#a58a2a", "#3aa7b8")
ROW_IN = 0.27
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sluice",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "DejaVu Sans"],
    "font.size": 9.0,
    "text.color": _INK,
    # A name from a record may hold dollars, which are no formula.
    "text.parse_math": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler(color=COLOURS),
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


def svg(figure: Figure) -> str:
    """Return a drawing as SVG without its preamble."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def axes_of(height_in: float) -> tuple[Figure, Axes]:
    """Return an empty drawing of the page's width. Unit: inches."""
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    return figure, figure.subplots()


def by_update(axes: Axes, label: str) -> None:
    """Let the horizontal axis count updates, and the other begin at zero or below."""
    axes.set(xlabel="optimiser update", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    # By what is drawn and not by its margin, which reaches below zero when all is zero.
    if axes.dataLim.y0 >= 0.0:
        axes.set_ylim(0.0, axes.dataLim.y1 * 1.05 or 1.0)
    # Not 5 with 1e-5 above the axis, where the legend stands.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend(axes: Axes) -> None:
    """Name the lines."""
    # Above the axes: inside it would hide what it explains, and beside them a phone cuts it off.
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1, ncols=4,
        handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def funnel(rows: Sequence[tuple[str, int]], unit: str) -> str:
    """Return bars of counts, each with its share of the first."""
    whole = max(1, rows[0][1])
    labels = [f"{count:,}  ({count / whole:.0%})" for _, count in rows]
    return bars([(name, float(count)) for name, count in rows], labels, unit, whole=float(whole))


def bars(
    rows: Sequence[tuple[str, float]], labels: Sequence[str], unit: str, *, whole: float
) -> str:
    """Return horizontal bars, each with its name before and its label after it."""
    figure, axes = axes_of(0.6 + ROW_IN * len(rows))
    # By place and not by name, which two rows may share.
    drawn = axes.barh(range(len(rows)), [value for _, value in rows], height=0.66)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.bar_label(drawn, list(labels), padding=4)
    axes.invert_yaxis()
    axes.set(xlabel=unit)
    axes.set_xlim(left=0.0, right=whole * 1.15)
    axes.grid(visible=False, axis="y")
    return svg(figure)


def lines(
    rows: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str, *, width: float = 1.4
) -> str:
    """Return lines over updates: of each its name, the updates and the values."""
    figure, axes = axes_of(2.2)
    for name, xs, ys in rows:
        axes.plot(xs, ys, label=name, lw=width, marker=".")
    by_update(axes, label)
    if len(rows) > 1:
        legend(axes)
    return svg(figure)


def by_value(rows: Sequence[tuple[str, Sequence[float]]], unit: str, label: str) -> str:
    """Return the share of samples up to each value; of each line its percentiles from 0 to 100."""
    figure, axes = axes_of(2.2)
    for (name, values), width in zip(rows, (3.2, 1.4), strict=False):
        shares = [place / (len(values) - 1) for place in range(len(values))]
        axes.plot(values, shares, label=name, lw=width, drawstyle="steps-post")
    axes.set(xlabel=unit, ylabel=label)
    axes.set_ylim(0.0, 1.02)
    legend(axes)
    return svg(figure)
