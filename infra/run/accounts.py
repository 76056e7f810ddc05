"""The two accounts of a run's report: every issued episode once, every sampled token once.

Both come from the audit's counts, so that the report cannot tell another story than the proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.run.drawing import funnel
from infra.run.section import Section, Table, share

_HEADS = ("outcome", "reason", "#n", "#share")
Row = tuple[str, str, int]


def of_trajectories(summary: Mapping[str, Any], assembled: int) -> Section:
    """Return what became of every issued episode; assembled: how many are a trajectory."""
    rows: list[Row] = [("trained", "", summary["trained"])]
    for outcome in ("dropped", "abandoned"):
        rows += [(outcome, reason, n) for reason, n in sorted(summary[outcome].items())]
    rows += [(name, "", summary[name]) for name in ("evaluated", "pending")]
    return _section(
        "trajectories", "Every issued episode ends under one heading.",
        ("issued", summary["issued"]), [("assembled", assembled)], rows,
        absent="No episode has been issued yet.",
    )  # fmt: skip


def of_tokens(summary: Mapping[str, Any]) -> Section:
    """Return what became of every sampled token."""
    tokens = dict(summary.get("tokens") or {"sampled": summary["sampled_tokens"]})
    sampled = tokens.pop("sampled", 0)
    rows: list[Row] = [("trained", "", tokens.pop("trained", 0))]
    for name, n in sorted(tokens.items()):
        outcome, _, reason = name.partition(":")
        rows += [(outcome, reason, n)] if n else []
    return _section(
        "action tokens", "Every sampled token ends under one heading.", ("sampled", sampled), [],
        rows, absent="No token has been sampled yet.",
    )  # fmt: skip


def _section(
    unit: str, how: str, whole: tuple[str, int], beside: Sequence[tuple[str, int]],
    rows: Sequence[Row], *, absent: str,
) -> Section:  # fmt: skip
    title, (name, n) = f"Funnel of {unit}", whole
    if not n:
        return Section(title=title, how=how, absent=absent)
    total = sum(count for *_, count in rows)
    named = [(f"{one}: {reason}" if reason else one, count) for one, reason, count in rows]
    table = Table(
        heads=_HEADS,
        rows=[(one, reason, f"{count:,}", share(count, n)) for one, reason, count in rows],
        sum=("sum", f"of {n:,} {name}", f"{total:,}", share(total, n)),
    )
    alarms = [] if total == n else [f"{total:,} {unit} are accounted for, {n:,} were {name}."]
    drawn = funnel([whole, *beside, *named], unit)
    return Section(title=title, how=how, svg=drawn, tables=[table], alarms=alarms)
