"""Age and lag of waiting and consumed trajectories, in whatever order the topics are read."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from schemas.enums import DropReason, GateOutcome, LearnerEventKind, Purpose
from schemas.ids import EpisodeId, GroupId, RunId, TaskId, Version, WorkerId
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import MemberDecision, SkippedMember, TrainedMember
from schemas.records.policy_version import PolicyVersion
from schemas.records.trajectory import Trajectory
from stream_jobs.core.lag_age import BufferWatch, Consumed, spread
from stream_jobs.core.stillness import Stillness

RUN = RunId("run-1")
LEARNER = WorkerId("learner-0")
START = Version(0, 0)
A, B = EpisodeId("run-1.0.0"), EpisodeId("run-1.1.0")


def trajectory(
    episode: EpisodeId,
    version: Version = START,
    purpose: Purpose = Purpose.TRAIN,
) -> Trajectory:
    return Trajectory(
        run_id=RUN, episode_id=episode, group_id=GroupId(f"{episode}.g"), task_id=TaskId("t"),
        purpose=purpose, environment="arithmetic", oldest_epoch=version.epoch,
        oldest_number=version.number, at_us=1, writer_id=WorkerId("assembler-0"),
    )  # fmt: skip


class Learner:
    """Writes learner-steps of one epoch in order."""

    def __init__(self, watch: BufferWatch) -> None:
        self.watch = watch
        self.offset = -1
        self.epoch = 0

    def tell(self, kind: LearnerEventKind, at_ms: int = 0, **fields: Any) -> list[Consumed]:
        self.offset += 1
        event = LearnerEvent(
            run_id=RUN, kind=kind, epoch=self.epoch, learner_id=LEARNER, at_us=1,
            writer_id=LEARNER, **fields,
        )  # fmt: skip
        return list(self.watch.take_learner_event(self.offset, at_ms, event))

    def begin(self, parent: int = 0) -> None:
        self.epoch += 1
        self.tell(LearnerEventKind.EPOCH_STARTED)
        self.tell(LearnerEventKind.RESTORED, parent_number=parent, parent_epoch=min(1, parent))

    def step(self, number: int, *episodes: EpisodeId, at_ms: int = 0) -> list[Consumed]:
        members = tuple(TrainedMember(episode_id=e, partition=0, offset=0) for e in episodes)
        return self.tell(
            LearnerEventKind.STEP, at_ms, number=number, ordinal=number, trained=members
        )


@pytest.fixture
def watch() -> BufferWatch:
    """An empty buffer."""
    return BufferWatch()


@pytest.fixture
def learner(watch: BufferWatch) -> Learner:
    """A learner that has begun."""
    one = Learner(watch)
    one.begin()
    return one


def see(watch: BufferWatch, record: Trajectory, at_ms: int = 0) -> list[Consumed]:
    return list(watch.take_trajectory(3, at_ms, record))


def decide(watch: BufferWatch, episode: EpisodeId, outcome: GateOutcome, offset: int = 0) -> None:
    member = MemberDecision(
        episode_id=episode, trajectory_offset=0, outcome=outcome,
        reason=DropReason.NONE if outcome is GateOutcome.ADMIT else DropReason.LAG,
    )  # fmt: skip
    record = GateDecision(
        run_id=RUN, group_id=GroupId(f"{episode}.g"), task_id=TaskId("t"), members=(member,),
        at_us=1, writer_id=WorkerId("gate-0"),
    )  # fmt: skip
    watch.take_decision(0, offset, record)


def test_age_and_lag_grow_while_a_trajectory_waits(watch: BufferWatch, learner: Learner) -> None:
    see(watch, trajectory(A), at_ms=1_000)
    see(watch, trajectory(B), at_ms=3_000)
    early = watch.sample(now_ms=4_000)
    assert (early.age_ms.max, early.age_ms.p50, early.age_ms.n) == (3_000, 1_000, 2)
    assert early.lag_steps.max == 0
    learner.step(1)
    learner.step(2)
    assert watch.sample(now_ms=9_000).lag_steps.max == 2


def test_what_is_consumed_is_told_with_its_age_and_its_lag_behind_the_version_that_consumed_it(
    watch: BufferWatch, learner: Learner
) -> None:
    learner.step(1, at_ms=10_000)
    see(watch, trajectory(A, Version(1, 1)), at_ms=11_000)
    learner.step(2, at_ms=14_000)
    (one,) = learner.step(3, A, at_ms=20_000)
    assert (one.age_ms, one.lag_steps, one.lag_ms, one.partition) == (9_000, 1, 4_000, 3)
    assert watch.waiting == 0


def test_the_order_of_the_topics_among_one_another_does_not_matter() -> None:
    found = []
    for order in permutations(("trajectory", "learner", "policy")):
        watch = BufferWatch()
        consumed: list[Consumed] = []
        for topic in order:
            if topic == "trajectory":
                consumed += see(watch, trajectory(A), at_ms=500)
            elif topic == "learner":
                learner = Learner(watch)
                learner.begin()
                consumed += learner.step(1, A, at_ms=2_000)
            else:
                watch.take_policy(policy(Version(1, 1), 1))
        found.append([(one.age_ms, one.lag_steps) for one in consumed])
        assert watch.waiting == 0
    assert found == [[(1_500, 0)]] * 6


def policy(version: Version, ordinal: int) -> PolicyVersion:
    return PolicyVersion(
        run_id=RUN, epoch=version.epoch, number=version.number, ordinal=ordinal, digest="d",
        location="l", at_us=1, writer_id=LEARNER,
    )  # fmt: skip


def test_a_version_that_nothing_names_is_counted_apart_until_a_policy_does(
    watch: BufferWatch, learner: Learner
) -> None:
    learner.step(1)
    see(watch, trajectory(A, Version(2, 5)))
    assert watch.sample(now_ms=1).unknown_versions == 1
    assert watch.sample(now_ms=1).lag_steps.n == 0
    watch.take_policy(policy(Version(2, 5), 1))
    assert watch.sample(now_ms=1).unknown_versions == 0


def test_the_first_decision_that_drops_and_a_skip_end_the_wait(
    watch: BufferWatch, learner: Learner
) -> None:
    see(watch, trajectory(A))
    see(watch, trajectory(B))
    decide(watch, A, GateOutcome.ADMIT, offset=0)
    decide(watch, A, GateOutcome.DROP, offset=1)
    assert watch.waiting == 2
    decide(watch, B, GateOutcome.DROP, offset=2)
    assert watch.waiting == 1
    skipped = SkippedMember(episode_id=A, partition=0, offset=0, reason=DropReason.AGE)
    learner.tell(LearnerEventKind.SKIPPED, skipped=(skipped,))
    assert watch.waiting == 0


def test_a_drop_that_is_read_before_its_trajectory_leaves_nothing_waiting(
    watch: BufferWatch,
) -> None:
    decide(watch, A, GateOutcome.DROP)
    assert see(watch, trajectory(A)) == []
    assert watch.waiting == 0


def test_a_step_that_a_restore_cuts_off_gives_its_trajectories_back(
    watch: BufferWatch, learner: Learner
) -> None:
    see(watch, trajectory(A))
    see(watch, trajectory(B))
    learner.step(1, A)
    learner.tell(LearnerEventKind.CHECKPOINTED, number=1, ordinal=1)
    learner.step(2, B)
    assert watch.waiting == 0
    learner.begin(parent=1)
    assert watch.waiting == 1
    (again,) = learner.step(2, B)
    assert again.episode_id == B


def test_copies_evaluations_and_records_of_a_fenced_learner_change_nothing(
    watch: BufferWatch, learner: Learner
) -> None:
    see(watch, trajectory(A))
    see(watch, trajectory(A), at_ms=9)
    see(watch, trajectory(B, purpose=Purpose.EVALUATE))
    assert watch.waiting == 1
    learner.epoch = 0
    assert learner.step(1, A) == []
    assert watch.waiting == 1


def test_nothing_waits_once_the_run_is_closed(watch: BufferWatch, learner: Learner) -> None:
    see(watch, trajectory(A))
    learner.tell(LearnerEventKind.CLOSED)
    assert watch.sample(now_ms=5).age_ms.n == 0


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    values = spread(range(1, 101))
    assert (values.p50, values.p95, values.p99, values.max, values.n) == (50, 95, 99, 100, 100)
    assert spread([7.0]).p50 == 7.0
    assert spread([]).n == 0


def test_a_reader_is_stuck_only_when_records_wait_and_none_is_read_for_so_long() -> None:
    still, place = Stillness(limit_ms=1_000), ("t", 0)

    def look(at: int, end: int, now_ms: int) -> bool:
        return bool(still.look(read={place: at}, ends={place: end}, now_ms=now_ms))

    assert not look(5, 5, 0)
    assert not look(5, 9, 5_000)
    assert not look(5, 9, 5_999)
    assert not look(6, 9, 6_100)
    assert not look(6, 9, 7_000)
    assert look(6, 12, 7_100)
    assert not look(12, 12, 9_000)
