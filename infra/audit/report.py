"""What an audit found: per invariant what was checked and what is broken, the counts, and what is
still pending.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NAMES: Mapping[int, str] = {
    1: "exposed is committed: what an Intent, Observation or Ended rests on was accepted before it",
    2: "accepted commits follow the reading rule; the Trajectory says what the log says",
    3: "a Result has one Intent before it; no key is executed twice unless idempotent; one process "
    "acts under a lease",
    4: "one final Ended or Abandoned, one counting Trajectory, one first decision",
    5: "closed accounting of trajectories and tokens",
    6: "no consumed trajectory exceeds the lag or age bound; lag is never negative",
    7: "each trajectory is trained in exactly one surviving step",
    8: "every version is in the registry with one digest, by a Step that counts or as ordinal 0",
    9: "a reward comes from a verdict that carries one, or from attribution",
    10: "a restart finds what it needs: floors lie low enough, no gated record is passed over",
    11: "no wait and no record without a bound: leases, deadlines, sizes",
}
TABLES_NAME = "ClickHouse tables and rollups count what the topics hold"
"""Invariant 12, which is checked only when the tables are asked as well."""
_SHOWN_MAX = 20
_PENDING_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One break of an invariant."""

    invariant: int
    what: str
    ids: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    """`topic[partition]@offset`."""

    def to_json(self) -> dict[str, Any]:
        """Return what, ids and offsets."""
        return {"what": self.what, "ids": list(self.ids), "offsets": list(self.offsets)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """One table beside its topic, or one rollup beside its table."""

    name: str
    source: str
    log: int
    """Rows that the topic (or the table under a rollup) makes."""
    table: int
    behind: int = 0
    """Offsets that the sink has not written yet."""


class Findings:
    """Gathers violations and how often each invariant was checked, while an audit runs."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self.checked: Counter[int] = Counter()
        self.violations: list[Violation] = []

    def check(
        self,
        invariant: int,
        holds: bool,
        what: str,
        *,
        ids: tuple[str, ...] = (),
        at: tuple[str, ...] = (),
    ) -> bool:
        """Count one check; keep a violation when it does not hold."""
        self.checked[invariant] += 1
        if not holds:
            self.broken(invariant, what, ids=ids, at=at)
        return holds

    def add(self, other: Findings) -> None:
        """Add what was found in other partitions."""
        self.checked += other.checked
        self.violations += other.violations

    def broken(
        self, invariant: int, what: str, *, ids: tuple[str, ...] = (), at: tuple[str, ...] = ()
    ) -> None:
        """Keep a violation."""
        self.violations.append(Violation(invariant=invariant, what=what, ids=ids, offsets=at))


def at(topic: str, partition: int, offset: int) -> str:
    """Return a place in the log as people read it."""
    return f"{topic}[{partition}]@{offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit."""

    run_id: str
    closed: bool
    """Whether the learner has written Closed."""
    counts: Mapping[str, int]
    """issued, trained, dropped, abandoned, evaluated, pending, and what was superseded or
    poison.
    """
    dropped: Mapping[str, int]
    """Trajectories by drop reason."""
    abandoned: Mapping[str, int]
    """Episodes by abandon reason."""
    tokens: Mapping[str, int]
    """Action tokens: sampled, trained, masked:REASON, dropped:REASON, abandoned:REASON, superseded,
    evaluated, pending, undecodable.
    """
    pending: Mapping[str, tuple[str, ...]]
    """Episode ids by what they wait for."""
    checked: Mapping[int, int]
    violations: tuple[Violation, ...]
    cut: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Exclusive end offsets of what was read."""
    tables: tuple[TableCount, ...] | None = None
    """Rows beside records, when the tables were asked."""
    peaks: tuple[int, ...] = ()
    """The most memory of each process that helped. Unit: bytes."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is broken."""
        return not self.violations

    def names(self) -> Mapping[int, str]:
        """Return number and name of each invariant that was checked."""
        return NAMES if self.tables is None else {**NAMES, 12: TABLES_NAME}

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data; its shape is an interface (docs/audit.md)."""
        return {
            "run_id": self.run_id,
            "closed": self.closed,
            "clean": self.is_clean,
            "counts": dict(self.counts),
            "dropped": dict(self.dropped),
            "abandoned": dict(self.abandoned),
            "tokens": dict(self.tokens),
            "pending": {why: list(ids) for why, ids in self.pending.items()},
            "invariants": [
                {
                    "number": number,
                    "name": name,
                    "checked": self.checked.get(number, 0),
                    "violations": [v.to_json() for v in self.violations if v.invariant == number],
                }
                for number, name in self.names().items()
            ],
            "tables": None if self.tables is None else [asdict(one) for one in self.tables],
            "cut": {
                topic: {str(p): end for p, end in ends.items()} for topic, ends in self.cut.items()
            },
        }

    def show(self, *, stream: Any = None) -> None:
        """Print the report as tables."""
        from rich.console import Console
        from rich.markup import escape

        console = Console(file=stream or sys.stdout, soft_wrap=True)
        console.print(self._invariants_table())
        console.print(self._accounts_table())
        if self.tables is not None:
            console.print(self._tables_table())
        for why, episodes in sorted(self.pending.items()):
            shown = " ".join(episodes[:_PENDING_SHOWN])
            more = " ..." if len(episodes) > _PENDING_SHOWN else ""
            console.print(escape(f"pending, waits for {why}: {len(episodes)}  {shown}{more}"))
        for violation in self.violations[:_SHOWN_MAX]:
            where = " ".join((*violation.ids, *violation.offsets))
            console.print(escape(f"{violation.invariant}: {violation.what}  {where}"))
        hidden = len(self.violations) - _SHOWN_MAX
        if hidden > 0:
            console.print(f"and {hidden} more: --json lists all")
        state = "closed" if self.closed else "live"
        verdict = "clean" if self.is_clean else f"{len(self.violations)} violations"
        console.print(escape(f"run {self.run_id} ({state}): {verdict}"))

    def _invariants_table(self) -> Any:
        from rich.table import Table

        table = Table("", "invariant", "checked", "violations")
        per = Counter(violation.invariant for violation in self.violations)
        for number, name in self.names().items():
            table.add_row(str(number), name, str(self.checked.get(number, 0)), str(per[number]))
        return table

    def _accounts_table(self) -> Any:
        from rich.table import Table

        table = Table("account", "trajectories", "action tokens")
        rows = [("issued / sampled", self.counts["issued"], self.tokens["sampled"])]
        rows += [("trained", self.counts["trained"], self.tokens.get("trained", 0))]
        for name in sorted(self.tokens):
            if name.startswith("masked:"):
                rows.append((name, 0, self.tokens[name]))
        for reason, number in sorted(self.dropped.items()):
            rows.append((f"dropped:{reason}", number, self.tokens.get(f"dropped:{reason}", 0)))
        for reason, number in sorted(self.abandoned.items()):
            rows.append((f"abandoned:{reason}", number, self.tokens.get(f"abandoned:{reason}", 0)))
        for name in ("superseded", "evaluated", "pending"):
            number = 0 if name == "superseded" else self.counts[name]
            rows.append((name, number, self.tokens.get(name, 0)))
        for name, trajectories, tokens in rows:
            table.add_row(name, str(trajectories), str(tokens))
        return table

    def _tables_table(self) -> Any:
        from rich.table import Table

        table = Table("table", "made from", "rows by the log", "rows", "records behind")
        for one in self.tables or ():
            mark = "" if one.log == one.table else " !"
            table.add_row(
                one.name, one.source, str(one.log), f"{one.table}{mark}", str(one.behind or "")
            )
        return table
