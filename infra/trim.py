"""How far the heavy topics may be deleted: below everything that anybody may still need (design
section 4).

Needed are, for each run on the bus: what no recorded audit has seen (`Audited` names how far it
went), tokens and tool events of episodes that have neither a Trajectory nor an Abandoned, and
payloads of trajectories that the learner has not trained at or below its oldest kept checkpoint.
The lowest of all runs decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from infra.audit.reading import between
from schemas.enums import ControlKind, GateOutcome, LearnerEventKind, Purpose
from schemas.errors import SettingsError
from schemas.ids import EpisodeId, RunId
from schemas.ports import Consumers, Delivered, Message
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.trajectory import Trajectory
from schemas.rules.decisions import Decisions
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.rules.lineage import LearnerLog
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    LEARNER_STEPS,
    PAYLOADS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    Topic,
)

TRIMMED: tuple[Topic[Any], ...] = (TOKENS, TOOL_EVENTS, PAYLOADS)
"""Topics without a time limit whose records may be deleted."""
_READ: tuple[Topic[Any], ...] = (CONTROL, LEARNER_STEPS, GATE_DECISIONS, TRAJECTORIES, EPISODES)
_KEPT_DEFAULT = 2
Place: TypeAlias = tuple[str, int]
"""Logical topic name and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Up to where a partition is held, and by what."""

    offset: int
    """Records at or above it are needed. Unit: records."""
    run: RunId
    why: str


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A first Trajectory for training, by where its chunks begin."""

    partition: int
    offset: int
    dropped: bool = False


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """What the log says of one run; records are given in log order, topic after topic."""

    run: RunId
    starts: Mapping[Place, int]
    audited: Mapping[Place, int] | None = None
    kept: int = _KEPT_DEFAULT
    """Checkpoints that the learner keeps."""
    learner: LearnerLog = field(default_factory=LearnerLog)
    skips: dict[EpisodeId, int] = field(default_factory=dict)
    """Offset of the Skipped by episode."""
    decisions: dict[int, Decisions] = field(default_factory=dict)
    dropped: set[EpisodeId] = field(default_factory=set)
    sealed: set[EpisodeId] = field(default_factory=set)
    pending: dict[EpisodeId, _Pending] = field(default_factory=dict)
    fences: dict[int, SchedulerFences] = field(default_factory=dict)
    lives: dict[EpisodeId, tuple[int, EpisodeLife]] = field(default_factory=dict)

    def take(self, message: Delivered[Any]) -> None:
        """Take the next record of the run."""
        partition, offset, at_ms = message.partition, message.offset, message.timestamp_ms
        match message.record:
            case ControlEvent(kind=ControlKind.AUDITED) as event:
                self.audited = _places(event)
            case LearnerEvent() as event:
                counts = self.learner.take(offset, at_ms, event)
                if counts and event.kind is LearnerEventKind.SKIPPED:
                    self.skips |= {member.episode_id: offset for member in event.skipped}
            case GateDecision() as decision:
                if self.decisions.setdefault(partition, Decisions()).take(offset, decision):
                    self.dropped |= {
                        m.episode_id for m in decision.members if m.outcome is GateOutcome.DROP
                    }
            case Trajectory() as trajectory:
                self._seal(trajectory)
            case EpisodeEvent() as event:
                self._live(partition, offset, at_ms, event)
            case _:
                pass

    def _seal(self, trajectory: Trajectory) -> None:
        episode = trajectory.episode_id
        if episode in self.sealed:
            return
        self.sealed.add(episode)
        needs = trajectory.purpose is Purpose.TRAIN and episode not in self.dropped
        if needs and trajectory.chunks:
            first = min(trajectory.chunks, key=lambda chunk: chunk.offset)
            self.pending[episode] = _Pending(partition=first.partition, offset=first.offset)

    def _live(self, partition: int, offset: int, at_ms: int, event: EpisodeEvent) -> None:
        counts = self.fences.setdefault(partition, SchedulerFences()).take(event)
        if not counts or event.episode_id in self.sealed or not event.episode_id:
            return
        _, life = self.lives.setdefault(event.episode_id, (partition, EpisodeLife()))
        life.take(offset, at_ms, event)

    def holds(self) -> dict[Place, Hold]:
        """Return what this run holds of each partition of the trimmed topics."""
        held: dict[Place, Hold] = {}
        ends = self.starts if self.audited is None else {**self.starts, **self.audited}
        why = "no audit is recorded" if self.audited is None else "the last recorded audit ends"
        for place, end in ends.items():
            if place[0] in {topic.name for topic in TRIMMED}:
                held[place] = Hold(offset=end, run=self.run, why=why)
        if self.learner.closed is None:
            for place, hold in (*self._live_holds(), *self._payload_holds()):
                if place not in held or hold.offset < held[place].offset:
                    held[place] = hold
        return held

    def _live_holds(self) -> Iterable[tuple[Place, Hold]]:
        for episode, (partition, life) in self.lives.items():
            if life.issued is None or life.abandoned is not None or life.floors is None:
                continue
            for topic, floor in (
                (TOKENS, life.floors.tokens),
                (TOOL_EVENTS, life.floors.tool_events),
            ):
                hold = Hold(offset=floor, run=self.run, why=f"{episode} is not sealed")
                yield (topic.name, partition), hold

    def _payload_holds(self) -> Iterable[tuple[Place, Hold]]:
        kept = self.learner.checkpoints[-self.kept :]
        number, at = (kept[0].number, kept[0].offset) if kept else (0, -1)
        for episode, pending in self.pending.items():
            step = self.learner.trained.get(episode)
            is_trained = step is not None and step.number <= number
            is_skipped = episode in self.learner.skipped and self.skips.get(episode, at) < at
            if not (is_trained or is_skipped):
                why = f"{episode} is not trained at a kept checkpoint"
                hold = Hold(offset=pending.offset, run=self.run, why=why)
                yield (PAYLOADS.name, pending.partition), hold


def _places(event: ControlEvent) -> dict[Place, int]:
    return {(end.topic, end.partition): end.offset for end in event.ends}


def _kept(settings: str) -> int:
    try:
        found = json.loads(settings)["learner"]["checkpoints_kept"]
    except (KeyError, TypeError, ValueError):
        return _KEPT_DEFAULT
    return found if isinstance(found, int) and found > 0 else _KEPT_DEFAULT


class BusFacts:
    """What the log says of every run on a bus."""

    def __init__(self) -> None:
        """Start before the first record."""
        self.runs: dict[RunId, RunFacts] = {}

    def take(self, message: Message) -> None:
        """Take the next record; `control` comes first, since it names the runs."""
        if not isinstance(message, Delivered):
            return
        record = message.record
        if isinstance(record, ControlEvent) and record.kind is ControlKind.START:
            facts = RunFacts(run=record.run_id, starts=_places(record), kept=_kept(record.settings))
            self.runs.setdefault(record.run_id, facts)
        elif record.run_id in self.runs:
            self.runs[record.run_id].take(message)

    def holds(self) -> dict[Place, Hold]:
        """Return the lowest hold of each partition.

        Raises SettingsError when no run has a recorded audit: nothing may be deleted then.
        """
        if not any(run.audited is not None for run in self.runs.values()):
            known = ", ".join(sorted(self.runs)) or "none"
            raise SettingsError(
                f"no run has a recorded audit, so that nothing may be deleted; runs: {known}",
                hint="`sluice audit RUN --record` records one that is clean",
            )
        lowest: dict[Place, Hold] = {}
        for run in self.runs.values():
            for place, hold in run.holds().items():
                if place not in lowest or hold.offset < lowest[place].offset:
                    lowest[place] = hold
        return lowest


async def facts_of(consumers: Consumers) -> BusFacts:
    """Read what decides from the light topics; raises TransientError when one cannot be read."""
    facts = BusFacts()
    for topic in _READ:
        async for messages in between(consumers, topic, {}, dict(await consumers.ends(topic))):
            for message in messages:
                facts.take(message)
    return facts
