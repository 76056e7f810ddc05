"""All that an audit has read of a run, ready for the checks that need more than one topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.audit.calls import Calls
from infra.audit.lives import Lives
from infra.audit.outcomes import Outcomes
from infra.audit.report import Findings
from infra.audit.steps import Steps
from infra.audit.tokens import Tokens
from schemas.enums import ControlKind
from schemas.records.control_event import ControlEvent
from schemas.records.policy_version import PolicyVersion

_ROOT = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of the run, from its Start record; None where it does not say."""

    max_lag_steps: int | None = None
    max_age_ms: int | None = None


def bounds_of(settings: str) -> Bounds:
    """Return the bounds that resolved settings name as `max_lag_steps` and `max_age_s`, wherever
    they stand.
    """
    try:
        tree = json.loads(settings) if settings else {}
    except ValueError:
        return Bounds()
    lag, age_s = _find(tree, "max_lag_steps"), _find(tree, "max_age_s")
    return Bounds(
        max_lag_steps=int(lag) if isinstance(lag, int | float) else None,
        max_age_ms=int(age_s * 1000) if isinstance(age_s, int | float) else None,
    )


def _find(tree: Any, key: str) -> Any:
    if not isinstance(tree, Mapping):
        return None
    if key in tree:
        return tree[key]
    return next((v for v in (_find(inner, key) for inner in tree.values()) if v is not None), None)


@dataclass(slots=True)
class Facts:
    """What was read, by topic family."""

    run_id: str
    findings: Findings = field(default_factory=Findings)
    lives: Lives = field(default_factory=Lives)
    steps: Steps = field(default_factory=Steps)
    outcomes: Outcomes = field(default_factory=Outcomes)
    policies: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """Version to the digests that the registry has under it."""
    registered_ordinals: dict[tuple[int, int], int] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=Bounds)
    stream_counts: dict[str, int] = field(default_factory=dict)
    """Counts of EndOfStream, once it is written."""
    tasks: int = 0
    verify_requests: int = 0
    poison: dict[str, int] = field(default_factory=dict)
    later_results: set[tuple[str, int]] = field(default_factory=set)
    """(episode, offset) of Results beyond the cut."""
    later_versions: set[tuple[int, int]] = field(default_factory=set)
    """Versions of Steps beyond the cut."""
    later_issued: set[str] = field(default_factory=set)
    calls: Calls = field(init=False)
    tokens: Tokens = field(init=False)

    def __post_init__(self) -> None:
        """Let the readers that find faults by themselves report to the same findings."""
        self.calls = Calls(self.findings)
        self.tokens = Tokens(self.findings)

    def take_control(self, event: ControlEvent) -> None:
        """Keep what the run was started with and how its stream ended."""
        if event.kind is ControlKind.START and self.bounds == Bounds():
            self.bounds = bounds_of(event.settings)
        elif event.kind is ControlKind.END_OF_STREAM:
            self.stream_counts = dict(event.counts)

    def take_policy(self, record: PolicyVersion) -> None:
        """Keep a registry entry."""
        version = (record.epoch, record.number)
        self.policies.setdefault(version, set()).add(record.digest)
        self.registered_ordinals[version] = record.ordinal

    def is_served(self, version: tuple[int, int]) -> bool:
        """Whether a Step that counts made this version, or it is the starting one."""
        return version == _ROOT or version in self.steps.ordinals or version in self.later_versions
