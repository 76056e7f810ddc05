"""`report.html`: one self-contained file with plots and tables, what a researcher would attach to
a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from infra.run.history import History

_TEMPLATES = Path(__file__).resolve().parent
_ACCOUNTS = (
    "issued", "trained", "dropped", "abandoned", "evaluated", "pending", "sampled_tokens",
    "raw_tokens_per_s", "effective_tokens_per_s", "effective_trajectories_per_s",
    "versions_published", "process_restarts",
)  # fmt: skip
_QUANTITIES = (
    "lag_steps", "buffer_age_s", "ttft_ms", "commit_latency_ms", "verifier_ms", "refresh_pause_ms",
)  # fmt: skip


def render(history: History, summary: Mapping[str, Any], settings_text: str) -> str:
    """Return the report as one HTML text without external assets."""
    # matplotlib takes a second to load, which only the end of a run should pay.
    from infra.run.plots import plots

    rows = [(name, summary[name]) for name in _QUANTITIES]
    rows += [(f"learner phase {name} (ms)", q) for name, q in summary["step_phases_ms"].items()]
    pages = jinja2.Environment(loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True)
    pages.filters["reward"] = _reward
    return pages.get_template("report.html.j2").render(
        summary=summary,
        plots=plots(history, summary),
        accounts=[(name, _cell(summary[name])) for name in _ACCOUNTS],
        quantiles=rows,
        settings=settings_text,
    )


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return str(value)


def _reward(interval: Mapping[str, Any]) -> str:
    if interval["mean"] is None:
        return "-"
    text = f"{interval['mean']:.2f}"
    if interval["low"] is None:
        return text
    return f"{text} [{interval['low']:.2f}, {interval['high']:.2f}]"
