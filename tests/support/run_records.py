"""Records of the later half of a recorded run: what was sealed, decided, gated and trained."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.enums import PayloadContent, RewardSource, StopCause, Termination, VerdictCode
from schemas.ids import EpisodeId, RunId, TaskId, WorkerId, group_id, group_of_episode
from schemas.packing import crc32c
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef, MemberDecision, PolicySpan, TrainedMember
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest

RUN = RunId("run-1")
WRITER = WorkerId("w")


def trajectory(
    episode: EpisodeId, attempt: int, ended: int, verdict: int, chunk: ChunkRef
) -> Trajectory:
    """Return the Trajectory of a correct episode of 13 tokens, 7 of them sampled."""
    return Trajectory(
        run_id=RUN,
        episode_id=episode,
        group_id=group_of_episode(episode),
        task_id=TaskId("t"),
        attempt=attempt,
        policy_digest="sha-0",
        tokenizer_digest="t",
        template_digest="p",
        tool_schema_digest="s",
        environment_digest="e",
        verifier_digest="v",
        spans=(PolicySpan(start=4, end=8, epoch=0, number=0),),
        termination=Termination.SUCCESS,
        stop_cause=StopCause.POLICY_STOP,
        verdict_code=VerdictCode.CORRECT,
        reward=1.0,
        reward_source=RewardSource.VERDICT,
        tokens=13,
        action_tokens=7,
        masked={"sibling_branch": 2},
        chunks=(chunk,),
        ended_offset=ended,
        verdict_offset=verdict,
        at_us=0,
        writer_id=WRITER,
    )


def verify_request(
    episode: EpisodeId, attempt: int, wal_position: int, worker: WorkerId
) -> VerifyRequest:
    """Return the request to judge an attempt."""
    return VerifyRequest(
        run_id=RUN,
        episode_id=episode,
        group_id=group_of_episode(episode),
        task_id=TaskId("t"),
        attempt=attempt,
        environment="counter",
        wal_position=wal_position,
        at_us=0,
        writer_id=worker,
    )


def verdict_on(episode: EpisodeId, attempt: int, request: int) -> VerifierResult:
    """Return the verdict that the attempt is correct."""
    return VerifierResult(
        run_id=RUN,
        episode_id=episode,
        group_id=group_of_episode(episode),
        attempt=attempt,
        verifier_digest="v",
        request_offset=request,
        code=VerdictCode.CORRECT,
        reward=1.0,
        at_us=0,
        writer_id=WRITER,
    )


def chunk_of(episode: EpisodeId, body: bytes) -> PayloadChunk:
    """Return a trajectory's only payload chunk."""
    return PayloadChunk(
        run_id=RUN,
        episode_id=episode,
        group_id=group_of_episode(episode),
        content=PayloadContent.TRAJECTORY_TOKENS,
        part=0,
        parts=1,
        body=body,
        crc32c=crc32c(body),
        at_us=0,
        writer_id=WRITER,
    )


def decision(
    ordinal: int, members: Sequence[MemberDecision], abandoned: Sequence[str] = ()
) -> GateDecision:
    """Return the decision on the group of a task."""
    return GateDecision(
        run_id=RUN,
        group_id=group_id(RUN, ordinal),
        ordinal=ordinal,
        members=tuple(members),
        abandoned=tuple(abandoned),
        at_us=0,
        writer_id=WRITER,
    )


def gated(episode: EpisodeId, trajectory_offset: int, decision_offset: int) -> GatedTrajectory:
    """Return the gated record of an admitted member."""
    return GatedTrajectory(
        run_id=RUN,
        episode_id=episode,
        group_id=group_of_episode(episode),
        trajectory_frame=b"",
        trajectory_offset=trajectory_offset,
        trajectory_us=0,
        decision_offset=decision_offset,
        input_offset=0,
        at_us=0,
        writer_id=WRITER,
    )


def member(episode: EpisodeId, offset: int, trajectory_offset: int) -> TrainedMember:
    """Return what a Step says of a member: 5 tokens kept, one rejected on either side."""
    return TrainedMember(
        episode_id=episode,
        partition=0,
        offset=offset,
        trajectory_offset=trajectory_offset,
        age_ms=50,
        action_tokens=7,
        kept_tokens=5,
        masked_low=1,
        masked_high=1,
        reward=1.0,
    )
