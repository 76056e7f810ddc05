"""Records of the later half of a recorded run: what was sealed, decided, gated and trained."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.enums import RewardSource, StopCause, Termination, VerdictCode
from schemas.ids import EpisodeId, RunId, TaskId, WorkerId, group_id, group_of_episode
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef, MemberDecision, PolicySpan, TrainedMember
from schemas.records.trajectory import Trajectory

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
