"""The reading rules once more, in as few lines as they take: what watches a history must not share
the code that it watches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from google_crc32c import value as crc_of

from schemas.enums import CutReason, EpisodeEventKind, LearnerEventKind, StopCause, TokenKind
from schemas.ids import Version
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.token_commit import TokenCommit

_SCHEDULERS = (
    EpisodeEventKind.ISSUED,
    EpisodeEventKind.LEASED,
    EpisodeEventKind.PAUSE_REQUESTED,
    EpisodeEventKind.RESUMED,
    EpisodeEventKind.ABANDONED,
)
_RETRIED = (StopCause.ENVIRONMENT_ERROR, StopCause.INFRASTRUCTURE_ERROR)


@dataclass(slots=True)
class Line:
    """The token WAL of one episode."""

    partition: int
    fence: tuple[int, int, str, str, int] = (-1, -1, "", "", -1)
    has_right: bool = False
    seq: int = 0
    length: int = 0
    action_end: int = 0
    """Where the last accepted action token ends."""
    at_fence: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Length and action end when a (attempt, number) became current."""

    def take(self, commit: TokenCommit) -> bool:
        """Take the next record; return whether it counts."""
        packed = commit.token_ids + commit.logprobs + commit.spans
        if crc_of(packed) != commit.crc32c or 4 * commit.count != len(commit.token_ids):
            return False
        name = (
            commit.attempt,
            commit.fence_number,
            commit.writer_id,
            commit.incarnation,
            commit.producer_number,
        )
        if commit.kind is TokenKind.FENCE:
            if name[:2] <= self.fence[:2]:
                return False
            self.fence, self.has_right, self.seq = name, True, 0
            self.at_fence[name[:2]] = (self.length, self.action_end)
            return True
        if not self.has_right or name != self.fence or 0 <= commit.seq < self.seq:
            return False
        is_cut = commit.kind is TokenKind.CUT
        fits = commit.start <= self.length if is_cut else commit.start == self.length
        if commit.seq != self.seq or not fits:
            self.has_right = False
            return False
        self.seq += 1
        self.length = commit.start + (0 if is_cut else commit.count)
        if is_cut:
            assert commit.cut_reason is not CutReason.NONE
            self.action_end = min(self.action_end, commit.start)
        elif commit.kind is TokenKind.ACTION:
            self.action_end = self.length
        return True


@dataclass(slots=True)
class Life:
    """One rollout in `episodes`."""

    event: EpisodeEvent
    attempt: int = 0
    holder: str = ""
    process: str = ""
    is_ended: bool = False
    is_abandoned: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether a final Ended or an Abandoned stands."""
        return self.is_ended or self.is_abandoned


class Lives:
    """All rollouts of a run."""

    def __init__(self) -> None:
        """Nothing is issued."""
        self.by_id: dict[str, Life] = {}
        self._schedulers: dict[int, tuple[int, str]] = {}

    def take(self, partition: int, event: EpisodeEvent) -> None:
        """Take the next record of a partition."""
        who = (event.scheduler_epoch, str(event.scheduler_id))
        current = self._schedulers.get(partition, (0, ""))
        if event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            if who[0] > current[0]:
                self._schedulers[partition] = who
            return
        if event.kind in _SCHEDULERS and who != current:
            return
        life = self.by_id.get(event.episode_id)
        if event.kind is EpisodeEventKind.ISSUED:
            if life is None:
                self.by_id[event.episode_id] = Life(event)
        elif life is not None and not life.is_closed:
            _live(life, event)


def _live(life: Life, event: EpisodeEvent) -> None:
    if event.kind is EpisodeEventKind.LEASED:
        if event.attempt > life.attempt:
            life.attempt, life.holder = event.attempt, event.worker_id
            life.process = event.incarnation
    elif event.kind is EpisodeEventKind.ABANDONED:
        life.is_abandoned = True
    elif (event.attempt, event.writer_id) != (life.attempt, life.holder) or (
        event.incarnation not in ("", life.process) and life.process
    ):
        return
    elif event.kind is EpisodeEventKind.PAUSED:
        life.holder = ""
    elif event.kind is EpisodeEventKind.ENDED:
        life.holder = ""
        life.is_ended = event.stop_cause not in _RETRIED


class Lineage:
    """The versions that counting Steps lead to, oldest first, without the starting weights."""

    def __init__(self) -> None:
        """Nothing is trained."""
        self.versions: list[Version] = []
        self._learner = (0, "")
        self._restored = 0

    @property
    def is_decided(self) -> bool:
        """Whether the newest learner has said from which version it goes on, or there is none."""
        return self._restored == self._learner[0]

    def take(self, event: LearnerEvent) -> None:
        """Take the next record of the learner's log."""
        who = (event.epoch, str(event.learner_id))
        if event.kind is LearnerEventKind.EPOCH_STARTED:
            self._learner = max(self._learner, who, key=lambda one: one[0])
        elif who != self._learner:
            return
        elif event.kind is LearnerEventKind.RESTORED and self._restored != event.epoch:
            self._restored = event.epoch
            self._restore(event)
        elif event.kind is LearnerEventKind.STEP and self._restored == event.epoch:
            newest = self.versions[-1].number if self.versions else 0
            if event.number == newest + 1:
                self.versions.append(Version(event.epoch, event.number))

    def _restore(self, event: LearnerEvent) -> None:
        parent = event.parent_number
        known = Version(event.parent_epoch, parent) in self.versions
        if not known and parent:
            # Its checkpoint holds steps that did not count before.
            adopted = {Version(ref.epoch, ref.number) for ref in event.adopted}
            first = min(one.number for one in adopted - set(self.versions))
            kept = [one for one in self.versions if one.number < first]
            self.versions = kept + sorted(adopted - set(kept), key=lambda one: one.number)
        self.versions = [one for one in self.versions if one.number <= parent]
