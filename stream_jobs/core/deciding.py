"""The record that decides a group, and the `gated` records that follow from it; both are pure
functions of what was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemas.enums import DropReason, GateOutcome
from schemas.ids import RunId, WorkerId
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import MemberDecision
from schemas.rules.lineage import LearnerLog
from stream_jobs.core.gate import Arrived, OpenGroup, Owed
from stream_jobs.core.group_repair import baseline, repeats
from stream_jobs.core.staleness import Judged
from stream_jobs.settings import GroupRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes, and when. Unit of `at_us`: us."""

    run_id: RunId
    worker_id: WorkerId
    at_us: int


def decision_on(
    group: OpenGroup,
    *,
    judge: Callable[[Arrived], Judged],
    rule: GroupRule,
    learner: LearnerLog,
    is_draining: bool,
    writer: Writer,
) -> GateDecision:
    """Return the decision on a complete group: Admit or Drop for each member with a Trajectory.

    A valid member of a group that the rule drops is dropped as `group_incomplete`.
    """
    arrivals = sorted(group.firsts.values(), key=lambda arrived: arrived.offset)
    judged = [judge(arrived) for arrived in arrivals]
    times = repeats([one.is_valid for one in judged], size=group.size, rule=rule)
    rewards = [
        arrived.trajectory.reward
        for arrived, one in zip(arrivals, judged, strict=True)
        if arrived.trajectory is not None
        and arrived.trajectory.reward is not None
        and one.reason not in (DropReason.INVALID_RECORD, DropReason.NO_REWARD)
    ]
    shared = baseline(rewards)
    return GateDecision(
        run_id=writer.run_id,
        group_id=group.group_id,
        task_id=group.task_id,
        ordinal=group.ordinal,
        members=tuple(
            _member(arrived, one, count)
            for arrived, one, count in zip(arrivals, judged, times, strict=True)
        ),
        abandoned=tuple(sorted(group.abandoned)),
        group_mean=shared.mean,
        group_deviation=shared.deviation,
        group_count=shared.count,
        learner_epoch=learner.epoch,
        learner_ordinal=learner.newest_ordinal,
        draining=is_draining,
        at_us=writer.at_us,
        writer_id=writer.worker_id,
    )


def _member(arrived: Arrived, judged: Judged, count: int) -> MemberDecision:
    reason = judged.reason
    if judged.is_valid and count == 0:
        reason = DropReason.GROUP_INCOMPLETE
    admitted = reason is DropReason.NONE
    return MemberDecision(
        episode_id=arrived.episode_id,
        trajectory_offset=arrived.offset,
        outcome=GateOutcome.ADMIT if admitted else GateOutcome.DROP,
        reason=reason,
        weight=judged.weight if admitted else 0.0,
        repeat=count if admitted else 0,
        lag_steps=judged.lag_steps,
        age_ms=judged.age_ms,
    )


def gated_record(owed: Owed, *, committed: int, frame: bytes, writer: Writer) -> GatedTrajectory:
    """Return the `gated` record of an Admit. committed: the committed input offset of the
    partition, no higher one.

    frame: the framed Trajectory. The group's statistics are those of the decision, whoever made it.
    """
    decision, arrived = owed.decided.decision, owed.arrived
    return GatedTrajectory(
        run_id=writer.run_id,
        episode_id=arrived.episode_id,
        group_id=decision.group_id,
        trajectory_frame=frame,
        trajectory_offset=arrived.offset,
        trajectory_us=arrived.timestamp_ms * 1000,
        decision_offset=owed.decided.offset,
        input_offset=committed,
        weight=owed.member.weight,
        repeat=owed.member.repeat,
        group_mean=decision.group_mean,
        group_deviation=decision.group_deviation,
        group_count=decision.group_count,
        at_us=writer.at_us,
        writer_id=writer.worker_id,
    )
