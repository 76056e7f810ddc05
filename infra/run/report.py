"""`report.html`: one self-contained file with plots and tables, what a researcher would attach to
a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from infra.figures import readable
from infra.run.findings import Findings
from infra.run.history import History
from infra.run.origin import origin
from infra.run.section import Section

_WORD_MAX = 24
_TEMPLATES = Path(__file__).resolve().parent
_ACCOUNTS = (
    ("issued", "issued", "episodes"),
    ("trained", "trained, in steps that survive", "trajectories"),
    ("dropped", "dropped", "trajectories"),
    ("abandoned", "abandoned", "episodes"),
    ("evaluated", "evaluated", "trajectories"),
    ("pending", "pending", "episodes"),
    ("duplicates", "written again or void, counted nowhere else", "records"),
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


_ORDER = (
    "reward", "held_out", "lag", "kl", "lag_buckets", "ratios", "age", "trajectories", "tokens",
    "lengths", "retries", "throughput", "waits", "phases", "mfu", "latencies",
)  # fmt: skip


def render(
    history: History, summary: Mapping[str, Any], settings_text: str, *, findings: Findings,
    began_in: Mapping[str, Any], settings_digest: str,
) -> str:  # fmt: skip
    """Return the report as one HTML text without external assets.

    findings: what the tables told. began_in: what `infra.run.environment` kept; empty when it kept
    nothing.
    """
    rows = [(title, unit, summary[name]) for name, title, unit in _QUANTITIES]
    rows += [(f"learner: {name}", "ms", found) for name, found in summary["step_phases_ms"].items()]
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True
    )
    pages.filters |= {"reward": _reward, "amount": amount, "count": _count, "is_long": _is_long}
    return pages.get_template("report.html.j2").render(
        summary=summary,
        began=_moment(history.first_ms),
        sections=_sections(history, summary, findings, began_in),
        environment=origin(summary, began_in, findings, settings_digest),
        accounts=[(title, _cell(summary[name]), unit) for name, title, unit in _ACCOUNTS],
        quantiles=rows,
        settings=settings_text,
    )


def _sections(
    history: History, summary: Mapping[str, Any], findings: Findings, began_in: Mapping[str, Any]
) -> list[Section]:
    # matplotlib takes a second to load, which only the end of a run should pay.
    import matplotlib

    from infra.run.accounts import of_tokens, of_trajectories
    from infra.run.drawing import STYLE
    from infra.run.flow_sections import of_flow
    from infra.run.learning_sections import of_learning
    from infra.run.plots import of_topics

    with matplotlib.rc_context(STYLE):
        made = {
            "trajectories": of_trajectories(summary, len(history.trajectories)),
            "tokens": of_tokens(summary),
            **of_topics(history),
            **of_flow(findings),
            **of_learning(findings, began_in.get("held_out", {})),
        }
    return [made[name] for name in _ORDER]


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


def _is_long(cell: str) -> bool:
    """Whether a word of a cell may be broken anywhere, as a digest may."""
    return any(len(word) > _WORD_MAX for word in cell.split())


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
