"""The fold of a run's records into spans.

Invariants: ids are digests of what the log calls a thing, so that a record taken twice tells the
same span; at most `open_max` episodes are open, and who is put out for another is counted; what is
settled is forgotten, and a record of it that comes late is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from infra.tracing.core.episodes import EpisodeTrace
from infra.tracing.core.spans import Span, moment_us
from infra.tracing.core.versions import VersionTraces, began_us
from schemas.enums import EpisodeEventKind, LearnerEventKind
from schemas.ids import EpisodeId, RunId, Version, WorkerId
from schemas.ports import Delivered, Position
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.rules.episodes import SchedulerFences
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    LEARNER_STEPS,
    POLICIES,
    REFRESHES,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    Topic,
)
from schemas.tracing import trace_of_episode

READ: tuple[Topic[Any], ...] = (
    EPISODES, TOKENS, TOOL_EVENTS, VERDICTS, TRAJECTORIES, GATE_DECISIONS, LEARNER_STEPS, POLICIES,
    REFRESHES,
)  # fmt: skip
Place: TypeAlias = tuple[str, int]
Fence: TypeAlias = tuple[int, str]

_LEFT_OVER_MS = 60_000
_HALF_ID = (1 << 64) - 1


class TraceFold:
    """The open traces of one run."""

    def __init__(
        self,
        run_id: RunId,
        *,
        open_max: int,
        sample_ratio: float = 1.0,
        fences: Mapping[int, Fence] | None = None,
        judged_only: Mapping[Place, int] | None = None,
    ) -> None:
        """Start before the first record, or at floors that an earlier fold named.

        sample_ratio: share of episodes to tell, by the lower half of the trace id, so that other
        samplers of the same share choose alike (OpenTelemetry SDK, TraceIdRatioBased). fences: the
        schedulers' fence at each partition's floor of `episodes`. judged_only: offsets
        of `learner-steps` below which records were told before, and only say what counts.
        """
        self._run = run_id
        self._open_max = open_max
        self._sampled_below = round(sample_ratio * (_HALF_ID + 1))
        self._open: dict[EpisodeId, EpisodeTrace] = {}
        self._closed: dict[EpisodeId, None] = {}
        self._fences = {
            partition: SchedulerFences((epoch, WorkerId(scheduler)))
            for partition, (epoch, scheduler) in (fences or {}).items()
        }
        self._judged_only = dict(judged_only or {})
        self._versions = VersionTraces(run_id)
        self._newest_ms = 0
        self.evicted = 0
        """Episodes put out for others before they were settled. Unit: episodes."""
        self.late = 0
        """Records of episodes that were told before. Unit: records."""

    @property
    def open_count(self) -> int:
        """Episodes of which something is kept. Unit: episodes."""
        return len(self._open)

    def take(self, message: Delivered[Any]) -> list[Span]:
        """Take a record of the run; return the spans that it ends."""
        self._newest_ms = max(self._newest_ms, message.timestamp_ms)
        return list(self._take(message, message.record, moment_us(message)))

    def ripe(self) -> frozenset[EpisodeId]:
        """Return the open episodes about which no further record is expected, though records that
        were written before may still have to be read.
        """
        return frozenset(
            episode.episode_id
            for episode in self._open.values()
            if episode.is_given_up or self._is_cut_off(episode) or self._is_left_over(episode)
        )

    def caught_up(self, among: Collection[EpisodeId]) -> list[Span]:
        """Tell what no further record can add to. among: episodes that were ripe at a time up to
        which everything has been read by now.
        """
        spans: list[Span] = []
        for episode in [one for one in self._open.values() if one.episode_id in among]:
            if episode.is_given_up:
                spans += self._close(episode)
            elif self._is_cut_off(episode):
                spans += self._close(episode, "dropped", "run_ended")
            elif self._is_left_over(episode):
                self._forget(episode)
        return spans

    def all_read(self) -> list[Span]:
        """Tell what is ripe, where the log ends with the last record taken."""
        return self.caught_up(self.ripe())

    def pending(self, episode_id: EpisodeId) -> list[Span]:
        """Return what is open of one episode, told as far as it is known; it is then forgotten."""
        episode = self._open.get(episode_id)
        return [] if episode is None else self._close(episode, "pending")

    def floors(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        """Return from where to read to fold what is open anew. positions: next offset to read."""
        floors = dict(positions)
        pending = [(position.topic, position.partition, position.offset)
                   for position in self._versions.places()]  # fmt: skip
        for episode in self._open.values():
            pending += [(*place, offset) for place, offset in episode.firsts.items()]
        for topic, partition, offset in pending:
            place = topic, partition
            floors[place] = min(floors.get(place, offset), offset)
        return floors

    def fences(self) -> dict[int, Fence]:
        """Return the schedulers' fence at the floor of each partition of `episodes`."""
        fences: dict[int, Fence] = {
            partition: (one.current[0], str(one.current[1]))
            for partition, one in self._fences.items()
        }
        lowest: dict[int, int] = {}
        for episode in self._open.values():
            for (topic, partition), offset in episode.firsts.items():
                known = lowest.get(partition)
                if topic == EPISODES.name and episode.fence and (known is None or offset < known):
                    lowest[partition], fences[partition] = offset, episode.fence
        return fences

    def _take(self, message: Delivered[Any], record: Any, at_us: int) -> Iterator[Span]:
        place = Position(message.topic, message.partition, message.offset)
        match record:
            case EpisodeEvent():
                yield from self._event(message, record, at_us)
            case GateDecision():
                for member in record.members:
                    if (episode := self._episode(member.episode_id, message, at_us)) is not None:
                        yield from episode.decided(at_us, member, record.writer_id)
                        yield from self._settle(episode)
            case LearnerEvent():
                yield from self._learned(message, record, at_us)
            case PolicyVersion():
                yield from self._versions.published(place, at_us, record)
            case RefreshEvent():
                yield from self._versions.refreshed(place, at_us, record)
            case TokenCommit() | ToolEvent() | VerifierResult() | Trajectory():
                if (episode := self._episode(record.episode_id, message, at_us)) is not None:
                    yield from _stages(episode, message, record, at_us)
                    yield from self._settle(episode)
        yield from self._evict()

    def _event(self, message: Delivered[Any], event: EpisodeEvent, at_us: int) -> Iterator[Span]:
        fences = self._fences.setdefault(message.partition, SchedulerFences())
        counts = fences.take(event)
        if not counts or event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            return
        if (episode := self._episode(event.episode_id, message, at_us)) is None:
            return
        if episode.fence is None:
            episode.fence = fences.current[0], str(fences.current[1])
        yield from episode.attempts.take(message.offset, message.timestamp_ms, at_us, event)
        yield from self._settle(episode)

    def _learned(self, message: Delivered[Any], event: LearnerEvent, at_us: int) -> Iterator[Span]:
        counts = self._versions.judge(message.offset, message.timestamp_ms, event)
        if message.offset < self._judged_only.get((LEARNER_STEPS.name, message.partition), 0):
            return
        if event.kind is LearnerEventKind.STEP:
            place = Position(message.topic, message.partition, message.offset)
            yield from self._versions.stepped(place, at_us, event, counts=counts)
        if not counts:
            return
        version, step_us = Version(event.epoch, event.number), began_us(at_us, event)
        for member in event.trained:
            if (episode := self._episode(member.episode_id, message, at_us)) is not None:
                episode.trained(at_us, step_us, version, member)
                yield from self._settle(episode)
        for skipped in event.skipped:
            if (episode := self._episode(skipped.episode_id, message, at_us)) is not None:
                episode.skipped(at_us, skipped)
                yield from self._settle(episode)

    def _episode(
        self, episode_id: EpisodeId, message: Delivered[Any], at_us: int
    ) -> EpisodeTrace | None:
        """Return the open episode, opened if need be; None when it was told before."""
        if episode_id in self._closed:
            self.late += 1
            return None
        episode = self._open.get(episode_id)
        if episode is None:
            if trace_of_episode(episode_id) & _HALF_ID >= self._sampled_below:
                return None
            episode = self._open[episode_id] = EpisodeTrace(self._run, episode_id)
        episode.newest_us = max(episode.newest_us, at_us)
        episode.firsts.setdefault((message.topic, message.partition), message.offset)
        return episode

    def _settle(self, episode: EpisodeTrace) -> Iterable[Span]:
        return self._close(episode) if episode.is_complete else ()

    def _close(
        self, episode: EpisodeTrace, outcome: str = "unknown", reason: str = ""
    ) -> list[Span]:
        self._forget(episode)
        return list(episode.finish(outcome, reason))

    def _forget(self, episode: EpisodeTrace) -> None:
        self._open.pop(episode.episode_id, None)
        self._closed[episode.episode_id] = None
        while len(self._closed) > self._open_max:
            del self._closed[next(iter(self._closed))]

    def _is_cut_off(self, episode: EpisodeTrace) -> bool:
        """Whether it waited for the learner when the run was closed."""
        return self._versions.is_closed and episode.is_issued and episode.is_admitted

    def _is_left_over(self, episode: EpisodeTrace) -> bool:
        """Whether its Issued was read by an earlier fold, which told it."""
        is_old = episode.newest_us // 1000 + _LEFT_OVER_MS < self._newest_ms
        return is_old and not episode.is_issued

    def _evict(self) -> Iterator[Span]:
        while len(self._open) > self._open_max:
            oldest = next(iter(self._open.values()))
            if oldest.is_issued:
                self.evicted += 1
                yield from self._close(oldest, "evicted")
            else:
                self._forget(oldest)


def _stages(
    episode: EpisodeTrace, message: Delivered[Any], record: Any, at_us: int
) -> Iterator[Span]:
    """Give a record to the stages that are told from its topic alone."""
    match record:
        case TokenCommit():
            stored_us = message.timestamp_ms * 1000
            yield from episode.tokens.take(message.offset, at_us, stored_us, record)
        case ToolEvent():
            yield from episode.tools.take(message.offset, at_us, record)
        case VerifierResult():
            yield from episode.judged(message.offset, at_us, record)
        case Trajectory():
            yield from episode.sealed(at_us, record)
