"""What an audit has read: of the whole run, and of the partitions that it reads together.

Everything that concerns an episode stands in the partition of its group, so the facts of some
partitions can be checked and forgotten before the next ones are read: memory is bounded by the
largest partition, not by the run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.audit.calls import Calls
from infra.audit.lives import Life, Lives
from infra.audit.outcomes import Outcomes
from infra.audit.payloads import Payloads
from infra.audit.report import Findings, at
from infra.audit.steps import Step, Steps
from infra.audit.tokens import Tokens
from schemas.enums import ControlKind, DropReason
from schemas.ports import Delivered
from schemas.records.control_event import ControlEvent
from schemas.records.parts import TrainedMember
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.topics import EPISODES, TOKENS, TOOL_EVENTS, Topic

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One trajectory in one step of the lineage."""

    step: Step
    survives: bool
    member: TrainedMember


@dataclass(slots=True)
class Whole:
    """What concerns the whole run: its bounds, versions and learner, read before the partitions."""

    run_id: str
    findings: Findings = field(default_factory=Findings)
    steps: Steps = field(default_factory=Steps)
    policies: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """Version to the digests that the registry has under it."""
    registered: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """Version to partition and offset of its first entry, and the ordinal that this names."""
    bounds: Bounds = field(default_factory=Bounds)
    stream_counts: dict[str, int] = field(default_factory=dict)
    """Counts of EndOfStream, once it is written."""
    groups_offered: set[str] = field(default_factory=set)
    tasks: int = 0
    poison: Counter[str] = field(default_factory=Counter)
    later_versions: set[tuple[int, int]] = field(default_factory=set)
    """Versions of Steps beyond the cut."""
    versions_used: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    """Every version that a token names, with the first episode and place."""
    uses: dict[int, dict[str, list[Use]]] = field(default_factory=dict)
    """Partition of the gated record to episode to where it was trained."""
    skips: dict[str, tuple[DropReason, int]] = field(default_factory=dict)
    lows: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Where the log begins now, of topics that may be trimmed."""
    audited: dict[tuple[str, int], int] = field(default_factory=dict)
    """How far the last recorded audit went, by topic and partition."""

    def take_control(self, event: ControlEvent) -> None:
        """Keep what the run was started with and how its stream ended."""
        if event.kind is ControlKind.START and self.bounds == Bounds():
            self.bounds = bounds_of(event.settings)
        elif event.kind is ControlKind.END_OF_STREAM:
            self.stream_counts = dict(event.counts)
        elif event.kind is ControlKind.AUDITED:
            self.audited = {(end.topic, end.partition): end.offset for end in event.ends}

    def is_gone(self, topic: Topic[Any], partition: int, offset: int) -> bool:
        """Whether a trim deleted the records at this place."""
        return offset < self.lows.get(topic.name, {}).get(partition, 0)

    def was_audited(self, topic: Topic[Any], partition: int, offset: int) -> bool:
        """Whether a recorded audit has seen the record at this place."""
        return 0 <= offset < self.audited.get((topic.name, partition), 0)

    def take_task(self, task: Task) -> None:
        """Count a task, and remember its group."""
        self.tasks += 1
        self.groups_offered.add(str(task.group_id))

    def take_policy(self, message: Delivered[PolicyVersion]) -> None:
        """Keep a registry entry."""
        record = message.record
        version = (record.epoch, record.number)
        self.policies.setdefault(version, set()).add(record.digest)
        self.registered.setdefault(version, (message.partition, message.offset, record.ordinal))

    def is_served(self, version: tuple[int, int]) -> bool:
        """Whether a Step that counts made this version, or it is the starting one."""
        return version == _ROOT or version in self.steps.ordinals or version in self.later_versions

    def for_share(
        self, findings: Findings, versions_used: dict[tuple[int, int], tuple[str, str]]
    ) -> Whole:
        """Return the same whole, with findings and versions that belong to a share."""
        return replace(self, findings=findings, versions_used=versions_used)

    def sort_uses(self) -> None:
        """Put what the lineage consumed under its partitions; call it once the learner's log is
        read.
        """
        self.skips = self.steps.skips
        for index, step in enumerate(self.steps.lineage):
            survives = self.steps.survives(index)
            for member in step.members:
                use = Use(step=step, survives=survives, member=member)
                at_partition = self.uses.setdefault(member.partition, {})
                at_partition.setdefault(str(member.episode_id), []).append(use)


@dataclass(slots=True)
class Facts:
    """What was read of some partitions, by topic family, beside what concerns the whole run."""

    whole: Whole
    partitions: tuple[int, ...]
    lives: Lives = field(init=False)
    outcomes: Outcomes = field(default_factory=Outcomes)
    requests: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Partition and offset of every VerifyRequest to its episode and attempt."""
    verify_requests: int = 0
    later_results: set[tuple[str, int]] = field(default_factory=set)
    """(episode, offset) of Results beyond the cut."""
    later_issued: set[str] = field(default_factory=set)
    trimmed: set[str] = field(default_factory=set)
    """Episodes whose tokens are gone, after a recorded audit proved them."""
    uses: dict[str, list[Use]] = field(init=False)
    calls: Calls = field(init=False)
    tokens: Tokens = field(init=False)
    payloads: Payloads = field(init=False)

    def __post_init__(self) -> None:
        """Let the readers that find faults by themselves report to the same findings."""
        self.lives = Lives(self.whole.findings)
        self.calls = Calls(self.whole.findings)
        self.tokens = Tokens(self.whole.findings, self.whole.versions_used)
        self.payloads = Payloads(self.whole.findings, self.tokens)
        self.uses = {}
        for partition in self.partitions:
            self.uses.update(self.whole.uses.get(partition, {}))

    def find_trimmed(self) -> None:
        """Set aside the episodes whose tokens or tool events a trim may have taken; only a recorded
        audit that saw their end allows it. Called once `episodes` is read.
        """
        for life in self.lives.by_id.values():
            if life.floors is not None and self._is_trimmed(life, *life.floors):
                self.trimmed.add(life.episode_id)
                self.findings.check(
                    5,
                    self.whole.was_audited(EPISODES, life.partition, life.closed_offset),
                    "its tokens or tool events were deleted, and no recorded audit saw its end",
                    ids=(life.episode_id,),
                    at=(at(EPISODES.name, life.partition, life.issued_offset),),
                )

    def _is_trimmed(self, life: Life, tokens: int, tools: int) -> bool:
        return self.whole.is_gone(TOKENS, life.partition, tokens) or self.whole.is_gone(
            TOOL_EVENTS, life.partition, tools
        )

    @property
    def findings(self) -> Findings:
        """Where faults are reported."""
        return self.whole.findings

    @property
    def steps(self) -> Steps:
        """The learner of the run."""
        return self.whole.steps
