"""What the topics say about a run, gathered in one pass for progress, summary and report.

The core takes records one at a time and counts; it holds no clock and does no I/O. Percentiles are
computed from rows, never from means.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.enums import (
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
    RefreshEventKind,
    TokenKind,
)
from schemas.errors import PoisonRecordError
from schemas.packing import unpack_timing
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult

_VERSION = struct.Struct("<2q")
"""Epoch and number, as the last span of a commit ends with them."""
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """p50, p95, p99, max and n of one quantity; None where there are no rows."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int


def quantiles(values: Iterable[float]) -> Quantiles:
    """Return exact quantiles (nearest rank) of the finite values."""
    rows = sorted(v for v in values if math.isfinite(v))
    if not rows:
        return Quantiles(p50=None, p95=None, p99=None, max=None, n=0)
    p50, p95, p99 = (rows[max(0, math.ceil(q * len(rows)) - 1)] for q in QUANTILES)
    return Quantiles(p50=p50, p95=p95, p99=p99, max=rows[-1], n=len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


_Z95 = 1.96


def interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Return the mean over all rows with a 95 % normal interval over group means.

    Rollouts of one group share a prompt, so the groups are the independent units; rows alone would
    make it too narrow.
    """
    means = [sum(rows) / len(rows) for rows in groups if rows]
    if not means:
        return Interval(mean=None, low=None, high=None, n=0)
    mean = sum(means) / len(means)
    if len(means) == 1:
        return Interval(mean=mean, low=None, high=None, n=1)
    variance = sum((m - mean) ** 2 for m in means) / (len(means) - 1)
    half = _Z95 * math.sqrt(variance / len(means))
    return Interval(mean=mean, low=mean - half, high=mean + half, n=len(means))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimiser step as its record tells it."""

    epoch: int
    number: int
    ordinal: int
    at_ms: int
    event: LearnerEvent


@dataclass(slots=True)
class History:
    """Running accounts of one run, fed with records in log order per partition."""

    run_id: str
    first_ms: int | None = None
    last_ms: int = 0
    last_token_ms: int = 0
    """When the newest record of the token log was stored. Unit: ms since 1970."""
    epoch: int = 0
    checkpointed_epoch: int = -1
    """Epoch of the newest checkpoint; -1 before the first."""
    steps: dict[int, StepRow] = field(default_factory=dict)
    """By ordinal; a restored learner's steps replace the lost ones."""
    issued: set[str] = field(default_factory=set)
    purposes: dict[str, Purpose] = field(default_factory=dict)
    leased: dict[str, int] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    finished: set[str] = field(default_factory=set)
    abandoned: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    action_tokens: int = 0
    tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)
    verify_ms: list[float] = field(default_factory=list)
    reset_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    refresh_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    evaluated: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    serving: dict[str, str] = field(default_factory=dict)
    """Inference worker to the version that it last said, or showed, to serve."""
    writers: set[str] = field(default_factory=set)
    """Inference workers that have written to the token log: those take requests."""
    versions: int = 0
    trajectories: set[str] = field(default_factory=set)
    closed: LearnerEvent | None = None

    def take(self, message: Delivered[Any]) -> None:
        """Count one record; records of other runs are passed over."""
        record = message.record
        if getattr(record, "run_id", None) != self.run_id:
            return
        if self.first_ms is None or message.timestamp_ms < self.first_ms:
            self.first_ms = message.timestamp_ms
        self.last_ms = max(self.last_ms, message.timestamp_ms)
        taker = _TAKERS.get(type(record))
        if taker is not None:
            taker(self, record, message.timestamp_ms)

    def _verdict(self, record: VerifierResult, _: int) -> None:
        self.verify_ms.append(record.duration_us / 1e3)

    def _version(self, _record: PolicyVersion, _: int) -> None:
        self.versions += 1

    def _token(self, record: TokenCommit, timestamp_ms: int) -> None:
        self.writers.add(record.writer_id)
        self.last_token_ms = max(self.last_token_ms, timestamp_ms)
        if not record.kind.carries_tokens:
            return
        self.tokens += record.count
        if record.kind is not TokenKind.ACTION:
            return
        self.action_tokens += record.count
        if record.writer_id not in self.serving and len(record.spans) >= _VERSION.size:
            # Nobody says Serving of the version that a worker starts with; its tokens name it.
            epoch, number = _VERSION.unpack(record.spans[-_VERSION.size :])
            self.serving[record.writer_id] = f"{epoch}/{number}"
        self.commit_ms.append(max(0.0, timestamp_ms - record.at_us / 1e3))
        if record.finish_reason == "none":
            return
        try:
            timing = unpack_timing(record.timing)
        except PoisonRecordError:
            # It counts in the log; only its times are not known.
            return
        if timing.first_token_us:
            self.ttft_ms.append((timing.first_token_us - timing.requested_us) / 1e3)

    def _episode(self, record: EpisodeEvent, _: int) -> None:
        episode = str(record.episode_id)
        match record.kind:
            case EpisodeEventKind.ISSUED:
                self.issued.add(episode)
                self.purposes[episode] = record.purpose
            case EpisodeEventKind.LEASED:
                self.leased[episode] = record.attempt
            case EpisodeEventKind.ENDED:
                self.ended[record.stop_cause.value] += 1
                if record.stop_cause.is_final:
                    self.finished.add(episode)
                self.leased.pop(episode, None)
                self.reset_ms.append(record.reset_us / 1e3)
                self.step_ms.append(record.step_us / 1e3)
            case EpisodeEventKind.ABANDONED:
                if episode not in self.gone:
                    self.gone.add(episode)
                    self.abandoned[record.abandon_reason.value] += 1
                self.leased.pop(episode, None)
            case EpisodeEventKind.PAUSED:
                self.leased.pop(episode, None)
            case _:
                return

    def _learner(self, record: LearnerEvent, timestamp_ms: int) -> None:
        match record.kind:
            case LearnerEventKind.EPOCH_STARTED:
                self.epoch = max(self.epoch, record.epoch)
            case LearnerEventKind.RESTORED:
                # Steps beyond the restored checkpoint are lost; they will be taken again.
                self.steps = {o: row for o, row in self.steps.items() if o <= record.ordinal}
            case LearnerEventKind.STEP if record.epoch == self.epoch:
                row = StepRow(
                    epoch=record.epoch,
                    number=record.number,
                    ordinal=record.ordinal,
                    at_ms=timestamp_ms,
                    event=record,
                )
                self.steps[record.ordinal] = row
                for name, us in record.phases_us.items():
                    self.phases_ms[name].append(us / 1e3)
            case LearnerEventKind.CHECKPOINTED if record.epoch == self.epoch:
                self.checkpointed_epoch = record.epoch
            case LearnerEventKind.SKIPPED if record.epoch == self.epoch:
                for member in record.skipped:
                    self.skipped[member.reason.value] += 1
            case LearnerEventKind.CLOSED:
                self.closed = record
            case _:
                return

    def _decision(self, record: GateDecision, _: int) -> None:
        if str(record.group_id) in self.decided:
            return
        self.decided[str(record.group_id)] = "decided"
        for member in record.members:
            if member.outcome is GateOutcome.DROP:
                self.dropped[member.reason.value] += 1

    def _trajectory(self, record: Trajectory, timestamp_ms: int) -> None:
        episode = str(record.episode_id)
        if episode in self.trajectories:
            return
        self.trajectories.add(episode)
        if record.purpose is Purpose.EVALUATE and record.reward is not None:
            self.evaluated[record.environment].append((timestamp_ms, record.reward))

    def _refresh(self, record: RefreshEvent, _: int) -> None:
        if record.kind is RefreshEventKind.SERVING:
            self.serving[str(record.worker_id)] = f"{record.epoch}/{record.number}"
            if record.pause_us:
                self.refresh_ms.append(record.pause_us / 1e3)

    def ordered_steps(self) -> list[StepRow]:
        """Return the steps on the present lineage, oldest first."""
        return [self.steps[ordinal] for ordinal in sorted(self.steps)]

    def rewards(self, rows: Sequence[StepRow], environment: str | None = None) -> Interval:
        """Return the mean reward of the trajectories in these steps, for one environment or for
        all.
        """
        groups: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            for member in row.event.trained:
                if environment is None or member.environment == environment:
                    groups[str(member.group_id)].append(member.reward)
        return interval(list(groups.values()))


_TAKERS: dict[type, Callable[[History, Any, int], None]] = {
    TokenCommit: History._token,
    EpisodeEvent: History._episode,
    LearnerEvent: History._learner,
    GateDecision: History._decision,
    Trajectory: History._trajectory,
    VerifierResult: History._verdict,
    RefreshEvent: History._refresh,
    PolicyVersion: History._version,
}
