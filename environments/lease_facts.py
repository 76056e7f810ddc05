"""What a Leased record says, and the records that an environment writes under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from environments.core.episode_state import Episode
from environments.ports import Done, Environment, Tool, ToolCall, canonical
from environments.transcripts import to_text
from schemas.enums import EpisodeEventKind, Purpose, ToolEventKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.records.tool_event import ToolEvent
from schemas.records.verify_request import VerifyRequest

TEXT_BYTES_MAX = 65_536
"""Longest arguments and outputs in the tool log. Unit: bytes."""
ARTIFACT_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease of an episode to this worker."""

    run_id: RunId
    episode_id: EpisodeId
    group_id: GroupId
    attempt: int
    lease_ms: int
    tokens_floor: int
    tool_events_floor: int
    task_frame: bytes
    partition: int
    """Partition of the episode in every grouped topic."""
    read_ms: int
    """Monotonic time at which it was read. Unit: ms."""
    age_ms: int
    """How long ago the broker stamped it then, by this machine's clock. Unit: ms."""
    template: EpisodeEvent
    """The Leased record."""

    @classmethod
    def of(cls, message: Delivered[EpisodeEvent], *, read_ms: int, now_us: int) -> Lease:
        """Return the lease of a Leased record read just now."""
        event = message.record
        return cls(
            run_id=event.run_id,
            episode_id=event.episode_id,
            group_id=event.group_id,
            attempt=event.attempt,
            lease_ms=event.lease_ms,
            tokens_floor=event.tokens_floor,
            tool_events_floor=event.tool_events_floor,
            task_frame=event.task_frame,
            partition=message.partition,
            read_ms=read_ms,
            age_ms=now_us // 1000 - message.timestamp_ms,
            template=event,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What an attempt starts with."""

    lease: Lease
    task: Task
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Makes the records of one lease; each carries its writer and its writer's clock."""

    lease: Lease
    worker_id: WorkerId
    incarnation: str

    def episode(self, kind: EpisodeEventKind, at_us: int, **fields: Any) -> EpisodeEvent:
        """Return an event of the episode."""
        leased = self.lease.template
        return EpisodeEvent(
            run_id=leased.run_id,
            episode_id=leased.episode_id,
            group_id=leased.group_id,
            task_id=leased.task_id,
            ordinal=leased.ordinal,
            member=leased.member,
            purpose=leased.purpose,
            attempt=leased.attempt,
            kind=kind,
            incarnation=self.incarnation,
            at_us=at_us,
            writer_id=self.worker_id,
            **fields,
        )

    def ended(self, episode: Episode, done: Done, at_us: int, **times: int) -> EpisodeEvent:
        """Return the Ended of an attempt, resting on its last acknowledged positions."""
        return self.episode(
            EpisodeEventKind.ENDED,
            at_us,
            stop_cause=done.cause,
            detail=done.detail[:2000],
            wal_position=episode.wal_position,
            tool_position=episode.tool_position,
            fence_number=episode.fence_number,
            token_count=episode.length,
            turns=episode.turns,
            tool_calls=episode.tool_calls,
            **times,
        )

    def tool(self, kind: ToolEventKind, at_us: int, **fields: Any) -> ToolEvent:
        """Return a record of the tool log."""
        lease = self.lease
        return ToolEvent(
            run_id=lease.run_id,
            episode_id=lease.episode_id,
            group_id=lease.group_id,
            kind=kind,
            attempt=lease.attempt,
            writer_id=self.worker_id,
            incarnation=self.incarnation,
            at_us=at_us,
            **fields,
        )

    def call(
        self,
        kind: ToolEventKind,
        at_us: int,
        episode: Episode,
        *,
        call: ToolCall,
        tool: Tool,
        key: str,
        number: int,
        **fields: Any,
    ) -> ToolEvent:
        """Return a record of the tool log that concerns one call."""
        return self.tool(
            kind,
            at_us,
            branch=episode.branch,
            turn=episode.turn,
            call=number,
            call_key=key,
            tool=call.name,
            idempotent=tool.idempotent,
            external=tool.external,
            wal_position=episode.wal_position,
            **fields,
        )

    def verify(
        self, episode: Episode, done: Done, task: Task, at_us: int, deadline_us: int
    ) -> VerifyRequest:
        """Return the request to judge; raise ValueError when the artifact is no JSON or too
        long.
        """
        artifact = canonical(done.artifact)
        if len(artifact.encode()) > ARTIFACT_BYTES_MAX:
            raise ValueError(f"artifact of {len(artifact)} characters is too long")
        lease = self.lease
        return VerifyRequest(
            run_id=lease.run_id,
            episode_id=lease.episode_id,
            group_id=lease.group_id,
            task_id=task.task_id,
            attempt=lease.attempt,
            purpose=lease.template.purpose if task.purpose is Purpose.UNKNOWN else task.purpose,
            environment=task.environment,
            environment_digest=task.environment_digest,
            verifier_digest=task.verifier_digest,
            stop_cause=done.cause,
            task_frame=lease.task_frame,
            transcript=to_text(episode.messages),
            artifact=artifact,
            wal_position=episode.wal_position,
            deadline_us=deadline_us,
            at_us=at_us,
            writer_id=self.worker_id,
        )


def bounded(text: str) -> tuple[str, str]:
    """Return a text of at most TEXT_BYTES_MAX bytes and the rule by which it was cut, if it was."""
    raw = text.encode()
    if len(raw) <= TEXT_BYTES_MAX:
        return text, ""
    return raw[:TEXT_BYTES_MAX].decode(errors="ignore"), f"head_{TEXT_BYTES_MAX}_bytes"
