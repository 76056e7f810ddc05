"""What a chaos run does and when, drawn from one seed: the same seed and roles give the same deeds.

A pure generator; the driver carries the deeds out as far as real processes allow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_ROLES = {
    "inference": 5.0, "environment": 5.0, "scheduler": 2.0, "assembler": 2.0, "gate": 2.0,
    "verifier": 1.5, "refresh": 1.0, "learner": 0.6, "task-source": 0.5, "sink": 0.4,
    "lag-age": 0.2,
}  # fmt: skip
"""How often a role is hit, relative; a slow start makes it rare, or the run would only start."""
_ENGINE_ROLES = {"inference": 1.0}
_EDGE_ROLES = {"inference": 5.0, "environment": 2.0, "learner": 1.0}
_ACTS = {
    Act.KILL: 9.0, Act.EDGE: 8.0, Act.STOP: 1.2, Act.PREEMPT: 1.0, Act.CUT: 1.0, Act.ENGINE: 2.0,
    Act.BROKER_KILL: 0.25, Act.BROKER_STOP: 0.5,
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
                possible = self.has_engine
            case _:
                possible = True
        return possible and act in self.acts


def deeds(seed: int, scope: Scope) -> Iterator[Deed]:
    """Yield deeds without end, all drawn from the seed."""
    chance = random.Random(seed)
    known = {role for role in _ROLES if _named(role, scope.parts)}
    acts = {act: weight for act, weight in _ACTS.items() if scope.allows(act)}
    while True:
        after_s = round(chance.uniform(0.3, 1.7) * scope.every_s, 3)
        act = _drawn(chance, acts)
        if act in (Act.BROKER_KILL, Act.BROKER_STOP):
            lasts_s = chance.uniform(*_BROKER_STOP_S)
            yield Deed(after_s=after_s, act=act, target="broker", lasts_s=round(lasts_s, 3))
            continue
        at_edge = act is Act.EDGE or (act is Act.STOP and chance.random() < _STOPS_AT_EDGE)
        weights = _ENGINE_ROLES if act is Act.ENGINE else _EDGE_ROLES if at_edge else _ROLES
        role = _drawn(chance, {name: w for name, w in weights.items() if name in known})
        target = chance.choice(_named(role, scope.parts))
        lasts_s = _stop_s(chance, scope.lease_s) if act is Act.STOP else 0.0
        point, nth = _edge(chance, role) if at_edge else (None, 1)
        yield Deed(after_s=after_s, act=act, target=target, point=point, nth=nth, lasts_s=lasts_s)


def _named(role: str, parts: Sequence[str]) -> list[str]:
    return [part for part in parts if part.rpartition("-")[0] == role]


def _drawn(chance: random.Random, weights: Mapping[K, float]) -> K:
    return chance.choices(list(weights), weights=list(weights.values()))[0]


def _edge(chance: random.Random, role: str) -> tuple[CrashPoint, int]:
    point = chance.choice(EDGES[role])
    is_first = point in _RARE or role == "learner"
    return point, 1 if is_first else chance.randint(1, _NTH_MAX)


def _stop_s(chance: random.Random, lease_s: float) -> float:
    if chance.random() < _LONG_SHARE:
        return round(lease_s + chance.uniform(*_PAST_LEASE_S), 3)
    return round(chance.uniform(*_SHORT_STOP_S), 3)
