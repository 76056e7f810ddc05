"""What the topics say about a disturbed run: what was decoded twice, and how long recovery took.

A pure core: records in log order go in, figures come out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.run.history import Quantiles, quantiles
from schemas.enums import EpisodeEventKind, FinishReason, TokenKind
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A process that was killed."""

    worker_id: str
    at_ms: int
    """Wall clock. Unit: ms."""


@dataclass(slots=True, kw_only=True)
class _Accepted:
    at_ms: int
    attempt: int
    writer: tuple[str, str]
    is_action: bool
    ends_turn: bool


@dataclass(slots=True, kw_only=True)
class _Episode:
    wal: EpisodeWal = field(default_factory=EpisodeWal)
    accepted: list[_Accepted] = field(default_factory=list)
    decoded: set[tuple[int, int]] = field(default_factory=set)
    """(branch, index) of every Action token that was accepted once."""
    leases: list[tuple[int, int, str]] = field(default_factory=list)
    """(time, attempt, worker)."""
    ended_ms: int | None = None


class Findings:
    """Takes `tokens` and `episodes` of one run and answers at the end."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._episodes: dict[str, _Episode] = defaultdict(_Episode)
        self.decoded_twice = 0
        """Action tokens accepted at a place that had an accepted one before. Unit: tokens."""

    @property
    def superseded_tokens(self) -> int:
        """Action tokens in the log that count for nobody: late commits of writers that had lost
        their right. Unit: tokens."""
        return sum(one.wal.superseded_action_tokens for one in self._episodes.values())

    def take_token(self, message: Delivered[TokenCommit]) -> None:
        """Take a record of `tokens`."""
        record = message.record
        if record.run_id != self._run_id:
            return
        episode = self._episodes[record.episode_id]
        branch = episode.wal.branch
        if episode.wal.take(message.offset, record) is not Verdict.ACCEPTED:
            return
        is_action = record.kind is TokenKind.ACTION
        if is_action:
            for index in range(record.start, record.start + record.count):
                self.decoded_twice += (branch, index) in episode.decoded
                episode.decoded.add((branch, index))
        episode.accepted.append(
            _Accepted(
                at_ms=message.timestamp_ms,
                attempt=record.attempt,
                writer=(record.writer_id, record.incarnation),
                is_action=is_action,
                ends_turn=is_action and record.finish_reason is not FinishReason.NONE,
            )
        )

    def take_episode(self, message: Delivered[EpisodeEvent]) -> None:
        """Take a record of `episodes`."""
        event = message.record
        if event.run_id != self._run_id:
            return
        episode = self._episodes[event.episode_id]
        match event.kind:
            case EpisodeEventKind.LEASED:
                episode.leases.append((message.timestamp_ms, event.attempt, event.worker_id))
            case EpisodeEventKind.ENDED | EpisodeEventKind.ABANDONED:
                if episode.ended_ms is None and not event.stop_cause.is_retried:
                    episode.ended_ms = message.timestamp_ms
            case _:
                pass

    def recovery_s(self, hits: Sequence[Hit]) -> Quantiles:
        """Return, over inference workers killed and the turns they were in, the time until the
        turn's next token was committed by another process. Unit: s."""
        return quantiles(
            seconds
            for hit in hits
            for episode in self._episodes.values()
            if (seconds := _decoding_again(episode, hit)) is not None
        )

    def rebuilt_s(self, hits: Sequence[Hit]) -> Quantiles:
        """Return, over environment workers killed and the episodes they held, the time until a
        later attempt's first token was committed. Unit: s."""
        return quantiles(
            seconds
            for hit in hits
            for episode in self._episodes.values()
            if (seconds := _running_again(episode, hit)) is not None
        )


def _decoding_again(episode: _Episode, hit: Hit) -> float | None:
    at = bisect_right(episode.accepted, hit.at_ms, key=lambda one: one.at_ms)
    last = episode.accepted[at - 1] if at else None
    if last is None or last.ends_turn or last.writer[0] != hit.worker_id:
        return None
    later = (one for one in episode.accepted[at:] if one.is_action and one.writer != last.writer)
    following = next(later, None)
    return None if following is None else (following.at_ms - hit.at_ms) / 1e3


def _running_again(episode: _Episode, hit: Hit) -> float | None:
    held = [lease for lease in episode.leases if lease[0] <= hit.at_ms]
    is_over = episode.ended_ms is not None and episode.ended_ms <= hit.at_ms
    if not held or is_over or held[-1][2] != hit.worker_id:
        return None
    attempt = held[-1][1]
    later = (
        one
        for one in episode.accepted
        if one.at_ms > hit.at_ms and one.is_action and one.attempt > attempt
    )
    following = next(later, None)
    return None if following is None else (following.at_ms - hit.at_ms) / 1e3
