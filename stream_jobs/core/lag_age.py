"""Age and policy lag of every trajectory while it waits to be trained, and when it is consumed.

Invariants: a trajectory waits from its first record on `trajectories` until a step that counts
trained it, the learner skipped it or the gate dropped it; a step that a restore cut off gives its
trajectories back. The four topics may be read in any order among one another. Ages are differences
of broker times, or of this clock and broker time while waiting, never below 0. Lag is a difference
of ordinals from the oldest action token (design section 8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.enums import GateOutcome, LearnerEventKind, Purpose
from schemas.ids import EpisodeId, Version
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.trajectory import Trajectory
from schemas.rules.decisions import Decisions
from schemas.rules.lineage import LearnerLog

REMEMBERED_MAX = 200_000
"""Episodes that ended before their trajectory was read, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles by nearest rank; zeros when there are no values."""

    p50: float
    p95: float
    p99: float
    max: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The buffer at one moment."""

    age_ms: Spread
    lag_steps: Spread
    """Of those whose version is known."""
    unknown_versions: int
    """Waiting trajectories whose oldest version no step or policy has named yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """One trajectory at the moment it was trained."""

    episode_id: EpisodeId
    environment: str
    partition: int
    age_ms: int
    lag_steps: int | None
    """None when its oldest version is not known."""
    lag_ms: int | None
    """Time between the steps of the oldest and of the consuming version; None as above."""
    at_ms: int
    """Broker time of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    since_ms: int
    oldest: Version
    environment: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """A step that trained an episode, as seen from the version that consumed it."""

    at_ms: int
    ordinal: int
    published_ms: int


def spread(values: Iterable[float]) -> Spread:
    """Return the percentiles of values by nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return Spread(p50=0.0, p95=0.0, p99=0.0, max=0.0, n=0)
    return Spread(
        p50=_rank(ranked, 0.50),
        p95=_rank(ranked, 0.95),
        p99=_rank(ranked, 0.99),
        max=ranked[-1],
        n=len(ranked),
    )


def _rank(ranked: Sequence[float], share: float) -> float:
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


class BufferWatch:
    """The trajectories of one run between assembly and training; takes records of four topics, each
    in its own log order.
    """

    def __init__(self) -> None:
        self._learner = LearnerLog()
        self._decisions: dict[int, Decisions] = {}
        self._policies: dict[Version, int] = {}
        self._waiting: dict[EpisodeId, _Waiting] = {}
        self._taken: dict[EpisodeId, _Waiting] = {}
        # A step or a drop that was read before the trajectory: None is a drop.
        self._early: dict[EpisodeId, _Use | None] = {}
        self._seen: set[EpisodeId] = set()

    @property
    def waiting(self) -> int:
        """Trajectories that wait now."""
        return len(self._waiting)

    def take_policy(self, record: PolicyVersion) -> None:
        """Note the ordinal of a version."""
        self._policies[Version(record.epoch, record.number)] = record.ordinal

    def take_trajectory(
        self, partition: int, timestamp_ms: int, record: Trajectory
    ) -> Iterator[Consumed]:
        """Take the next record; yield it as consumed when its step was read before."""
        if record.purpose is not Purpose.TRAIN or record.episode_id in self._seen:
            return
        self._seen.add(record.episode_id)
        waiting = _Waiting(
            since_ms=timestamp_ms,
            oldest=Version(max(0, record.oldest_epoch), max(0, record.oldest_number)),
            environment=record.environment,
            partition=partition,
        )
        if record.episode_id not in self._early:
            self._waiting[record.episode_id] = waiting
            return
        self._taken[record.episode_id] = waiting
        use = self._early.pop(record.episode_id)
        if use is not None:
            yield self._consumed(record.episode_id, waiting, use)

    def take_decision(self, partition: int, offset: int, record: GateDecision) -> None:
        """Take the next record; what the first decision of a group drops waits no longer."""
        decisions = self._decisions.setdefault(partition, Decisions())
        if not decisions.take(offset, record):
            return
        for member in record.members:
            if member.outcome is GateOutcome.DROP and self._waiting.pop(member.episode_id, 0) == 0:
                self._note_early(member.episode_id, None)

    def take_learner_event(
        self, offset: int, timestamp_ms: int, record: LearnerEvent
    ) -> Iterator[Consumed]:
        """Take the next record; yield what a step consumed."""
        before, published_ms = self._learner.newest_ordinal, self._head_ms()
        if not self._learner.take(offset, timestamp_ms, record):
            return
        match record.kind:
            case LearnerEventKind.STEP:
                use = _Use(at_ms=timestamp_ms, ordinal=before, published_ms=published_ms)
                for member in record.trained:
                    yield from self._use(member.episode_id, use)
            case LearnerEventKind.SKIPPED:
                for skipped in record.skipped:
                    self._drop(skipped.episode_id)
            case LearnerEventKind.CHECKPOINTED | LearnerEventKind.RESTORED:
                self._settle()
            case LearnerEventKind.CLOSED:
                self._waiting.clear()
            case _:
                pass

    def sample(self, *, now_ms: int) -> Sample:
        """Return the buffer now. now_ms: wall clock. Unit: ms."""
        waiting = self._waiting.values()
        newest = self._learner.newest_ordinal
        ordinals = [self._ordinal(one.oldest) for one in waiting]
        lags = [max(0, newest - ordinal) for ordinal in ordinals if ordinal is not None]
        return Sample(
            age_ms=spread(max(0, now_ms - one.since_ms) for one in waiting),
            lag_steps=spread(lags),
            unknown_versions=len(ordinals) - len(lags),
        )

    def _use(self, episode: EpisodeId, use: _Use) -> Iterator[Consumed]:
        waiting = self._waiting.pop(episode, None)
        if waiting is None:
            if episode not in self._taken:
                self._note_early(episode, use)
            return
        self._taken[episode] = waiting
        yield self._consumed(episode, waiting, use)

    def _drop(self, episode: EpisodeId) -> None:
        waiting = self._waiting.pop(episode, None)
        if waiting is not None:
            self._taken[episode] = waiting
        elif episode not in self._taken:
            self._note_early(episode, None)

    def _settle(self) -> None:
        """Forget what survives, and give back what a restore cut off."""
        learner = self._learner
        for episode in list(self._taken):
            step = learner.trained.get(episode)
            if step is not None:
                if learner.survives(step):
                    del self._taken[episode]
            elif episode in learner.skipped:
                if learner.surviving_number == learner.head[0].number:
                    del self._taken[episode]
            else:
                self._waiting[episode] = self._taken.pop(episode)

    def _note_early(self, episode: EpisodeId, use: _Use | None) -> None:
        if episode in self._seen:
            return
        if len(self._early) >= REMEMBERED_MAX:
            self._early.pop(next(iter(self._early)))
        self._early[episode] = use

    def _consumed(self, episode: EpisodeId, waiting: _Waiting, use: _Use) -> Consumed:
        ordinal = self._ordinal(waiting.oldest)
        stepped_ms = self._learner.stepped_ms(waiting.oldest)
        lag_ms = None
        if stepped_ms is not None:
            # The starting weights have no step: their lag in time begins with the first one.
            lag_ms = max(0, use.published_ms - stepped_ms) if stepped_ms else 0
        return Consumed(
            episode_id=episode,
            environment=waiting.environment,
            partition=waiting.partition,
            age_ms=max(0, use.at_ms - waiting.since_ms),
            lag_steps=None if ordinal is None else max(0, use.ordinal - ordinal),
            lag_ms=lag_ms,
            at_ms=use.at_ms,
        )

    def _ordinal(self, version: Version) -> int | None:
        known = self._learner.ordinal_of(version)
        return self._policies.get(version) if known is None else known

    def _head_ms(self) -> int:
        return self._learner.stepped_ms(self._learner.head[0]) or 0
