"""Partial rollout: an iteration is released at exactly F12, and what it paused goes on first."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.enums import AbandonReason, EpisodeEventKind, GateOutcome, Purpose
from schemas.ids import EpisodeId
from schemas.records.episode_event import EpisodeEvent
from stream_jobs.core.issue import GiveLease, RequestPause
from stream_jobs.core.partial import PartialRules
from stream_jobs.scheduler import rules_of
from stream_jobs.settings import SchedulerSettings
from tests.unit.stream_jobs.scheduling import RULES, World

ADMIT = GateOutcome.ADMIT
HALF = replace(
    RULES, batch=8, max_concurrent=100,
    partial=PartialRules(share=Decimal("0.5"), prompts=4, completions=2),
)  # fmt: skip


def running(tasks: int = 4, rules: object = HALF) -> World:
    world = World(rules=rules)  # type: ignore[arg-type]
    world.start_learner()
    world.worker()
    world.offer(tasks)
    world.settle()
    return world


def requested(world: World) -> list[EpisodeId]:
    return [
        r.episode_id
        for _, _, r in world.log
        if isinstance(r, EpisodeEvent) and r.kind is EpisodeEventKind.PAUSE_REQUESTED
    ]


def pause_all(world: World) -> None:
    for rollout in list(world.ledger.rollouts()):
        if rollout.life.is_pause_requested:
            world.environment(rollout.episode_id, EpisodeEventKind.PAUSED)


def test_an_iteration_is_released_at_exactly_f12() -> None:
    world = running()
    for count, episode in enumerate(world.leased()[:4], start=1):
        assert requested(world) == []
        world.end(episode)
        done = world.settle()
        assert bool(requested(world)) == (count == 4), done
    assert len(requested(world)) == 4


@pytest.mark.parametrize(
    ("share", "needed"), [("0.07", 7), ("0.071", 8), ("0.5", 50), ("0.999", 100)]
)
def test_the_share_is_a_decimal_number(share: str, needed: int) -> None:
    settings = SchedulerSettings(batch=100, group_size=4, partial_share=Decimal(share))
    assert rules_of(settings).partial.needed == needed
    assert SchedulerSettings.model_validate({"partial_share": float(share)}).partial_share == (
        Decimal(share)
    )


def test_without_a_share_nothing_is_paused() -> None:
    world = running(rules=replace(HALF, partial=replace(HALF.partial, share=Decimal(1))))
    for episode in world.leased()[:7]:
        world.end(episode)
    world.settle()
    assert requested(world) == []


def test_paused_work_waits_for_the_next_iteration_and_resumes_before_anything_new() -> None:
    world = running(tasks=8)
    assert len(world.leased()) == 16
    first = [e for e in world.leased() if int(e.split(".")[1]) < 4]
    for episode in first[:4]:
        world.end(episode)
    world.settle()
    pause_all(world)
    assert not any(isinstance(c, GiveLease) for c in world.settle().commands)
    world.offer(4)
    for ordinal in (0, 1):
        world.gate(ordinal, {0: ADMIT, 1: ADMIT})
    world.now_ms += 1
    world.step([EpisodeId(e) for e in first[:4]])
    commands = world.look().commands
    assert [type(c) for c in commands[:4]] == [GiveLease] * 4
    assert all(isinstance(c, GiveLease) and c.is_resumed for c in commands[:4])
    assert [c.rollout.episode_id for c in commands[:4] if isinstance(c, GiveLease)] == first[4:]


def test_an_episode_that_was_paused_belongs_to_the_next_iteration() -> None:
    world = running(tasks=8)
    for episode in world.leased()[:4]:
        world.end(episode)
    world.settle()
    pause_all(world)
    world.now_ms += 1
    world.step([])
    world.settle()
    resumed = [r for r in world.ledger.rollouts() if r.life.pauses == 1 and r.is_leased]
    assert len(resumed) == 4
    assert len(requested(world)) == 4
    # Now the second iteration is released: its own stragglers pause, and those from before again.
    for episode in [e for e in world.leased() if int(e.split(".")[1]) >= 4][:4]:
        world.end(episode)
    world.settle()
    assert len(requested(world)) == 12
    assert {r.episode_id for r in resumed} <= set(requested(world)[4:])


def test_with_nothing_else_to_do_paused_work_goes_on_without_a_step() -> None:
    world = running()
    for episode in world.leased()[:4]:
        world.end(episode)
    world.settle()
    pause_all(world)
    world.settle()
    assert len(world.leased()) == 4


def test_a_paused_episode_finishes_or_is_discarded_within_its_iterations() -> None:
    world = running(tasks=8)
    for episode in world.leased()[:4]:
        world.end(episode)
    world.settle()
    pause_all(world)
    world.rules = replace(world.rules, max_concurrent=8)
    for _ in range(6):
        world.now_ms += 1
        world.step([])
    world.look()
    reasons = [getattr(r, "abandon_reason", AbandonReason.NONE) for _, _, r in world.log]
    assert reasons.count(AbandonReason.PAUSE_EXPIRED) == 4


def test_no_iteration_is_released_before_all_of_it_runs() -> None:
    world = running(tasks=3)
    for episode in world.leased()[:5]:
        world.end(episode)
    assert not any(isinstance(c, RequestPause) for c in world.settle().commands)
    assert requested(world) == []
    world.offer(1)
    world.settle()
    assert len(requested(world)) == 3


def test_evaluation_is_never_paused() -> None:
    world = running(tasks=3)
    world.offer(1, purpose=Purpose.EVALUATE)
    world.settle()
    for episode in world.leased()[:4]:
        world.end(episode)
    world.settle()
    assert {e.split(".")[1] for e in requested(world)} == {"2"}


def test_long_episodes_are_never_cut_by_the_scheduler() -> None:
    world = running(tasks=4)
    stragglers = set(world.leased()[6:])
    for episode in world.leased()[:6]:
        world.end(episode)
    for _ in range(4):
        world.settle()
        pause_all(world)
        world.now_ms += 1
        world.step([])
        world.settle()
    for episode in stragglers & set(world.leased()):
        world.end(episode)
    lives = {r.episode_id: r.life for r in world.ledger.rollouts()}
    assert all(lives[e].final_ended is not None for e in stragglers)
    assert all(lives[e].abandoned is None for e in stragglers)
