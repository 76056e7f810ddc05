"""Trajectories and groups for tests of the gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.enums import (
    DropReason,
    EpisodeEventKind,
    LearnerEventKind,
    RewardSource,
    StopCause,
    Termination,
    VerdictCode,
)
from schemas.ids import Version, WorkerId, episode_id, group_id, task_id
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, PolicySpan
from schemas.records.trajectory import Trajectory
from schemas.rules.lineage import LearnerLog
from stream_jobs.core.gate import Arrived
from stream_jobs.core.staleness import Bounds, Judged, constant, judge
from tests.support.fake_rollout import DIGEST, RUN, digest_of
from tests.unit.stream_jobs.scheduling import author, issued_event

BOUNDS = Bounds(max_lag_steps=4, max_age_ms=600_000, weight=constant)
START = Version(0, 0)


def trajectory(
    ordinal: int = 0, member: int = 0, *, version: Version = START, **fields: Any
) -> Trajectory:
    """Return a whole trajectory that may be trained."""
    values: dict[str, Any] = {
        "group_size": 2,
        "policy_digest": digest_of(version),
        "tokenizer_digest": DIGEST,
        "template_digest": DIGEST,
        "tool_schema_digest": DIGEST,
        "environment_digest": DIGEST,
        "verifier_digest": DIGEST,
        "spans": (PolicySpan(start=3, end=8, epoch=version.epoch, number=version.number),),
        "oldest_epoch": version.epoch,
        "oldest_number": version.number,
        "termination": Termination.SUCCESS,
        "stop_cause": StopCause.POLICY_STOP,
        "verdict_code": VerdictCode.CORRECT,
        "reward": 1.0,
        "reward_source": RewardSource.VERDICT,
        "tokens": 8,
        "action_tokens": 5,
        "prompt_tokens": 3,
        "chunks": (ChunkRef(partition=0, offset=0, length=88, crc32c=1),),
    }
    return Trajectory(
        run_id=RUN,
        episode_id=episode_id(RUN, ordinal, member),
        group_id=group_id(RUN, ordinal),
        task_id=task_id(RUN, ordinal),
        ordinal=ordinal,
        member=member,
        at_us=1,
        writer_id=WorkerId("assembler-0"),
        **(values | fields),
    )


def arrived(record: Trajectory, offset: int = 0, timestamp_ms: int = 1_000) -> Arrived:
    """Return a trajectory as the gate reads it."""
    return Arrived(
        offset=offset,
        timestamp_ms=timestamp_ms,
        episode_id=record.episode_id,
        trajectory=record,
    )


def learner(steps: int = 0, epoch: int = 1) -> LearnerLog:
    """Return a learner's log after some steps."""
    log = LearnerLog()
    kinds = [LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED]
    kinds += [LearnerEventKind.STEP] * steps
    for offset, kind in enumerate(kinds):
        number = max(0, offset - 1)
        event = LearnerEvent(
            run_id=RUN,
            kind=kind,
            epoch=epoch,
            learner_id=WorkerId("learner-0"),
            number=number,
            ordinal=number,
            at_us=1,
            writer_id=WorkerId("learner-0"),
        )
        assert log.take(offset, 1_000, event)
    return log


def registry(steps: int) -> dict[Version, str]:
    """Return the registry after some steps of epoch 1."""
    versions = [START, *(Version(1, number) for number in range(1, steps + 1))]
    return {version: digest_of(version) for version in versions}


def judged(record: Trajectory, *, steps: int = 0, age_ms: int = 0, **fields: Any) -> Judged:
    """Judge a trajectory at a learner that has taken some steps."""
    values: dict[str, Any] = {
        "timestamp_ms": 1_000,
        "now_ms": 1_000 + age_ms,
        "learner": learner(steps),
        "registry": registry(steps),
        "bounds": BOUNDS,
        "is_draining": False,
    }
    return judge(record, **(values | fields))


def reason(record: Trajectory, **fields: Any) -> DropReason:
    """Return only the reason."""
    return judged(record, **fields).reason


def issued(ordinal: int, member: int = 0, *, size: int = 2, epoch: int = 1) -> EpisodeEvent:
    """Return an Issued by the scheduler of an epoch."""
    event = issued_event(ordinal, member=member, size=size, epoch=epoch)
    return replace(event, scheduler_id=author(epoch).scheduler_id)


def abandoned(ordinal: int, member: int = 0) -> EpisodeEvent:
    """Return an Abandoned by the scheduler of epoch 1."""
    return replace(issued(ordinal, member), kind=EpisodeEventKind.ABANDONED)
