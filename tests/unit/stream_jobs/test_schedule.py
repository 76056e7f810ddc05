"""What the scheduler does next: bound, leases, retries, pauses and the end of a run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from schemas.enums import (
    AbandonReason,
    ControlKind,
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
    StopCause,
)
from schemas.ids import EpisodeId, WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from stream_jobs.core.issue import GiveLease, IssueGroup, Standing
from tests.support.fake_rollout import RUN
from tests.support.seeds import seeds
from tests.unit.stream_jobs.scheduling import RULES, World, author, issued_event

ADMIT, DROP = GateOutcome.ADMIT, GateOutcome.DROP


def ready() -> World:
    world = World()
    world.start_learner()
    world.worker()
    return world


def abandoned(world: World) -> list[tuple[str, AbandonReason]]:
    return [
        (record.episode_id, record.abandon_reason)
        for _, _, record in world.log
        if isinstance(record, EpisodeEvent) and record.kind is EpisodeEventKind.ABANDONED
    ]


def control(kind: ControlKind) -> ControlEvent:
    return ControlEvent(run_id=RUN, kind=kind, at_us=1, writer_id=WorkerId("cli"))


def test_groups_are_issued_whole_up_to_the_bound_and_then_wait_for_a_step() -> None:
    world = ready()
    world.offer(10)
    world.settle()
    assert world.ledger.held == 8
    assert len(world.leased()) == 8
    for episode in world.leased():
        world.end(episode)
    for ordinal in list(world.ledger.groups):
        world.gate(ordinal, {0: ADMIT, 1: ADMIT})
    done = world.settle()
    assert done.standing is Standing.LAG_BOUND
    assert "waits for a step" in done.reason
    world.step([])
    assert world.settle().standing is Standing.WORKING
    assert world.ledger.held == 12


def test_nothing_for_training_is_issued_between_a_learners_start_and_its_restored() -> None:
    world = ready()
    world.learner(LearnerEventKind.EPOCH_STARTED, epoch=2)
    world.offer(1)
    world.offer(1, purpose=Purpose.EVALUATE)
    assert world.settle().capacity == 0
    assert [group.purpose for group in world.ledger.groups.values()] == [Purpose.EVALUATE]
    for rollout in world.ledger.rollouts():
        world.trajectory(rollout.group.ordinal, rollout.member)
    done = world.settle()
    assert done.standing is Standing.RESTORING
    assert done.standing.is_stalled
    world.learner(LearnerEventKind.RESTORED, epoch=2)
    world.settle()
    assert Purpose.TRAIN in {group.purpose for group in world.ledger.groups.values()}


def test_a_dropped_an_abandoned_and_a_skipped_episode_free_their_places_at_once() -> None:
    world = ready()
    world.offer(10)
    world.settle()
    for episode in world.leased():
        world.end(episode)
    world.gate(0, {0: ADMIT, 1: DROP})
    assert world.ledger.held == 7
    world.skip(EpisodeId("run-1.0.0"))
    assert world.ledger.held == 6
    world.settle()
    assert world.ledger.held == 8


def test_without_a_worker_nothing_is_issued_and_the_state_has_a_name() -> None:
    world = World()
    world.offer(2)
    done = world.look()
    assert (done.commands, done.standing) == ((), Standing.NO_WORKERS)
    world.worker()
    assert world.look().standing is Standing.WORKING


def test_no_task_is_a_state_with_a_name() -> None:
    assert ready().look().standing is Standing.NO_TASKS


def test_a_worker_not_renewed_for_20_s_gets_no_more_leases() -> None:
    world = ready()
    world.offer(1)
    world.now_ms += 20_000
    assert world.look().standing is Standing.NO_WORKERS


def test_leases_go_to_the_emptiest_worker_within_its_capacity() -> None:
    world = World()
    world.worker("environment-0", capacity=1)
    world.worker("environment-1", capacity=3)
    world.offer(4)
    done = world.settle()
    holders = [r.life.lease.worker_id for r in world.ledger.rollouts() if r.life.lease]
    assert sorted(holders) == ["environment-0", *["environment-1"] * 3]
    assert done.waiting == 0


def test_a_group_cut_short_by_a_crash_is_completed_before_anything_else() -> None:
    world = ready()
    world.offer(1)
    event = replace(
        issued_event(0),
        scheduler_epoch=1,
        scheduler_id=world.author.scheduler_id,
    )
    world.write(event)
    assert world.ledger.held == 2
    (issue, lease) = world.look().commands
    assert isinstance(issue, IssueGroup)
    assert issue.members == (1,)
    assert isinstance(lease, GiveLease)


def test_a_group_cut_short_is_completed_and_given_up_when_the_run_drains() -> None:
    world = ready()
    world.rules = replace(RULES, steps=1)
    world.offer(2)
    for member in (0, 1):
        world.write(
            replace(
                issued_event(0, member=member),
                scheduler_epoch=1,
                scheduler_id=world.author.scheduler_id,
            )
        )
    world.step([])
    world.learner(LearnerEventKind.CHECKPOINTED)
    world.write(replace(issued_event(1), scheduler_epoch=1, scheduler_id=world.author.scheduler_id))
    world.settle()
    world.now_ms += 1_000
    assert world.settle().standing is Standing.ENDED
    assert {episode for episode, _ in abandoned(world)} == {
        f"run-1.{ordinal}.{member}" for ordinal in (0, 1) for member in (0, 1)
    }


def test_a_lease_is_over_only_after_the_log_was_read_past_its_end() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    world.now_ms += 30_000
    world.worker()
    assert world.ledger.overdue(now_ms=world.now_ms) == {0}
    assert world.look().commands == ()
    world.environment(EpisodeId("run-1.0.0"), EpisodeEventKind.PROGRESS, wal_position=5)
    world.ledger.expire({0}, sampled_at_ms=world.now_ms)
    (command,) = world.look().commands
    assert isinstance(command, GiveLease)
    assert command.rollout.member == 1
    assert world.log[-1][2].after_failures == {"lease_expired": 1}


def test_an_ended_by_an_older_attempt_changes_nothing() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    world.end(EpisodeId("run-1.0.0"), StopCause.INFRASTRUCTURE_ERROR)
    late = world.log[-1][2]
    world.settle()
    world.write(replace(late, stop_cause=StopCause.POLICY_STOP))
    assert world.ledger.groups[0].members[0].life.final_ended is None


def test_a_pause_takes_every_episode_back_and_a_resume_brings_them_first() -> None:
    world = ready()
    world.offer(6)
    world.settle()
    world.write(control(ControlKind.PAUSE))
    world.settle()
    for episode in world.leased():
        world.environment(episode, EpisodeEventKind.PAUSED)
    assert world.settle().standing is Standing.PAUSED
    world.write(control(ControlKind.RESUME))
    commands = world.look().commands
    assert [type(one) for one in commands] == [GiveLease] * 8
    assert all(isinstance(one, GiveLease) and one.is_resumed for one in commands)
    assert len(world.leased()) == 8


def test_a_paused_episode_that_cannot_resume_expires_by_updates() -> None:
    world = ready()
    world.offer(1)
    world.settle()
    for episode in world.leased():
        world.environment(episode, EpisodeEventKind.PAUSED)
    world.now_ms += 30_000
    for _ in range(6):
        world.step([])
    world.settle()
    assert {reason for _, reason in abandoned(world)} == {AbandonReason.PAUSE_EXPIRED}


def test_the_group_deadline_abandons_members_without_a_final_ended_only() -> None:
    world = ready()
    world.rules = replace(RULES, group_deadline_ms=60_000)
    world.offer(1)
    world.settle()
    world.end(EpisodeId("run-1.0.1"))
    world.now_ms += 60_000
    world.settle()
    assert abandoned(world) == [("run-1.0.0", AbandonReason.GROUP_DEADLINE)]


def test_evaluation_is_issued_although_the_bound_is_reached() -> None:
    world = ready()
    world.rules = replace(RULES, max_concurrent=100)
    world.offer(5)
    world.offer(1, purpose=Purpose.EVALUATE)
    world.settle()
    assert sorted(world.ledger.groups) == [0, 1, 2, 3, 5]
    assert world.ledger.held == 8
    for member in (0, 1):
        world.trajectory(5, member)
    assert 5 not in world.ledger.groups
    assert world.ledger.counts.evaluated == 2


def test_the_run_drains_at_its_budget_and_ends_when_everything_is_settled() -> None:
    world = ready()
    world.rules = replace(RULES, steps=1)
    world.offer(3)
    world.settle()
    world.end(EpisodeId("run-1.0.0"))
    world.end(EpisodeId("run-1.0.1"))
    world.step([])
    world.learner(LearnerEventKind.CHECKPOINTED)
    assert world.settle().standing is Standing.DRAINING
    assert abandoned(world) == []
    world.now_ms += 1_000
    world.settle()
    assert {reason for _, reason in abandoned(world)} == {AbandonReason.RUN_ENDED}
    assert len(abandoned(world)) == 4
    world.gate(0, {0: DROP, 1: DROP})
    assert world.settle().standing is Standing.ENDED
    assert world.ledger.control.end_of_stream is not None
    counts = world.ledger.counts
    assert (counts.issued, counts.dropped, counts.abandoned) == (6, 2, 4)


def random_event(world: World, dice: random.Random) -> None:
    leased = world.leased()
    complete = [
        group.ordinal
        for group in world.ledger.groups.values()
        if group.members and all(r.life.is_closed for r in group.members.values())
    ]
    match dice.randrange(8):
        case 0 | 1 if leased:
            world.end(dice.choice(leased))
        case 2 if leased:
            world.end(dice.choice(leased), StopCause.ENVIRONMENT_ERROR)
        case 3 if leased:
            world.environment(dice.choice(leased), EpisodeEventKind.PAUSED)
        case 4 | 5 if complete:
            ordinal = dice.choice(complete)
            members = world.ledger.groups[ordinal].members.values()
            alive = [r.member for r in members if r.life.final_ended is not None]
            world.gate(ordinal, {member: dice.choice((ADMIT, ADMIT, DROP)) for member in alive})
        case 6:
            if dice.random() < 0.3:
                world.step([])
        case _:
            world.now_ms += dice.choice((10, 1_000, 31_000))
            world.worker()
            partitions = world.ledger.overdue(now_ms=world.now_ms)
            world.ledger.expire(partitions, sampled_at_ms=world.now_ms)


@pytest.mark.parametrize("seed", seeds(12, quick=2))
def test_the_bound_holds_at_every_issue_also_after_a_restart(seed: int) -> None:
    dice = random.Random(seed)
    world = ready()
    world.size = dice.choice((1, 2, 4))
    world.offer(30)
    for _ in range(120):
        random_event(world, dice)
        if dice.random() < 0.1:
            # The newcomer reads everything, fences, and knows what the one before it knew.
            before = world.ledger
            world.ledger = world.rebuilt()
            assert world.ledger.held == before.held
            assert world.ledger.counts == before.counts
            world.take_over(author(world.author.epoch + 1))
        issues = world.ledger.counts.issued_train
        world.look()
        if world.ledger.counts.issued_train > issues:
            assert world.ledger.held <= world.bound
        assert len(world.leased()) <= world.rules.max_concurrent
        assert not any(group.missing for group in world.ledger.groups.values())


def test_a_straggler_holds_the_cursor_and_no_crash_skips_it_or_what_lies_above_it() -> None:
    # 675 of 736 prompts were skipped where the cursor was the highest that was issued (C02).
    world, tasks, straggler = ready(), 200, EpisodeId("run-1.7.0")
    world.rules, world.size = replace(RULES, retries_max={"worker_lost": 5}), 1
    world.offer(tasks)
    trained: Counter[EpisodeId] = Counter()

    def train_what_ends() -> None:
        while running := [e for e in world.leased() if e != straggler or e in done]:
            for episode in running:
                world.end(episode)
                world.gate(int(episode.split(".")[1]), {0: ADMIT})
            world.step(running)
            trained.update(running)
            world.learner(LearnerEventKind.CHECKPOINTED)
            world.settle()

    done: set[EpisodeId] = set()
    world.settle()
    train_what_ends()
    assert len(trained) == tasks - 1
    assert world.ledger.closed.lowest_open == 7
    world.ledger = world.rebuilt()
    world.take_over(author(world.author.epoch + 1))
    world.worker(incarnation="b")
    world.ledger.expire({0}, sampled_at_ms=world.now_ms)
    world.settle()
    assert world.ledger.closed.lowest_open == 7
    assert world.leased() == [straggler]
    assert world.ledger.groups[7].members[0].life.attempt == 2
    done.add(straggler)
    train_what_ends()
    assert set(trained) == {EpisodeId(f"run-1.{ordinal}.0") for ordinal in range(tasks)}
    assert set(trained.values()) == {1}
    assert world.ledger.closed.lowest_open == tasks


def test_what_a_superseded_scheduler_writes_is_void() -> None:
    world = ready()
    world.offer(4)
    old = world.author
    world.take_over(author(2))
    world.author = old
    world.look()
    assert world.ledger.groups == {}
    assert world.ledger.held == 0
