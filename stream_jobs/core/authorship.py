"""The scheduler's records, built from its commands; each carries (epoch, id) of the fence it was
written under.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.enums import ControlKind, EpisodeEventKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId, episode_id
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.parts import LogEnd
from schemas.rules.episodes import Floors
from stream_jobs.core.issue import GiveLease, GiveUp, IssueGroup, RequestPause
from stream_jobs.core.ledger import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes: the run, and the fence the scheduler acts under."""

    run_id: RunId
    worker_id: WorkerId
    epoch: int
    scheduler_id: WorkerId
    """Worker id and incarnation, since a restarted process is another scheduler."""

    def fence(self, *, at_us: int) -> EpisodeEvent:
        """Return the SchedulerFence for a partition of `episodes`."""
        return EpisodeEvent(
            run_id=self.run_id,
            episode_id=EpisodeId(""),
            group_id=GroupId(""),
            kind=EpisodeEventKind.SCHEDULER_FENCE,
            scheduler_epoch=self.epoch,
            scheduler_id=self.scheduler_id,
            at_us=at_us,
            writer_id=self.worker_id,
        )

    def control(
        self,
        kind: ControlKind,
        *,
        at_us: int,
        reason: str = "",
        counts: Mapping[str, int] | None = None,
        ends: tuple[LogEnd, ...] = (),
        snapshot: str = "",
    ) -> ControlEvent:
        """Return a record of `control`."""
        return ControlEvent(
            run_id=self.run_id,
            kind=kind,
            ends=ends,
            counts=counts or {},
            scheduler_epoch=self.epoch,
            scheduler_id=self.scheduler_id,
            reason=reason,
            snapshot=snapshot,
            at_us=at_us,
            writer_id=self.worker_id,
        )

    def issued(self, command: IssueGroup, *, ordinal: int, at_us: int) -> list[EpisodeEvent]:
        """Return one Issued per member. ordinal: newest surviving version known. Unit: updates."""
        task = command.task
        return [
            EpisodeEvent(
                run_id=self.run_id,
                episode_id=episode_id(self.run_id, task.ordinal, member),
                group_id=task.group_id,
                kind=EpisodeEventKind.ISSUED,
                task_id=task.task_id,
                ordinal=task.ordinal,
                member=member,
                purpose=task.purpose,
                scheduler_epoch=self.epoch,
                scheduler_id=self.scheduler_id,
                group_size=task.group_size,
                policy_ordinal=ordinal,
                at_us=at_us,
                writer_id=self.worker_id,
            )
            for member in command.members
        ]

    def leased(
        self, command: GiveLease, *, lease_ms: int, floors: Floors, frame: bytes, at_us: int
    ) -> list[EpisodeEvent]:
        """Return Leased, after Resumed when the rollout was paused."""
        leased = replace(
            self._about(command.rollout, EpisodeEventKind.LEASED, at_us),
            attempt=command.attempt,
            worker_id=command.worker_id,
            incarnation=command.incarnation,
            lease_ms=lease_ms,
            tokens_floor=floors.tokens,
            tool_events_floor=floors.tool_events,
            task_frame=frame,
            after_failures=command.rollout.failures,
        )
        if not command.is_resumed:
            return [leased]
        resumed = self._about(command.rollout, EpisodeEventKind.RESUMED, at_us)
        return [replace(resumed, attempt=command.attempt), leased]

    def pause_requested(self, command: RequestPause, *, at_us: int) -> EpisodeEvent:
        """Return PauseRequested."""
        event = self._about(command.rollout, EpisodeEventKind.PAUSE_REQUESTED, at_us)
        return replace(event, attempt=command.rollout.life.attempt)

    def abandoned(self, command: GiveUp, *, at_us: int) -> EpisodeEvent:
        """Return Abandoned."""
        return replace(
            self._about(command.rollout, EpisodeEventKind.ABANDONED, at_us),
            attempt=command.rollout.life.attempt,
            abandon_reason=command.reason,
            detail=command.detail,
        )

    def _about(self, rollout: Rollout, kind: EpisodeEventKind, at_us: int) -> EpisodeEvent:
        group = rollout.group
        issued = rollout.life.issued
        assert issued is not None
        return EpisodeEvent(
            run_id=self.run_id,
            episode_id=rollout.episode_id,
            group_id=group.group_id,
            kind=kind,
            task_id=issued.task_id,
            ordinal=group.ordinal,
            member=rollout.member,
            purpose=group.purpose,
            scheduler_epoch=self.epoch,
            scheduler_id=self.scheduler_id,
            group_size=group.size,
            at_us=at_us,
            writer_id=self.worker_id,
        )
