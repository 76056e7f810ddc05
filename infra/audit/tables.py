"""Invariant 12: what the ClickHouse tables and rollups count equals what the topics hold.

The topics are counted again here, up to where the sink says that its rows are in the tables; what
lies beyond is behind, which a run that goes on may be and a closed one may not. Counts alone would
not see one row missing and another twice, so offsets are summed too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra.audit.reading import Ends, between, starts_of
from infra.audit.report import AuditReport, TableCount, Violation, at
from schemas.ports import Consumers, Delivered, Starts
from schemas.topics import (
    CONTROL,
    DEAD_LETTERS,
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    METRICS,
    POLICIES,
    REFRESHES,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    VERIFY_REQUESTS,
    WORKERS,
    Cleanup,
    Topic,
)

Ask = Callable[[str], Sequence[Mapping[str, Any]]]
"""Asks the tables one reading statement; returns rows by column name."""

_ONE = "one row a record"
_SOURCES: tuple[tuple[str, Topic[Any], Callable[[Any], int] | str], ...] = (
    ("tasks", TASKS, _ONE),
    ("episode_events", EPISODES, _ONE),
    ("token_commits", TOKENS, _ONE),
    ("tool_events", TOOL_EVENTS, _ONE),
    ("verify_requests", VERIFY_REQUESTS, _ONE),
    ("verdicts", VERDICTS, _ONE),
    ("trajectories", TRAJECTORIES, _ONE),
    ("gate_decisions", GATE_DECISIONS, _ONE),
    ("gate_members", GATE_DECISIONS, lambda record: len(record.members)),
    ("gated", GATED, _ONE),
    ("learner_events", LEARNER_STEPS, _ONE),
    ("trained_members", LEARNER_STEPS, lambda record: len(record.trained)),
    ("skipped_members", LEARNER_STEPS, lambda record: len(record.skipped)),
    ("policies", POLICIES, _ONE),
    ("refreshes", REFRESHES, _ONE),
    ("worker_states", WORKERS, _ONE),
    ("metric_points", METRICS, _ONE),
    ("dead_letters", DEAD_LETTERS, _ONE),
    ("control_events", CONTROL, _ONE),
)
_TOPICS = tuple(dict.fromkeys(topic for _, topic, _ in _SOURCES))
_SUMS: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "token_commits": ("`count`", lambda record: int(record.count)),
    "trained_members": ("kept_tokens", lambda e: sum(m.kept_tokens for m in e.trained)),
    "trajectories": ("action_tokens", lambda record: int(record.action_tokens)),
}
"""A quantity that is summed on both sides as well."""
_LEDGER = "episode_ledger"
_MARKED: Mapping[str, tuple[str, str]] = {
    "token_commits": ("sumIf(`count`, kind = 'action')", "sum(sampled_tokens)"),
    "episode_events": (
        "uniqExactIf(episode, kind = 'issued') + uniqExactIf(episode, kind = 'abandoned')",
        "countIf(bitTest(facts, 0)) + countIf(bitTest(facts, 7))",
    ),
    "trajectories": ("uniqExact(episode)", "countIf(bitTest(facts, 9))"),
    "gate_members": (
        "uniqExactIf(episode, outcome = 'admit') + uniqExactIf(episode, outcome = 'drop')",
        "countIf(bitTest(facts, 4)) + countIf(bitTest(facts, 6))",
    ),
    "trained_members": ("uniqExact(episode)", "countIf(bitTest(facts, 2))"),
    "skipped_members": ("uniqExact(episode)", "countIf(bitTest(facts, 5))"),
}
"""What a table says of its episodes, and the same of their marks; facts as in `episode_ledger`."""
_ATTEMPTS = "episode_runs"
_LEASED = "uniqExactIf((episode, attempt), kind = 'leased' AND attempt > 0)"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RUN = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(slots=True)
class Tally:
    """Rows, the sum of their offsets and of a quantity, by partition."""

    rows: int = 0
    offsets: int = 0
    amount: int = 0

    def add(self, rows: int, offset: int, amount: int) -> None:
        """Add so many rows of one record."""
        self.rows += rows
        self.offsets += rows * offset
        self.amount += amount


@dataclass(slots=True)
class TablesReport:
    """What the comparison found."""

    counts: list[TableCount] = field(default_factory=list)
    checked: int = 0
    violations: list[Violation] = field(default_factory=list)

    def check(self, holds: bool, what: str, *offsets: str) -> None:
        """Count one comparison; keep a violation when it does not hold."""
        self.checked += 1
        if not holds:
            self.violations.append(Violation(invariant=12, what=what, offsets=offsets))


async def with_tables(
    consumers: Consumers, report: AuditReport, starts: Starts | None, ask: Ask
) -> AuditReport:
    """Return the report of an audit with the comparison of the tables in it."""
    found = await compare_tables(consumers, report.run_id, starts, ask, closed=report.closed)
    return replace(
        report,
        tables=tuple(found.counts),
        checked={**report.checked, 12: found.checked},
        violations=(*report.violations, *found.violations),
    )


async def compare_tables(
    consumers: Consumers, run_id: str, starts: Starts | None, ask: Ask, *, closed: bool
) -> TablesReport:
    """Count topics and tables of a run and compare them.

    Raises what `ask` raises, BusUnreachableError when no broker answers.
    """
    if not _RUN.fullmatch(run_id):
        raise ValueError(f"not a run id: {run_id!r}")
    report = TablesReport()
    ends = {topic.name: dict(await consumers.ends(topic)) for topic in _TOPICS}
    written = _written(ask, run_id)
    for topic in _TOPICS:
        begin = starts_of(topic, starts, ends[topic.name])
        upto = {
            p: min(end, max(begin[p], written.get((topic.name, p), 0)))
            for p, end in ends[topic.name].items()
        }
        # Runs share topics: what lies behind may be of others.
        left = await _left(consumers, run_id, topic, upto, ends[topic.name])
        behind = sum(left.values())
        told = await _tallies(consumers, run_id, topic, begin, upto)
        for name, source, _ in _SOURCES:
            if source is topic:
                _compare(report, ask, run_id, name, topic, told[name], upto, behind)
        report.check(
            behind == 0 or not closed,
            f"the tables lack what lies behind {topic.name}: the sink has {behind} records to go",
            *(at(topic.name, p, upto[p]) for p in sorted(left) if left[p]),
        )
    _rollups(report, ask, run_id, is_still=closed)
    return report


def _written(ask: Ask, run_id: str) -> dict[tuple[str, int], int]:
    """Return per topic and partition the offset below which every row is in the tables."""
    rows = ask(
        "SELECT src_topic, src_partition, first, last, state FROM sink_progress FINAL "
        f"WHERE run_id = '{run_id}'"
    )
    return {
        (str(row["src_topic"]), int(row["src_partition"])): (
            int(row["last"]) + 1 if row["state"] == "after" else int(row["first"])
        )
        for row in rows
    }


async def _tallies(
    consumers: Consumers, run_id: str, topic: Topic[Any], begin: Ends, upto: Ends
) -> dict[str, dict[int, Tally]]:
    """Return per table of the topic what its records make, by partition."""
    tables = [(name, rows) for name, source, rows in _SOURCES if source is topic]
    found: dict[str, dict[int, Tally]] = {name: {p: Tally() for p in upto} for name, _ in tables}
    async for messages in between(consumers, topic, begin, upto):
        for message in messages:
            if type(message) is not Delivered or message.record.run_id != run_id:
                continue
            for name, rows in tables:
                made = 1 if isinstance(rows, str) else rows(message.record)
                amount = _SUMS[name][1](message.record) if name in _SUMS else 0
                found[name][message.partition].add(made, message.offset, amount)
    return found


async def _left(
    consumers: Consumers, run_id: str, topic: Topic[Any], upto: Ends, ends: Ends
) -> dict[int, int]:
    """Return how many records of the run lie behind what is in the tables, by partition."""
    found = dict.fromkeys(upto, 0)
    async for messages in between(consumers, topic, upto, ends):
        for message in messages:
            if type(message) is Delivered and message.record.run_id == run_id:
                found[message.partition] += 1
    return found


def _compare(
    report: TablesReport, ask: Ask, run_id: str, name: str, topic: Topic[Any],
    told: Mapping[int, Tally], upto: Ends, behind: int,
) -> None:  # fmt: skip
    amount = _SUMS[name][0] if name in _SUMS else "0"
    below = " OR ".join(f"(src_partition = {p} AND src_offset < {o})" for p, o in upto.items())
    rows = ask(
        "SELECT src_partition AS p, count() AS n, sum(toInt128(src_offset)) AS offsets, "
        f"sum(toInt128({amount})) AS amount FROM {name} "
        f"WHERE run_id = '{run_id}' AND ({below}) GROUP BY p"
    )
    has = {int(row["p"]): Tally(*(int(row[k]) for k in ("n", "offsets", "amount"))) for row in rows}
    for partition, tally in told.items():
        mine = has.get(partition, Tally())
        # A compacted topic forgets records that the table keeps.
        is_kept = topic.cleanup is not Cleanup.COMPACT
        holds = mine == tally if is_kept else mine.rows >= tally.rows
        report.check(
            holds,
            f"{name}: the topic makes {tally.rows} rows (offsets sum to {tally.offsets}, amount "
            f"{tally.amount}), the table has {mine.rows} ({mine.offsets}, {mine.amount})",
            f"{topic.name}[{partition}]@0..{upto[partition]}",
        )
    report.counts.append(
        TableCount(
            name=name,
            source=topic.name,
            log=sum(one.rows for one in told.values()),
            table=sum(one.rows for one in has.values()),
            behind=behind,
        )
    )


def _rollups(report: TablesReport, ask: Ask, run_id: str, *, is_still: bool) -> None:
    """Compare what rollups and marks of episodes count with the rows they are made from.

    While the sink writes, a rollup may be a moment behind, never ahead.
    """
    where = f"WHERE run_id = '{run_id}'"
    rolled = {
        rollup: {
            str(row["name"]): int(row["n"])
            for row in ask(
                f"SELECT quantity AS name, sum(n) + sum(bad) AS n FROM {rollup} {where} "
                "GROUP BY quantity"
            )
        }
        for rollup in ("quantity_1m", "quantity_1h")
    }
    views = {
        str(row["name"]).removesuffix("_samples")
        for row in ask(
            "SELECT name FROM system.tables "
            "WHERE database = currentDatabase() AND endsWith(name, '_samples')"
        )
    }
    names = sorted(name for name in views if _NAME.fullmatch(name))
    pairs: list[tuple[str, str, int, int]] = []
    if names:
        union = " UNION ALL ".join(
            f"SELECT '{name}' AS name, sum(n) + sum(bad) AS n FROM {name} {where}" for name in names
        )
        rows = {str(row["name"]): int(row["n"]) for row in ask(union)}
        pairs += [
            (rollup, name, rows.get(name, 0), counted.get(name, 0))
            for rollup, counted in rolled.items()
            for name in names
        ]
    one = ask(
        f"SELECT (SELECT count() FROM metric_points {where}) AS points, "
        f"(SELECT sum(n) + sum(bad) FROM metric_1m {where}) AS rolled"
    )[0]
    pairs.append(("metric_1m", "metric_points", int(one["points"]), int(one["rolled"] or 0)))
    pairs += _marks(ask, where)
    for rollup, name, rows_n, rolled_n in pairs:
        unit = {_LEDGER: "tokens or marks", _ATTEMPTS: "attempts"}.get(rollup, "rows")
        report.check(
            rolled_n == rows_n if is_still else rolled_n <= rows_n,
            f"{rollup}: {name} has {rows_n} {unit}, the rollup counts {rolled_n}",
        )
        report.counts.append(TableCount(name=rollup, source=name, log=rows_n, table=rolled_n))


def _marks(ask: Ask, where: str) -> list[tuple[str, str, int, int]]:
    """Return what tables and the marks of their episodes count; the marks are asked first, since
    they may be a moment behind.
    """
    marks = ", ".join(f"{marked} AS {name}" for name, (_, marked) in _MARKED.items())
    told = ask(f"SELECT {marks} FROM {_LEDGER} {where}")[0]
    ran = ask(f"SELECT count() AS n FROM {_ATTEMPTS} {where}")[0]["n"]
    pairs = [(_LEDGER, name, counted, told[name]) for name, (counted, _) in _MARKED.items()]
    pairs.append((_ATTEMPTS, "episode_events", _LEASED, ran))
    return [
        (view, name, int(ask(f"SELECT {counted} AS n FROM {name} {where}")[0]["n"]), int(marked))
        for view, name, counted, marked in pairs
    ]
