"""The sections of a run's report on what it learned from: held-out tasks, lag, ratios, lengths.
All from the SQL views (docs/metrics.md), which define what is said here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from infra.run.drawing import by_value, lines
from infra.run.findings import Findings, Row
from infra.run.section import Section, Table, figure, share, told

_Z95 = 1.96
_WINDOWS_MAX = 10
_BUCKETS = {
    "le_0": "0", "le_1": "1", "le_2": "2", "le_4": "3-4", "le_8": "5-8", "gt_8": ">8",
}  # fmt: skip
_WINDOW = 1_000
_NO_UPDATE = "The learner has made no update yet."


class _Making(Protocol):
    def __call__(self, title: str, how: str, findings: Findings, /) -> Section: ...


def of_learning(findings: Findings, held_out: Mapping[str, str]) -> dict[str, Section]:
    """Return the sections by name; held_out: digest of the held-out set by component."""
    made: dict[str, tuple[str, str, _Making]] = {
        "held_out": (
            "Success on the held-out set",
            "Share of held-out tasks that succeeded, by the version that answered, with its 95 % "
            "interval (Wilson).",
            partial(_held_out, digests=held_out),
        ),
        "lag_buckets": (
            "Lag by bucket",
            "Trained trajectories by their lag in updates, without those of updates that a restore "
            "rolled back; KL in nats as above.",
            _lag_buckets,
        ),
        "ratios": (
            "Importance ratio by lag",
            "Effective sample size (squared sum of the ratios over the sum of their squares) as a "
            "share of the tokens, by update and lag of their trajectory. Quantiles are those of "
            "the tokens of one update.",
            _ratios,
        ),
        "lengths": (
            "Lengths trained against lengths offered",
            "Shares of trajectories up to a length, of all whose fate is known and of those that "
            "were trained. Distance: the greatest between both curves (Kolmogorov and Smirnov); "
            "above 0.1 over at least 1,000 trajectories an alarm stands.",
            _lengths,
        ),
    }
    return {
        name: told(title, how, partial(make, title, how, findings))
        for name, (title, how, make) in made.items()
    }


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share. Source: Wilson (1927), J. Am. Stat. Assoc. 22."""
    rate, z2 = successes / n, _Z95**2
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _held_out(title: str, how: str, findings: Findings, *, digests: Mapping[str, str]) -> Section:
    (rows,) = findings.of("held_out")
    kept = Table(heads=("component", "digest of its held-out set"), rows=[*sorted(digests.items())])
    tables = [kept] if digests else []
    if not rows:
        absent = "No held-out task has been answered: see task_source.evaluate_every."
        return Section(title=title, how=how, tables=tables, absent=absent)
    answered = Table(
        heads=("environment", "version", "#update", "#success", "#95 % interval", "#n",
               "#mean reward"),
        rows=[_answered(row) for row in rows],
    )  # fmt: skip
    curves: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["ordinal"] is not None:
            curves[row["environment"]].append(row)
    drawn = [
        (name, [row["ordinal"] for row in found], [row["successes"] / row["n"] for row in found])
        for name, found in sorted(curves.items())
        if len(found) > 1
    ]
    notes = [] if digests else ["The digest of the held-out set was not recorded with this run."]
    return Section(
        title=title, how=how, svg=lines(drawn, "share of successes") if drawn else "",
        tables=[*tables, answered], notes=notes,
    )  # fmt: skip


def _answered(row: Row) -> tuple[str, ...]:
    low, high = wilson(row["successes"], row["n"])
    update = "-" if row["ordinal"] is None else f"{row['ordinal']:,}"
    return (
        row["environment"], f"{row['epoch']}/{row['number']}", update,
        share(row["successes"], row["n"]), f"{low:.1%} to {high:.1%}", f"{row['n']:,}",
        figure(row["reward_mean"]),
    )  # fmt: skip


def _lag_buckets(title: str, how: str, findings: Findings) -> Section:
    (rows,) = findings.of("lag_buckets")
    if not rows:
        return Section(title=title, how=how, absent=_NO_UPDATE)
    counts = Table(
        heads=("lag", "#trajectories", "#action tokens", "#kept", "#masked low", "#masked high"),
        rows=[
            (_lag(one), *(f"{one[name]:,}" for name in (
                "n", "action_tokens", "kept_tokens", "masked_low_tokens", "masked_high_tokens"
            )))
            for one in rows
        ],
    )  # fmt: skip
    divergence = Table(
        heads=("lag", "#KL p50", "#KL p95", "#KL p99", "#KL max", "#mean reward"),
        rows=[
            (_lag(one), *(figure(one[name]) for name in (
                "kl_p50", "kl_p95", "kl_p99", "kl_max", "reward_mean"
            )))
            for one in rows
        ],
    )  # fmt: skip
    return Section(title=title, how=how, tables=[counts, divergence])


def _lag(row: Row) -> str:
    return _BUCKETS.get(str(row["bucket"]), str(row["bucket"]))


def _ratios(title: str, how: str, findings: Findings) -> Section:
    (rows,) = findings.of("ratios")
    if not rows:
        absent = "No update has measured the ratio of a token by lag."
        return Section(title=title, how=how, absent=absent)
    by_bucket = {
        bucket: found
        for bucket in _BUCKETS
        if (found := [r for r in rows if r["bucket"] == bucket])
    }
    table = Table(
        heads=("lag", "#updates", "#tokens", "#effective tokens", "#share", "#newest update",
               "#its p50", "#its p95", "#its p99", "#greatest p99"),
        rows=[_of_bucket(bucket, found) for bucket, found in by_bucket.items()],
    )  # fmt: skip
    drawn = [
        (
            f"lag {_BUCKETS[bucket]}", [row["ordinal"] for row in found if row["tokens"]],
            [_finite(row["effective_sample_tokens"]) / row["tokens"] for row in found
             if row["tokens"]],
        )
        for bucket, found in by_bucket.items()
    ]  # fmt: skip
    is_drawn = len({row["ordinal"] for row in rows}) > 1
    return Section(
        title=title, how=how, svg=lines(drawn, "share of the tokens") if is_drawn else "",
        tables=[table],
    )  # fmt: skip


def _finite(value: float | None) -> float:
    """Return a measured number; ClickHouse's JSON has none for one that is not finite."""
    return 0.0 if value is None else value


def _of_bucket(bucket: str, rows: Sequence[Row]) -> tuple[str, ...]:
    tokens, sizes = (
        sum(_finite(r[name]) for r in rows) for name in ("tokens", "effective_sample_tokens")
    )
    newest = rows[-1]
    greatest = max((r["ratio_p99"] for r in rows if r["ratio_p99"] is not None), default=None)
    return (
        _BUCKETS[bucket], f"{len(rows):,}", f"{tokens:,.0f}", f"{sizes:,.1f}",
        share(sizes, tokens), f"{newest['ordinal']:,}",
        *(figure(newest[name]) for name in ("ratio_p50", "ratio_p95", "ratio_p99")),
        figure(greatest),
    )  # fmt: skip


def _lengths(title: str, how: str, findings: Findings) -> Section:
    parts, curves = findings.of("lengths", "length_curves")
    if not parts or not curves or not curves[0]["offered"]:
        absent = "No trajectory for training has been trained or dropped yet."
        return Section(title=title, how=how, absent=absent)
    (curve,), (whole, *windows) = curves, parts
    offered, trained = whole["offered"], whole["trained"]
    lengths = Table(
        heads=("action tokens of", "#p50", "#p95", "#p99", "#max", "#n"),
        rows=[
            _lengths_of(name, curve[f"{name}_tokens"], n)
            for name, n in (("offered", offered), ("trained", trained))
        ],
    )
    standing = [one for one in windows if one["is_alarm"]]
    shown = [("whole run", whole)] + [
        (f"trajectories from {one['part'] * _WINDOW + 1:,} on", one)
        for one in standing[:_WINDOWS_MAX]
    ]
    tests = Table(
        heads=("part", "#offered", "#trained", "#distance", "#p", "#span in updates, p95",
               "alarm"),
        rows=[
            (
                name, f"{one['offered']:,}", f"{one['trained']:,}", f"{one['distance']:.4f}",
                figure(one["p"]), f"{one['span_p95']:g}", "stands" if one["is_alarm"] else "no",
            )
            for name, one in shown
        ],
    )  # fmt: skip
    alarms = []
    if whole["is_alarm"]:
        alarms.append(
            "What was trained has not the lengths of what was offered: over the whole run the "
            f"distance is {whole['distance']:.3f}."
        )
    if standing:
        alarms.append(
            f"Lengths of what was trained differ from those offered in {len(standing):,} of "
            f"{len(windows):,} windows of 1,000 trajectories."
        )
    notes = [] if offered >= _WINDOW else [f"No alarm is raised over {offered:,} trajectories."]
    drawn = [("offered", curve["offered_tokens"])]
    drawn += [("trained", curve["trained_tokens"])] if trained else []
    return Section(
        title=title, how=how, svg=by_value(drawn, "action tokens", "share up to there"),
        tables=[lengths, tests], alarms=alarms, notes=notes,
    )  # fmt: skip


def _lengths_of(name: str, percentiles: Sequence[float], n: int) -> tuple[str, ...]:
    """percentiles: of 0 to 100 percent, one each."""
    if not n:
        return (name, "-", "-", "-", "-", "0")
    return (name, *(f"{percentiles[at]:,.0f}" for at in (50, 95, 99, 100)), f"{n:,}")
