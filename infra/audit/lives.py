"""The audit's own reading of `episodes`: schedulers, leases, and how each episode ended (design
sections 7 and 9).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from infra.audit.report import Findings, at
from schemas.enums import AbandonReason, EpisodeEventKind, Purpose, StopCause
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.topics import EPISODES

_SCHEDULER_WRITES = (
    EpisodeEventKind.ISSUED,
    EpisodeEventKind.LEASED,
    EpisodeEventKind.PAUSE_REQUESTED,
    EpisodeEventKind.RESUMED,
    EpisodeEventKind.ABANDONED,
)
_RETRIED = (StopCause.ENVIRONMENT_ERROR, StopCause.INFRASTRUCTURE_ERROR)


@dataclass(slots=True, kw_only=True)
class End:
    """An Ended that counts, with what it rests on."""

    offset: int
    attempt: int
    wal_position: int
    token_count: int


@dataclass(slots=True, kw_only=True)
class Life:
    """What `episodes` says of one rollout."""

    episode_id: str
    group_id: str
    partition: int
    issued_offset: int
    purpose: Purpose
    group_size: int
    attempt: int = 0
    floors: tuple[int, int] | None = None
    """Of `tokens` and `tool-events`, as the first lease names them."""
    holder: str | None = None
    """Worker of the lease that counts."""
    leases: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By attempt: worker and incarnation that its lease names; the latter empty in old records."""
    ends: list[End] = field(default_factory=list)
    """Every Ended that counts, retried causes included."""
    final: End | None = None
    abandoned: AbandonReason | None = None
    closed_offset: int = -1

    @property
    def is_closed(self) -> bool:
        """Whether a final Ended or an Abandoned stands."""
        return self.final is not None or self.abandoned is not None


class Lives:
    """All rollouts of a run."""

    def __init__(self, findings: Findings | None = None) -> None:
        """Report to `findings`."""
        self._findings = findings or Findings()
        self.by_id: dict[str, Life] = {}
        self.groups: dict[str, list[str]] = {}
        self.superseded: Counter[str] = Counter()
        """Records that do not count, by kind."""
        self._schedulers: dict[int, tuple[int, str]] = {}

    def take(self, message: Delivered[EpisodeEvent]) -> None:
        """Take the next record of its partition."""
        event = message.record
        if not self._counts(message):
            self.superseded[event.kind.value] += 1

    def _counts(self, message: Delivered[EpisodeEvent]) -> bool:
        event, partition = message.record, message.partition
        scheduler = (event.scheduler_epoch, str(event.scheduler_id))
        if event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            if scheduler[0] <= self._schedulers.get(partition, (0, ""))[0]:
                return False
            self._schedulers[partition] = scheduler
            return True
        if event.kind in _SCHEDULER_WRITES and self._schedulers.get(partition) != scheduler:
            return False
        life = self.by_id.get(event.episode_id)
        if event.kind is EpisodeEventKind.ISSUED:
            return life is None and self._issue(message)
        if life is None or life.is_closed:
            return False
        if event.kind in _SCHEDULER_WRITES:
            return self._by_scheduler(life, message)
        holds = life.holder == event.writer_id and life.attempt == event.attempt
        if holds:
            named = (life.leases[life.attempt][1], event.incarnation)
            holds = named[0] == named[1] or "" in named
        return holds and self._by_environment(life, message)

    def _issue(self, message: Delivered[EpisodeEvent]) -> bool:
        event = message.record
        self.by_id[event.episode_id] = Life(
            episode_id=event.episode_id,
            group_id=event.group_id,
            partition=message.partition,
            issued_offset=message.offset,
            purpose=event.purpose,
            group_size=event.group_size,
        )
        self.groups.setdefault(event.group_id, []).append(event.episode_id)
        return True

    def _by_scheduler(self, life: Life, message: Delivered[EpisodeEvent]) -> bool:
        event = message.record
        if event.kind is EpisodeEventKind.LEASED:
            if event.attempt <= life.attempt:
                return False
            life.attempt, life.holder = event.attempt, event.worker_id
            life.leases[event.attempt] = (str(event.worker_id), event.incarnation)
            if life.floors is None:
                life.floors = (event.tokens_floor, event.tool_events_floor)
            self._findings.check(
                11,
                event.lease_ms > 0,
                f"the lease of attempt {event.attempt} has no end",
                ids=(event.episode_id,),
                at=(at(EPISODES.name, message.partition, message.offset),),
            )
        elif event.kind is EpisodeEventKind.ABANDONED:
            life.abandoned, life.closed_offset = event.abandon_reason, message.offset
        return True

    def _by_environment(self, life: Life, message: Delivered[EpisodeEvent]) -> bool:
        event = message.record
        if event.kind is EpisodeEventKind.PAUSED:
            life.holder = None
        elif event.kind is EpisodeEventKind.ENDED:
            if event.stop_cause in (StopCause.NONE, StopCause.UNKNOWN):
                return False
            end = End(
                offset=message.offset,
                attempt=event.attempt,
                wal_position=event.wal_position,
                token_count=event.token_count,
            )
            life.ends.append(end)
            life.holder = None
            if event.stop_cause not in _RETRIED:
                life.final, life.closed_offset = end, message.offset
        return True
