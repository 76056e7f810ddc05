"""What a chaos run does and when, drawn from one seed and from what has hit so far: the same seed,
roles and outcomes give the same deeds.

A pure generator; the driver carries the deeds out as far as real processes allow. Invariants: of
acts, roles and edges the one that is furthest behind its share comes next, so that each is hit
early, a rare one too; one that was not reached comes again, but not at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from schemas.crash_points import CrashPoint

K = TypeVar("K", bound=str)


class Act(StrEnum):
    """What is done to a process."""

    KILL = "kill"
    """SIGKILL at a random moment."""
    EDGE = "edge"
    """SIGKILL by itself, exactly at a named crash point."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after a while, sometimes longer than a lease."""
    PREEMPT = "preempt"
    """SIGTERM, as a machine that is taken away gives it."""
    CUT = "cut"
    """Its TCP connections are cut."""
    ENGINE = "engine"
    """SIGKILL of one of the engine's own processes, inside a worker that lives on."""
    BROKER_KILL = "broker_kill"
    """SIGKILL of the broker, then its start."""
    BROKER_STOP = "broker_stop"
    """SIGSTOP of the broker for some seconds, then SIGCONT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing to do, after a pause."""

    after_s: float
    """Since the deed before. Unit: s."""
    act: Act
    target: str
    """`role-index`, or `broker`."""
    point: CrashPoint | None = None
    """Where it goes or stands still; None at a random moment."""
    nth: int = 1
    """At which reach of the edge, from when it was ordered."""
    lasts_s: float = 0.0
    """How long a stop lasts. Unit: s."""


EDGES: Mapping[str, Sequence[CrashPoint]] = {
    "inference": (
        CrashPoint.AFTER_SAMPLE, CrashPoint.AFTER_APPEND, CrashPoint.AFTER_DURABLE,
        CrashPoint.AFTER_EXPOSURE, CrashPoint.DURING_REFRESH,
    ),
    "environment": (CrashPoint.IN_TOOL, CrashPoint.AFTER_TOOL),
    "learner": (
        CrashPoint.AFTER_OPTIMISER_STEP, CrashPoint.AFTER_VERSION_FILES, CrashPoint.AFTER_RECORD,
        CrashPoint.AFTER_ANNOUNCEMENT, CrashPoint.AFTER_CHECKPOINT_FILES, CrashPoint.AFTER_MARKER,
    ),
}  # fmt: skip
"""Which role reaches which edge."""

_RARE = frozenset(
    {CrashPoint.AFTER_CHECKPOINT_FILES, CrashPoint.AFTER_MARKER, CrashPoint.DURING_REFRESH}
)
"""Reached so seldom that the first reach is taken."""
_NTH_MAX = 20
_BROKER = "broker"
_MISS = 0.5
"""A deed that could not be done counts as this much of one that hit: it is tried again, and what
cannot be reached at all does not keep the others waiting."""
_ROLES = {
    "inference": 5.0, "environment": 5.0, "scheduler": 2.0, "assembler": 2.0, "gate": 2.0,
    "verifier": 1.5, "refresh": 1.0, "learner": 0.6, "task-source": 0.5, "sink": 0.4,
    "lag-age": 0.2,
}  # fmt: skip
"""How often a role is hit, relative; a slow start makes it rare, or the run would only start."""
HIT_ROLES = frozenset(_ROLES)
"""The roles that a plan knows."""
_ACTS = {
    Act.KILL: 8.0, Act.EDGE: 12.0, Act.STOP: 1.2, Act.PREEMPT: 1.0, Act.CUT: 1.0, Act.ENGINE: 2.0,
    Act.BROKER_KILL: 0.5, Act.BROKER_STOP: 0.7,
}  # fmt: skip
_SHORT_STOP_S = (0.5, 5.0)
_PAST_LEASE_S = (3.0, 8.0)
_BROKER_STOP_S = (1.0, 6.0)
_LONG_SHARE = 0.4
_STOPS_AT_EDGE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What may be hit, and how fast."""

    parts: Sequence[str]
    """Names of the run's processes, `role-index`."""
    lease_s: float
    """A stop that lasts longer makes a zombie. Unit: s."""
    every_s: float
    """Mean pause between two deeds. Unit: s."""
    with_broker: bool
    """Whether the broker is ours to stop."""
    has_engine: bool = False
    """Whether inference workers have an engine in processes of its own."""
    acts: frozenset[Act] = frozenset(Act)

    def allows(self, act: Act) -> bool:
        """Whether an act can be done here."""
        match act:
            case Act.BROKER_KILL | Act.BROKER_STOP:
                possible = self.with_broker
            case Act.ENGINE:
                possible = self.has_engine and "inference" in self.roles
            case Act.EDGE:
                possible = not self.roles.isdisjoint(EDGES)
            case _:
                possible = bool(self.roles)
        return possible and act in self.acts

    @property
    def roles(self) -> frozenset[str]:
        """The roles of the parts that can be hit."""
        return HIT_ROLES & {role_of(part) for part in self.parts}


@dataclass(slots=True)
class Tally:
    """What was done so far, and who cannot be hit now. The plan counts what it asks for; the driver
    takes back what did not happen, and says who is taken.
    """

    acts: defaultdict[Act, float] = field(default_factory=lambda: defaultdict(float))
    edges: defaultdict[CrashPoint, float] = field(default_factory=lambda: defaultdict(float))
    """Deaths at each edge."""
    roles: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Hits on each role, but at edges."""
    busy: frozenset[str] = frozenset()
    """Parts that wait for an order to be carried out, stand still, or must get on first."""

    def take(self, deed: Deed) -> None:
        """Count a deed as done."""
        self._add(deed, 1.0)

    def give_back(self, deed: Deed) -> None:
        """Say that a deed could not be done."""
        self._add(deed, _MISS - 1.0)

    def _add(self, deed: Deed, much: float) -> None:
        self.acts[deed.act] += much
        if deed.act is Act.EDGE and deed.point is not None:
            self.edges[deed.point] += much
        elif deed.target != _BROKER:
            self.roles[role_of(deed.target)] += much


def role_of(part: str) -> str:
    """Return the role of a part's name, `role-index`."""
    return part.rpartition("-")[0] or part


def deeds(seed: int, scope: Scope, tally: Tally | None = None) -> Iterator[Deed]:
    """Yield deeds without end, drawn from the seed and from the tally as it is at each of them."""
    chance = random.Random(seed)
    tally = Tally() if tally is None else tally
    known = [part for part in scope.parts if role_of(part) in _ROLES]
    while True:
        after_s = round(chance.uniform(0.3, 1.7) * scope.every_s, 3)
        # When all are taken the driver finds out, and counts a miss.
        free = [part for part in known if part not in tally.busy] or known
        act = _next_act(chance, scope, tally, {role_of(part) for part in free})
        deed = _deed(chance, scope, tally, act, free, after_s)
        tally.take(deed)
        yield deed


def _next_act(chance: random.Random, scope: Scope, tally: Tally, roles: set[str]) -> Act:
    """Return the allowed act that is furthest behind its share, among those that have a target."""
    allowed = {act: weight for act, weight in _ACTS.items() if scope.allows(act)}
    possible = {
        act: weight
        for act, weight in allowed.items()
        if not (act is Act.EDGE and not roles & EDGES.keys())
        and not (act is Act.ENGINE and "inference" not in roles)
    }
    return _behind(chance, possible or allowed, tally.acts)


def _deed(
    chance: random.Random, scope: Scope, tally: Tally, act: Act, free: Sequence[str], after_s: float
) -> Deed:  # fmt: skip
    if act in (Act.BROKER_KILL, Act.BROKER_STOP):
        lasts_s = round(chance.uniform(*_BROKER_STOP_S), 3)
        return Deed(after_s=after_s, act=act, target=_BROKER, lasts_s=lasts_s)
    lasts_s = _stop_s(chance, scope.lease_s) if act is Act.STOP else 0.0
    there = [part for part in free if role_of(part) in EDGES]
    if act is Act.EDGE or (act is Act.STOP and chance.random() < _STOPS_AT_EDGE and there):
        there = there or [part for part in scope.parts if role_of(part) in EDGES]
        points = {p: 1.0 for role, those in EDGES.items() if _named(role, there) for p in those}
        # A stop at an edge is no death at it.
        point = _behind(chance, points, tally.edges if act is Act.EDGE else {})
        role = next(role for role, those in EDGES.items() if point in those)
        return Deed(
            after_s=after_s, act=act, target=chance.choice(_named(role, there)), point=point,
            nth=_nth(chance, role, point), lasts_s=lasts_s,
        )  # fmt: skip
    weights = {role: w for role, w in _ROLES.items() if _named(role, free)}
    if act is Act.ENGINE:
        weights = {"inference": 1.0}
    role = _behind(chance, weights, tally.roles)
    target = chance.choice(_named(role, free) or _named(role, scope.parts))
    return Deed(after_s=after_s, act=act, target=target, lasts_s=lasts_s)


def _named(role: str, parts: Iterable[str]) -> list[str]:
    return [part for part in parts if role_of(part) == role]


def _behind(chance: random.Random, weights: Mapping[K, float], counts: Mapping[K, float]) -> K:
    """Return what has had least of its share; chance decides among equals, and shuffles the rest
    by less than one deed.
    """
    due = {name: (counts.get(name, 0) + chance.random()) / w for name, w in weights.items()}
    return min(due, key=lambda name: due[name])


def _nth(chance: random.Random, role: str, point: CrashPoint) -> int:
    return 1 if point in _RARE or role == "learner" else chance.randint(1, _NTH_MAX)


def _stop_s(chance: random.Random, lease_s: float) -> float:
    if chance.random() < _LONG_SHARE:
        return round(lease_s + chance.uniform(*_PAST_LEASE_S), 3)
    return round(chance.uniform(*_SHORT_STOP_S), 3)
