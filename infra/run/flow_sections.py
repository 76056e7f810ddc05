"""The sections of a run's report on its pace: what bounds it, where the time went, what was tried
again. All from the SQL views (docs/metrics.md), which define what is said here.
"""

from __future__ import annotations

from infra.run.drawing import bars
from infra.run.findings import Findings
from infra.run.section import Section, Table, seconds, share, told

_OFF_MAX = 0.01
"""Share of the wall clock that may be attributed too often or not at all before it is an alarm."""


def of_flow(findings: Findings) -> dict[str, Section]:
    """Return the sections by name."""
    title, how = (
        "Throughput against its bound",
        "Bound: trained tokens over the time in which the busiest stage worked. Busy is the union "
        "of a worker's work, averaged over the stage's workers; as the bottleneck, rollout goes "
        "without the time of sync, which holds it up.",
    )
    waits, how_waits = (
        "Where the time went",
        "The learner's wall clock, from its start to its last update, by phase of its work and by "
        "cause of its waits.",
    )
    retries, how_retries = (
        "Retries by cause",
        "Failures that cost an attempt of an episode which was tried again, as the scheduler "
        "counts them.",
    )
    return {
        "throughput": told(title, how, lambda: _throughput(title, how, findings)),
        "waits": told(waits, how_waits, lambda: _waits(waits, how_waits, findings)),
        "retries": told(retries, how_retries, lambda: _retries(retries, how_retries, findings)),
    }


def _throughput(title: str, how: str, findings: Findings) -> Section:
    rates, stages = findings.of("throughput", "stages")
    if not rates:
        return Section(title=title, how=how, absent="No token has been sampled yet.")
    (rate,) = rates
    wall_s = rate["wall_s"]
    busy = Table(
        heads=("stage", "#busy", "#share of the wall clock", "#workers"),
        rows=[
            (one["stage"], seconds(one["busy_s"]), share(one["busy_s"], wall_s),
             f"{one['workers']:,}")
            for one in stages
        ],
    )  # fmt: skip
    pace = Table(
        heads=("rate", "#value", "unit"),
        rows=[
            ("sampled", f"{rate['raw_tokens_per_s']:,.2f}", "tokens/s"),
            ("trained (effective)", f"{rate['effective_tokens_per_s']:,.2f}", "tokens/s"),
            (
                "trained (effective)", f"{rate['effective_trajectories_per_s']:,.3f}",
                "trajectories/s",
            ),
            ("bound", f"{rate['bound_tokens_per_s']:,.2f}", "tokens/s"),
        ],
    )  # fmt: skip
    sampled = f"{rate['trained_tokens']:,} of {rate['raw_tokens']:,} sampled tokens were trained"
    note = f"{sampled} in {seconds(wall_s)}."
    if not rate["trained_tokens"] or not rate["bottleneck"]:
        return Section(
            title=title, how=how, tables=[pace, busy],
            notes=[f"{note} There is no bound before something is trained."],
        )  # fmt: skip
    reached = share(rate["effective_tokens_per_s"], rate["bound_tokens_per_s"])
    bottleneck = (
        f"Bottleneck: {rate['bottleneck']}, which worked {seconds(rate['bottleneck_busy_s'])}; "
        f"the run reached {reached} of the bound of {rate['bound_tokens_per_s']:,.2f} tokens/s."
    )
    return Section(title=title, how=how, tables=[pace, busy], notes=[bottleneck, note])


def _waits(title: str, how: str, findings: Findings) -> Section:
    spent, checks = findings.of("waits", "wait_check")
    if not spent or not checks:
        return Section(title=title, how=how, absent="The learner has made no update yet.")
    (check,) = checks
    wall_s, whole_s = check["wall_s"], sum(one["spent_s"] for one in spent)
    named = sorted(spent, key=lambda one: -one["spent_s"])
    rows = [(f"{one['kind']}: {one['cause']}", float(one["spent_s"])) for one in named]
    table = Table(
        heads=("kind", "cause or phase", "#time", "#share"),
        rows=[
            (one["kind"], one["cause"], seconds(one["spent_s"]), share(one["spent_s"], wall_s))
            for one in named
        ],
        sum=("sum", f"of {seconds(wall_s)} wall clock", seconds(whole_s), share(whole_s, wall_s)),
    )
    off = abs(whole_s - wall_s) > _OFF_MAX * wall_s
    alarm = f"{seconds(whole_s)} are attributed, but the wall clock is {seconds(wall_s)}."
    waited = sum(one["spent_s"] for one in spent if one["kind"] == "wait")
    labels = [f"{seconds(value)}  ({share(value, wall_s)})" for _, value in rows]
    return Section(
        title=title, how=how, svg=bars(rows, labels, "seconds", whole=max(v for _, v in rows)),
        tables=[table], alarms=[alarm] if off else [],
        notes=[f"The learner waited {share(waited, wall_s)} of its wall clock."],
    )  # fmt: skip


def _retries(title: str, how: str, findings: Findings) -> Section:
    (rows,) = findings.of("retries")
    if not rows:
        return Section(title=title, how=how, absent="No attempt of an episode was tried again.")
    table = Table(
        heads=("cause", "#n"),
        rows=[(one["cause"], f"{one['n']:,}") for one in rows],
        sum=("sum", f"{sum(one['n'] for one in rows):,}"),
    )
    return Section(title=title, how=how, tables=[table])
