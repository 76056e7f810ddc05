"""`report.html`: one self-contained file with plots and tables, what a researcher would attach to
a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from infra.figures import readable
from infra.run.history import History

_TEMPLATES = Path(__file__).resolve().parent
_ACCOUNTS = (
    ("issued", "issued", "episodes"),
    ("trained", "trained, in steps that survive", "trajectories"),
    ("dropped", "dropped", "trajectories"),
    ("abandoned", "abandoned", "episodes"),
    ("evaluated", "evaluated", "trajectories"),
    ("pending", "pending", "episodes"),
    ("sampled_tokens", "sampled", "action tokens"),
    ("raw_tokens_per_s", "sampled a second", "tokens/s"),
    ("effective_tokens_per_s", "trained a second", "tokens/s"),
    ("effective_trajectories_per_s", "trained a second", "trajectories/s"),
    ("versions_published", "policy versions published", "versions"),
    ("process_restarts", "processes restarted", "times"),
)
_QUANTITIES = (
    ("lag_steps", "policy lag at consumption", "updates"),
    ("buffer_age_s", "buffer age at consumption", "s"),
    ("ttft_ms", "time to first token", "ms"),
    ("commit_latency_ms", "commit latency", "ms"),
    ("verifier_ms", "verifier", "ms"),
    ("refresh_pause_ms", "pause for new weights", "ms"),
)


def render(history: History, summary: Mapping[str, Any], settings_text: str) -> str:
    """Return the report as one HTML text without external assets."""
    # matplotlib takes a second to load, which only the end of a run should pay.
    from infra.run.plots import plots

    rows = [(title, unit, summary[name]) for name, title, unit in _QUANTITIES]
    rows += [(f"learner: {name}", "ms", found) for name, found in summary["step_phases_ms"].items()]
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True
    )
    pages.filters |= {"reward": _reward, "amount": amount, "count": _count}
    return pages.get_template("report.html.j2").render(
        summary=summary,
        began=_moment(history.first_ms),
        plots=plots(history, summary),
        accounts=[(title, _cell(summary[name]), unit) for name, title, unit in _ACCOUNTS],
        quantiles=rows,
        settings=settings_text,
    )


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "not yet"
    return datetime.fromtimestamp(at_ms / 1e3, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def amount(value: float | None, unit: str) -> str:
    """Return a number with its unit as people read it: three digits, milliseconds turned to seconds
    where those are shorter.
    """
    if value is None:
        return "-"
    if unit == "ms" and abs(value) >= 1_000:
        value, unit = value / 1_000, "s"
    digits = 0 if value == int(value) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    small = abs(value) < 0.1 and value != 0
    return f"{value:.2g} {unit}" if small else f"{value:,.{digits}f} {unit}"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        told = ", ".join(f"{name} {count:,}" for name, count in sorted(value.items()))
        return f"{sum(value.values()):,} ({told})" if value else "0"
    if isinstance(value, float):
        return readable(value)
    return "-" if value is None else _count(value)


def _reward(interval: Mapping[str, Any]) -> str:
    if interval["mean"] is None:
        return "-"
    text = f"{interval['mean']:.2f}"
    if interval["low"] is None:
        return text
    return f"{text} [{interval['low']:.2f}, {interval['high']:.2f}]"
