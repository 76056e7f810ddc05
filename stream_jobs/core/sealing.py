"""The Trajectory of an ended episode, and the payload that goes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.enums import (
    DropReason,
    PayloadContent,
    RewardSource,
    Termination,
    TokenKind,
    ToolExit,
    VersionSwitch,
)
from schemas.errors import PoisonRecordError
from schemas.ids import RunId, Version, WorkerId
from schemas.packing import crc32c, pack_heavy, unpack_floats, unpack_spans, unpack_timing
from schemas.records.episode_event import EpisodeEvent
from schemas.records.parts import ChunkRef, PolicySpan
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.task import Task
from schemas.records.trajectory import Trajectory
from schemas.rules.episodes import Mark
from schemas.rules.tools import ToolLog
from schemas.rules.wal import EpisodeWal, Piece
from schemas.topics import CHUNK_BYTES_MAX
from stream_jobs.core.assembly import Assembly, Judged
from stream_jobs.core.heavy import Joined, join
from stream_jobs.core.outcome import Outcome, outcome_of

SIBLING_BRANCH = "sibling_branch"
"""Mask reason of action tokens that a fork cut off: accepted, and trained on no main line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRules:
    """Who seals, and by which rules."""

    run_id: RunId
    worker_id: WorkerId
    fault_reward: float
    switch: VersionSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A Trajectory that lacks only the positions of its chunks, and the chunks."""

    fields: Mapping[str, Any]
    """The fields of the Trajectory by name, `chunks` left out: it is built when they stand."""
    chunks: tuple[PayloadChunk, ...]

    @property
    def trajectory(self) -> Trajectory:
        """The Trajectory without its chunks."""
        return Trajectory(**self.fields)

    def placed(self, places: Sequence[tuple[int, int]]) -> Trajectory:
        """Return the Trajectory with (partition, offset) of each chunk."""
        refs = tuple(
            ChunkRef(
                partition=partition, offset=offset, length=len(chunk.body), crc32c=chunk.crc32c
            )
            for chunk, (partition, offset) in zip(self.chunks, places, strict=True)
        )
        return Trajectory(**self.fields, chunks=refs)


def seal(
    assembly: Assembly,
    task: Task | None,
    *,
    registry: Mapping[Version, str],
    rules: SealRules,
    at_us: int,
) -> Sealed:
    """Seal an episode with a final Ended. task: None when its frame could not be decoded: the gate
    names what lacks.
    """
    life = assembly.life
    issued, final = life.issued_mark, life.final_mark
    assert issued is not None
    assert final is not None
    wal = assembly.wal.ended_at(final.event.wal_position)
    joined = join(wal.pieces)
    judged = assembly.verdict
    outcome = _with_defect(
        outcome_of(
            final.event.stop_cause,
            judged.result if judged else None,
            fault_reward=rules.fault_reward,
        ),
        joined.defect or _wrong_verifier(judged, task),
    )
    is_whole = len(joined.heavy.logprobs) == 4 * joined.heavy.tokens
    blob = pack_heavy(joined.heavy) if is_whole else b""
    checksum = crc32c(blob)
    fields: dict[str, Any] = {
        **_identity(issued.event, task, assembly.digests),
        **_policy(joined.spans, registry),
        **_ending(final, judged, outcome),
        **_tokens(wal, joined, task),
        "version_switch": rules.switch,
        "tool_errors": _tool_errors(assembly.tools),
        "payload_length": len(blob),
        "payload_crc32c": checksum,
        "issued_us": issued.timestamp_ms * 1000,
        "at_us": at_us,
        "writer_id": rules.worker_id,
    }
    return Sealed(
        fields=fields, chunks=_chunks(issued.event, blob, checksum, rules=rules, at_us=at_us)
    )


def _identity(event: EpisodeEvent, task: Task | None, digests: str) -> dict[str, Any]:
    tokenizer, template, tools = _digests(digests)
    return {
        "run_id": event.run_id,
        "episode_id": event.episode_id,
        "group_id": event.group_id,
        "task_id": event.task_id,
        "ordinal": event.ordinal,
        "member": event.member,
        "group_size": event.group_size,
        "purpose": event.purpose,
        "environment": task.environment if task else "",
        "stream": task.stream if task else "",
        "tokenizer_digest": tokenizer,
        "template_digest": template,
        "tool_schema_digest": tools,
        "environment_digest": task.environment_digest if task else "",
        "verifier_digest": task.verifier_digest if task else "",
    }


def _policy(spans: tuple[PolicySpan, ...], registry: Mapping[Version, str]) -> dict[str, Any]:
    if not spans:
        return {}
    oldest = spans[0]
    return {
        "spans": spans,
        "oldest_epoch": oldest.epoch,
        "oldest_number": oldest.number,
        "policy_digest": registry.get(Version(oldest.epoch, oldest.number), ""),
    }


def _ending(final: Mark, judged: Judged | None, outcome: Outcome) -> dict[str, Any]:
    ended = final.event
    return {
        "attempt": ended.attempt,
        "termination": outcome.termination,
        "stop_cause": ended.stop_cause,
        "verdict_code": outcome.verdict_code,
        "reward": outcome.reward,
        "reward_components": outcome.components,
        "reward_source": outcome.source,
        "attribution": outcome.attribution,
        "turns": ended.turns,
        "tool_calls": ended.tool_calls,
        "ended_offset": final.offset,
        "verdict_offset": judged.offset if judged else -1,
        "ended_us": final.timestamp_ms * 1000,
        "verified_us": judged.timestamp_ms * 1000 if judged else 0,
    }


def _tokens(wal: EpisodeWal, joined: Joined, task: Task | None) -> dict[str, Any]:
    first = _first_action(wal)
    temperature, top_p, top_k = _sampling(first, task)
    return {
        "tokens": joined.heavy.tokens,
        "action_tokens": joined.action_tokens,
        "prompt_tokens": joined.prompt_tokens,
        "observation_tokens": joined.observation_tokens,
        "masked": _masked(wal),
        "superseded_tokens": wal.superseded_action_tokens,
        "tokens_first": wal.first_offset,
        "tokens_end": wal.last_offset,
        "first_token_us": _first_token_us(first),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }


def oldest_version(assembly: Assembly) -> Version | None:
    """Return the version of the first action token, or None when nothing was sampled or its spans
    are damaged.
    """
    first = _first_action(assembly.wal)
    if first is None:
        return None
    try:
        spans = unpack_spans(first.commit.spans)
    except ValueError:
        return None
    except PoisonRecordError:
        return None
    return spans[0].version if spans else None


def _first_action(wal: EpisodeWal) -> Piece | None:
    return next((piece for piece in wal.pieces if piece.kind is TokenKind.ACTION), None)


def _with_defect(outcome: Outcome, defect: str) -> Outcome:
    if not defect:
        return outcome
    # Not the policy's doing: the gate reads the reason here, and nothing of it is trained.
    return replace(
        outcome,
        termination=Termination.INFRASTRUCTURE_ERROR,
        reward=None,
        source=RewardSource.NONE,
        attribution=defect,
    )


def _wrong_verifier(judged: Judged | None, task: Task | None) -> str:
    if judged is None or task is None or judged.result.verifier_digest == task.verifier_digest:
        return ""
    return f"{DropReason.VERSION_MISMATCH}: the verdict at {judged.offset} is by another verifier"


def _chunks(
    issued: EpisodeEvent, blob: bytes, checksum: int, *, rules: SealRules, at_us: int
) -> tuple[PayloadChunk, ...]:
    parts = [blob[at : at + CHUNK_BYTES_MAX] for at in range(0, len(blob), CHUNK_BYTES_MAX)]
    return tuple(
        PayloadChunk(
            run_id=rules.run_id,
            episode_id=issued.episode_id,
            group_id=issued.group_id,
            content=PayloadContent.TRAJECTORY_TOKENS,
            part=part,
            parts=len(parts),
            body=body,
            crc32c=checksum if len(parts) == 1 else crc32c(body),
            at_us=at_us,
            writer_id=rules.worker_id,
        )
        for part, body in enumerate(parts)
    )


def _digests(text: str) -> tuple[str, str, str]:
    parts = [*text.split(), "", "", ""]
    return parts[0], parts[1], parts[2]


def _sampling(first: Piece | None, task: Task | None) -> tuple[float, float, int]:
    try:
        resolved = unpack_floats(first.commit.sampling) if first else ()
    except PoisonRecordError:
        resolved = ()
    if len(resolved) >= 3:
        return float(resolved[0]), float(resolved[1]), int(resolved[2])
    if task is not None:
        return task.temperature, task.top_p, task.top_k
    return 1.0, 1.0, 0


def _first_token_us(first: Piece | None) -> int:
    if first is None:
        return 0
    try:
        return unpack_timing(first.commit.timing).first_token_us
    except PoisonRecordError:
        return first.commit.at_us


def _masked(wal: EpisodeWal) -> dict[str, int]:
    if not wal.sibling_action_tokens:
        return {}
    return {SIBLING_BRANCH: wal.sibling_action_tokens}


def _tool_errors(tools: ToolLog) -> int:
    return sum(
        call.result is None or call.result.exit_class is not ToolExit.OK
        for call in tools.calls.values()
    )
