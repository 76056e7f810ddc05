"""A learner killed between any two of its effects goes on so that every trajectory counts once."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.crash_points import CrashPoint
from schemas.enums import DropReason
from schemas.ids import Version
from schemas.topics import GATED, POLICIES
from tests.support.gated_records import RUN, random_group
from tests.support.learner_runs import BATCH, EDGES, GROUP, KilledError, LearnerWorld
from tests.support.memory_readers import MemoryConsumers

STEPS = 6
DEATHS = int(os.environ.get("SLUICE_EDGE_DEATHS", "6"))
"""How often the learner dies at each edge in the long check."""
DEATHS_A_RUN = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> LearnerWorld:
    world = LearnerWorld(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)
    world.admit(STEPS * BATCH // GROUP)
    asyncio.run(world.finish())
    return world


def check_once(world: LearnerWorld) -> None:
    log = world.read_log()
    assert log.closed is not None
    trained = world.trained()
    assert len(trained) == STEPS * BATCH == world.admitted
    assert set(trained.values()) == {1}
    assert log.trained_surviving.keys() == trained.keys()
    assert log.closed.counts["trained"] == world.admitted
    assert log.closed.counts["run_ended"] == 0
    shown = world.bus.groups[f"learner-{RUN}"].committed
    newest = world.events("checkpointed")[-1]
    assert {p.partition: p.offset for p in newest.positions} == {
        partition: floor.offset for partition, floor in shown.items()
    }
    for step in world.events("step"):
        assert all(member.lag_steps >= 0 for member in step.trained)


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("edge", EDGES)
async def test_after_a_kill_at_any_edge_every_trajectory_is_trained_once_and_the_weights_are_equal(
    tmp_path: Path, undisturbed: LearnerWorld, edge: CrashPoint, nth: int
) -> None:
    world = LearnerWorld(tmp_path / "killed", steps=STEPS)
    world.admit(STEPS * BATCH // GROUP)
    assert await world.die(edge, nth)
    before = world.read_log()
    await world.finish()
    check_once(world)
    assert [e.epoch for e in world.events("epoch_started")] == [1, 2]
    assert [step.policy_digest for step in world.counting_steps()] == [
        step.policy_digest for step in undisturbed.counting_steps()
    ]
    (restored,) = [e for e in world.events("restored") if e.epoch == 2]
    lost = before.newest_ordinal - restored.ordinal
    assert restored.counts["rolled_back_updates"] == max(0, lost)
    assert restored.counts["rolled_back_trajectories"] == max(0, lost) * BATCH
    assert bool(restored.detail) == (lost > 0)


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_kill_between_a_checkpoints_record_and_its_offset_commit_changes_nothing(
    tmp_path: Path, undisturbed: LearnerWorld, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    # The offsets are shown to others; what counts is in the checkpoint and in its record.
    mark, reached = MemoryConsumers.mark, []

    async def dies(self: MemoryConsumers, *place: Any, **floors: Any) -> None:
        if is_shown:
            await mark(self, *place, **floors)
        reached.append(floors)
        raise KilledError

    world = LearnerWorld(tmp_path / "killed", steps=STEPS)
    world.admit(STEPS * BATCH // GROUP)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryConsumers, "mark", dies)
        for deaths in (1, 2):
            with pytest.raises(KilledError):
                await world.learn(lambda: False)
            assert len(reached) == len(world.events("checkpointed")) == deaths
    await world.finish()
    check_once(world)
    assert world.read_log().lost == 0, "the checkpoint stands although nobody was shown"
    assert [step.policy_digest for step in world.counting_steps()] == [
        step.policy_digest for step in undisturbed.counting_steps()
    ]


@pytest.mark.slow
async def test_the_multiset_of_trained_ids_is_the_undisturbed_one_over_random_crash_points(
    tmp_path: Path, undisturbed: LearnerWorld
) -> None:
    expected = undisturbed.trained()
    rng = random.Random(20)
    for number in range(20):
        world = LearnerWorld(
            tmp_path / str(number),
            steps=STEPS,
            checkpoint_every=rng.choice((1, 2, 3)),
            partitions=rng.choice((1, 3)),
        )
        world.admit(STEPS * BATCH // GROUP)
        for _ in range(rng.randint(1, 4)):
            await world.die(rng.choice(EDGES), rng.randint(1, 4))
        await world.finish()
        check_once(world)
        assert world.trained() == expected, number


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * DEATHS)
@pytest.mark.parametrize("edge", EDGES)
async def test_a_learner_that_dies_at_one_edge_again_and_again_trains_every_trajectory_once(
    tmp_path: Path, edge: CrashPoint
) -> None:
    rng = random.Random(str(edge))
    deaths = 0
    while deaths < DEATHS:
        folder = tmp_path / str(deaths)
        world = LearnerWorld(
            folder,
            steps=STEPS,
            checkpoint_every=rng.choice((1, 2)),
            partitions=rng.choice((1, 3)),
        )
        world.admit(STEPS * BATCH // GROUP)
        died = [await world.die(edge, rng.randint(1, 2)) for _ in range(DEATHS_A_RUN)]
        assert any(died), "each run comes to its edge"
        deaths += sum(died)
        await world.finish()
        check_once(world)
        shutil.rmtree(folder)


@pytest.mark.parametrize("edge", EDGES)
async def test_no_version_is_announced_that_is_not_whole_or_that_no_step_names(
    tmp_path: Path, edge: CrashPoint
) -> None:
    world = LearnerWorld(tmp_path, steps=STEPS)
    world.admit(STEPS * BATCH // GROUP)
    assert await world.die(edge, 2)
    assert not list((tmp_path / "versions").glob(".making-*"))
    await world.finish()
    made = {(step.epoch, step.number): step.policy_digest for step in world.events("step")}
    for policy in world.bus.records(POLICIES):
        if policy.number:
            assert made[policy.epoch, policy.number] == policy.digest
    assert world.bus.records(POLICIES)[-1].ordinal == STEPS


async def test_tokens_of_a_lost_version_are_orphaned_and_never_have_a_negative_lag(
    tmp_path: Path,
) -> None:
    world = LearnerWorld(tmp_path, steps=STEPS)
    world.admit(6)
    assert await world.die(CrashPoint.AFTER_ANNOUNCEMENT, 4)
    (lost,) = [e for e in world.events("step") if e.ordinal == 3]
    orphaned = random_group(100, size=GROUP, version=Version(lost.epoch, lost.number))
    world.admitted += len(world.log.admit(orphaned))
    world.admit(6, first=6)
    await world.finish()
    skipped = [member for event in world.events("skipped") for member in event.skipped]
    assert {m.reason for m in skipped} == {DropReason.ORPHANED_VERSION}
    assert len(skipped) == GROUP
    log = world.read_log()
    assert not log.is_ancestor(Version(lost.epoch, lost.number))
    assert log.ordinal_of(Version(lost.epoch, lost.number)) == 3
    assert set(world.trained().values()) == {1}
    assert len(world.trained()) == STEPS * BATCH
    assert sum(world.bus.end(GATED.name, p) for p in range(world.bus.partitions)) == 52


async def test_a_learner_stopped_and_started_again_loses_no_update(
    tmp_path: Path, undisturbed: LearnerWorld
) -> None:
    world = LearnerWorld(tmp_path / "stopped", steps=STEPS)
    world.admit(STEPS * BATCH // GROUP)
    await world.learn(lambda: len(world.events("step")) >= 3)
    made = len(world.events("step"))
    await world.finish()
    check_once(world)
    assert world.read_log().lost == 0
    assert len(world.events("step")) == STEPS >= made
    assert (
        world.counting_steps()[-1].policy_digest == undisturbed.counting_steps()[-1].policy_digest
    )
