"""What the tokens and episodes of a disturbed run say: what was decoded twice, what a kill lost,
how long it took until turns went on, and whether others were slower meanwhile.

A pure core: records in log order go in, figures come out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from infra.chaos.others import (
    NOTHING,
    Standstill,
    Sums,
    moments,
    speed,
    throughput,
    untouched,
)
from infra.chaos.plan import role_of
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

    @property
    def role(self) -> str:
        """Its role: what comes before the place, as in `role-index@run`."""
        return role_of(self.worker_id.partition("@")[0])


@dataclass(slots=True, kw_only=True)
class _Accepted:
    at_ms: int
    attempt: int
    writer: tuple[str, str]
    is_action: bool
    count: int
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
        self.action_tokens = 0
        """Action tokens accepted. Unit: tokens."""
        self._written: list[tuple[int, str, int]] = []
        """(time, worker, tokens) of every accepted Action commit."""

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
            self.action_tokens += record.count
            self._written.append((message.timestamp_ms, str(record.writer_id), record.count))
        episode.accepted.append(
            _Accepted(
                at_ms=message.timestamp_ms,
                attempt=record.attempt,
                writer=(record.writer_id, record.incarnation),
                is_action=is_action,
                count=record.count,
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

    @property
    def interruptions(self) -> int:
        """Turns that another writer took over before they had ended. Unit: turns."""
        return sum(
            last.is_action
            and not last.ends_turn
            and (later.writer, later.attempt) != (last.writer, last.attempt)
            for episode in self._episodes.values()
            for last, later in pairwise(episode.accepted)
        )

    def tail_s(self, hits: Sequence[Hit]) -> Quantiles:
        """Return, over inference workers killed and the turns they were in, the age of the turn's
        last accepted commit at the kill: what was sampled since is decoded again. Unit: s.
        """
        return quantiles(age for age, _ in self._tails(hits))

    def tail_tokens(self, hits: Sequence[Hit]) -> Quantiles:
        """Return the same in tokens, at the rate of the turn's own commits; turns of a single
        commit have none. Unit: tokens.
        """
        return quantiles(age * rate for age, rate in self._tails(hits) if rate is not None)

    def _tails(self, hits: Sequence[Hit]) -> Iterator[tuple[float, float | None]]:
        for hit in hits:
            for episode in self._episodes.values():
                turn = _turn_in_hand(episode, hit)
                if turn:
                    yield (hit.at_ms - turn[-1].at_ms) / 1e3, _rate(turn)

    def others(
        self, deaths: Sequence[Hit], standstills: Sequence[Standstill]
    ) -> tuple[list[Sums], list[Sums]]:
        """Return what inference workers that nothing hindered did around the deaths of others, one
        for each moment: all their tokens, and those of the turns that they had in hand.
        """
        written = sorted(self._written)
        workers = {worker for _, worker, _ in written}
        all_tokens, in_hand = [], []
        for moment in moments(hit.at_ms for hit in deaths):
            free = untouched(workers, moment, standstills)
            if free:
                all_tokens.append(throughput(written, moment, free))
                turns = (speed(one.accepted, moment, free) for one in self._episodes.values())
                in_hand.append(sum(turns, start=NOTHING))
        return all_tokens, in_hand

    def next_written_ms(self, worker_id: str, since_ms: float) -> int | None:
        """Return when a worker, or anybody when it is empty, next committed tokens. Unit: ms."""
        return min(
            (at for at, who, _ in self._written if at >= since_ms and worker_id in ("", who)),
            default=None,
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


def _turn_in_hand(episode: _Episode, hit: Hit) -> list[_Accepted]:
    """Return the accepted commits, in a row, of the turn that a worker was in when it was hit;
    empty when the episode's last word was not its, or ended a turn.
    """
    at = bisect_right(episode.accepted, hit.at_ms, key=lambda one: one.at_ms)
    last = episode.accepted[at - 1] if at else None
    if last is None or last.ends_turn or last.writer[0] != hit.worker_id:
        return []
    held = takewhile(
        lambda one: one.writer == last.writer and not one.ends_turn,
        reversed(episode.accepted[:at]),
    )
    return list(held)[::-1]


def _decoding_again(episode: _Episode, hit: Hit) -> float | None:
    turn = _turn_in_hand(episode, hit)
    if not turn:
        return None
    at = bisect_right(episode.accepted, hit.at_ms, key=lambda one: one.at_ms)
    last = turn[-1]
    later = (one for one in episode.accepted[at:] if one.is_action and one.writer != last.writer)
    following = next(later, None)
    return None if following is None else (following.at_ms - hit.at_ms) / 1e3


def _rate(turn: Sequence[_Accepted]) -> float | None:
    """Return how fast a turn's tokens were committed, None for one commit. Unit: tokens/s."""
    actions = [one for one in turn if one.is_action]
    if len(actions) < 2 or actions[-1].at_ms <= actions[0].at_ms:
        return None
    tokens = sum(one.count for one in actions[1:])
    return 1e3 * tokens / (actions[-1].at_ms - actions[0].at_ms)


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
