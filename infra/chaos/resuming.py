"""How long each stage stood still after a kill, and what the learner had to do again.

A pure core: records go in, each partition in log order, figures come out. What a stage writes is
timed by the writer's clock, since what a killed process had sent may land after its death; on one
machine it is the clock of the kill too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.chaos.findings import Hit
from infra.run.history import Quantiles, quantiles
from schemas.enums import EpisodeEventKind, LearnerEventKind, Role, WorkerStatus
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.records.worker_state import WorkerState

_BY_PARTITION: Mapping[type, Role] = {
    Trajectory: Role.ASSEMBLER,
    GateDecision: Role.GATE,
    VerifierResult: Role.VERIFIER,
}
"""Whose instances share the work by partition."""
_SCHEDULED = frozenset(
    {
        EpisodeEventKind.ISSUED,
        EpisodeEventKind.LEASED,
        EpisodeEventKind.RESUMED,
        EpisodeEventKind.ABANDONED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    made_ms: int
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerWork:
    """What the starts of a learner cost, over the run."""

    restarts: int
    """Starts after the first. Unit: starts."""
    updates_lost: int
    """Updates that no surviving checkpoint held: they were made again. Unit: updates."""
    trajectories_again: int
    """Trajectories of those updates. Unit: trajectories."""
    tokens_again: int
    """Action tokens of those updates. Unit: tokens."""
    updates_lost_each: Quantiles
    """The same per restart."""


@dataclass(slots=True)
class _Learner:
    epoch: int = 0
    starts: int = 0
    steps: dict[int, LearnerEvent] = field(default_factory=dict)
    lost: list[list[LearnerEvent]] = field(default_factory=list)

    def take(self, event: LearnerEvent) -> bool:
        """Take an event; return whether it is an update of the present epoch."""
        if event.kind is LearnerEventKind.EPOCH_STARTED:
            self.epoch = max(self.epoch, event.epoch)
        if event.epoch != self.epoch:
            return False
        if event.kind is LearnerEventKind.RESTORED:
            gone = [step for ordinal, step in self.steps.items() if ordinal > event.ordinal]
            self.steps = {o: step for o, step in self.steps.items() if o <= event.ordinal}
            if self.starts:
                self.lost.append(gone)
            self.starts += 1
        if event.kind is not LearnerEventKind.STEP:
            return False
        self.steps[event.ordinal] = event
        return True


class Resuming:
    """Takes what the stages of one run wrote and answers at the end."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._series: dict[Role, dict[int, list[_Mark]]] = defaultdict(lambda: defaultdict(list))
        self._ready: dict[str, dict[int, int]] = defaultdict(dict)
        """Worker to the start of each of its processes, and when that first said it was ready."""
        self._learner = _Learner()

    def take(self, message: Delivered[Any]) -> None:
        """Take a record of any topic; what is no stage's work is passed over."""
        record = message.record
        if getattr(record, "run_id", None) != self._run_id:
            return
        if type(record) in _BY_PARTITION:
            self._mark(_BY_PARTITION[type(record)], message.partition, record)
        elif isinstance(record, EpisodeEvent):
            if record.kind in _SCHEDULED:
                self._mark(Role.SCHEDULER, 0, record)
        elif isinstance(record, Task):
            self._mark(Role.TASK_SOURCE, 0, record)
        elif isinstance(record, LearnerEvent):
            if self._learner.take(record):
                self._mark(Role.LEARNER, 0, record)
        elif isinstance(record, WorkerState) and record.status is WorkerStatus.READY:
            known = self._ready[str(record.worker_id)]
            began_ms, at_ms = record.started_us // 1000, record.at_us // 1000
            known[began_ms] = min(known.get(began_ms, at_ms), at_ms)

    def _mark(self, role: Role, partition: int, record: Any) -> None:
        mark = _Mark(made_ms=record.at_us // 1000, writer=str(record.writer_id))
        self._series[role][partition].append(mark)

    def resumed_s(self, hits: Sequence[Hit]) -> dict[str, Quantiles]:
        """Return, by role, the time from the death of a worker to the next record on any partition
        that it had written to last, by whoever went on there; of a role that one works for all,
        to its next record. A worker that had nothing in hand has none. Unit: s.
        """
        found: dict[str, Quantiles] = {}
        for role, series in self._series.items():
            ordered = [sorted(marks, key=lambda mark: mark.made_ms) for marks in series.values()]
            waits = [s for hit in hits if (s := _resumed(ordered, hit)) is not None]
            if waits:
                found[role.value.replace("_", "-")] = quantiles(waits)
        return dict(sorted(found.items()))

    def back_s(self, hits: Sequence[Hit]) -> dict[str, Quantiles]:
        """Return, by role, the time from the death of a worker to when its next process said that
        it is ready: the supervisor's pause and the start. Unit: s.
        """
        waits: dict[str, list[float]] = defaultdict(list)
        for hit in hits:
            back_ms = self.back_ms(hit)
            if back_ms is not None:
                waits[hit.role].append((back_ms - hit.at_ms) / 1e3)
        return {role: quantiles(those) for role, those in sorted(waits.items())}

    def back_ms(self, hit: Hit) -> int | None:
        """Return when the next process of a worker that died was ready. Unit: ms."""
        known = self._ready.get(hit.worker_id, {})
        later = (ready_ms for began_ms, ready_ms in known.items() if began_ms > hit.at_ms)
        return min(later, default=None)

    @property
    def learner(self) -> LearnerWork:
        """What the learner's restarts cost."""
        lost = self._learner.lost
        steps = [step for gone in lost for step in gone]
        return LearnerWork(
            restarts=max(0, self._learner.starts - 1),
            updates_lost=len(steps),
            trajectories_again=sum(len(step.trained) for step in steps),
            tokens_again=sum(step.action_tokens for step in steps),
            updates_lost_each=quantiles(float(len(gone)) for gone in lost),
        )


def _resumed(series: Sequence[Sequence[_Mark]], hit: Hit) -> float | None:
    waits = []
    for marks in series:
        at = bisect_right(marks, hit.at_ms, key=lambda mark: mark.made_ms)
        if at and marks[at - 1].writer == hit.worker_id and at < len(marks):
            waits.append((marks[at].made_ms - hit.at_ms) / 1e3)
    return min(waits, default=None)
