"""Consumption of `gated`: repeats, expiry, batches, and what a checkpoint remembers."""

from __future__ import annotations

import json
import random

import pytest

from learner.core.consume import Consumption
from learner.core.staleness import Bounds, LagRule, Lineage, judge, lag_weight
from schemas.enums import DropReason
from schemas.errors import InvariantError
from schemas.ids import Version
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.trajectory import Trajectory
from tests.support.gated_records import RUN, Rollout, trajectory_of

NOW_US = 1_000_000_000
LINEAGE = Lineage(
    ordinal=3,
    ordinals={Version(0, 0): 0, Version(1, 1): 1, Version(1, 2): 2, Version(1, 3): 3},
    published_us={Version(0, 0): 0, Version(1, 2): 5_000_000, Version(1, 3): 9_500_000},
    now_published_us=9_500_000,
)
BOUNDS = Bounds(lag_steps_max=2, age_ms_max=1_000)


def gated(
    ordinal: int,
    member: int = 0,
    *,
    at: int,
    input_offset: int = 0,
    version: Version = Version(1, 3),  # noqa: B008  a frozen value
    trajectory_us: int = NOW_US,
) -> tuple[GatedTrajectory, Trajectory]:
    rollout = Rollout(
        ordinal=ordinal, member=member, prompt=[1], actions=[2], logprobs=[-1.0], reward=1.0,
        version=version,
    )  # fmt: skip
    trajectory = trajectory_of(rollout, group_size=4)
    record = GatedTrajectory(
        run_id=RUN,
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        trajectory_frame=b"",
        trajectory_offset=at,
        trajectory_us=trajectory_us,
        decision_offset=0,
        input_offset=input_offset,
        group_count=4,
        at_us=1,
        writer_id=trajectory.writer_id,
    )
    return record, trajectory


def choose(consumption: Consumption, batch: int, *, whole_groups: bool = False) -> list[str]:
    chosen = consumption.choose(
        batch=batch, whole_groups=whole_groups, now_us=NOW_US, lineage=LINEAGE, bounds=BOUNDS
    )
    return [str(one.waiting.episode_id).removeprefix(f"{RUN}.") for one in chosen]


def test_a_second_copy_of_a_trajectory_is_a_repeat_and_no_drop() -> None:
    consumption = Consumption({0: 0})
    assert consumption.take(0, 0, *gated(0, at=5))
    assert not consumption.take(0, 1, *gated(0, at=5))
    assert consumption.waiting == 1
    assert consumption.take_repeats() == 1
    assert consumption.take_repeats() == 0


def test_a_trajectory_below_the_w_of_earlier_records_is_a_repeat() -> None:
    consumption = Consumption({0: 0})
    assert consumption.take(0, 0, *gated(9, at=20, input_offset=10))
    assert not consumption.take(0, 1, *gated(1, at=9))
    assert consumption.take(0, 2, *gated(2, at=10))


def test_the_w_that_a_record_names_itself_does_not_make_it_a_repeat() -> None:
    consumption = Consumption({0: 0})
    assert consumption.take(0, 0, *gated(0, at=4, input_offset=4))


def test_the_position_is_the_lowest_offset_that_is_not_settled() -> None:
    consumption = Consumption({0: 0})
    for index in range(4):
        consumption.take(0, index, *gated(index, at=index))
    consumption.settle([f"{RUN}.1.0", f"{RUN}.2.0"])  # type: ignore[list-item]
    assert consumption.positions() == {0: 0}
    consumption.settle([f"{RUN}.0.0"])  # type: ignore[list-item]
    assert consumption.positions() == {0: 3}
    assert consumption.next_offsets() == {0: 4}


def test_a_restored_consumption_takes_again_what_waited_though_w_has_passed_it() -> None:
    consumption = Consumption({0: 0})
    consumption.take(0, 0, *gated(0, at=0))
    consumption.take(0, 1, *gated(1, at=1))
    consumption.take(0, 2, *gated(2, at=7, input_offset=6))
    consumption.settle([f"{RUN}.1.0", f"{RUN}.2.0"])  # type: ignore[list-item]
    state = json.loads(json.dumps(consumption.to_state()))
    again = Consumption.from_state(state, {0: 0, 1: 5})
    assert again.next_offsets() == {0: 0, 1: 5}
    assert again.take(0, 0, *gated(0, at=0))
    assert not again.take(0, 1, *gated(1, at=1))
    assert not again.take(0, 2, *gated(2, at=7, input_offset=6))


def test_random_logs_with_repeats_and_restores_train_each_trajectory_once() -> None:
    for seed in range(60):
        _one_random_history(random.Random(seed))


def _one_random_history(chance: random.Random) -> None:
    """A gate writes trajectories with repeats; the learner trains, checkpoints, crashes."""
    log: list[tuple[int, int]] = []
    open_offsets: list[int] = []
    for at in range(20):
        open_offsets.append(at)
        chance.shuffle(open_offsets)
        for _ in range(chance.randrange(3)):
            if open_offsets:
                finished = open_offsets.pop()
                floor = min([*open_offsets, finished, at + 1])
                log.append((finished, floor))
                if chance.random() < 0.3:
                    log.append((finished, floor))
    saved, surviving = Consumption({0: 0}).to_state(), set[str]()
    trained: set[str] = set()
    consumption = Consumption({0: 0})
    for _ in range(60):
        action = chance.random()
        offset = consumption.next_offsets()[0]
        if action < 0.6 and offset < len(log):
            at, floor = log[offset]
            consumption.take(0, offset, *gated(at, at=at, input_offset=floor))
        elif action < 0.85:
            chosen = choose(consumption, 2)
            assert not set(chosen) & trained
            consumption.settle([f"{RUN}.{episode}" for episode in chosen])  # type: ignore[misc]
            trained |= set(chosen)
        elif action < 0.95:
            saved, surviving = json.loads(json.dumps(consumption.to_state())), set(trained)
        else:
            consumption, trained = Consumption.from_state(saved, {0: 0}), set(surviving)
    while (offset := consumption.next_offsets()[0]) < len(log):
        at, floor = log[offset]
        consumption.take(0, offset, *gated(at, at=at, input_offset=floor))
    waiting = {str(e).removeprefix(f"{RUN}.") for e in consumption.waiting_episodes()}
    assert trained | waiting == {f"{at}.0" for at, _ in log}
    assert not trained & waiting


def test_bounds_are_inclusive_and_an_orphan_is_told_from_a_stale_one() -> None:
    def reason(version: Version, age_ms: int = 0) -> DropReason:
        return judge(
            oldest=version,
            trajectory_us=NOW_US - 1000 * age_ms,
            first_token_us=0,
            now_us=NOW_US,
            lineage=LINEAGE,
            bounds=BOUNDS,
        ).reason

    assert reason(Version(1, 1)) is DropReason.NONE
    assert reason(Version(0, 0)) is DropReason.LAG
    assert reason(Version(1, 3), age_ms=1_000) is DropReason.NONE
    assert reason(Version(1, 3), age_ms=1_001) is DropReason.AGE
    assert reason(Version(2, 3)) is DropReason.ORPHANED_VERSION


def test_an_orphan_among_the_newer_versions_orphans_the_whole_trajectory() -> None:
    spans = {"ancestor": Version(1, 2), "cut off by a restart": Version(0, 9)}
    judged = judge(
        oldest=Version(1, 2), trajectory_us=NOW_US, first_token_us=0, now_us=NOW_US,
        lineage=LINEAGE, bounds=BOUNDS, versions=spans.values(),
    )  # fmt: skip
    assert judged.reason is DropReason.ORPHANED_VERSION


def test_lag_in_steps_and_seconds_matches_a_hand_worked_example() -> None:
    judged = judge(
        oldest=Version(1, 2), trajectory_us=NOW_US - 250_000, first_token_us=NOW_US - 750_000,
        now_us=NOW_US, lineage=LINEAGE, bounds=BOUNDS,
    )  # fmt: skip
    assert judged.lag_steps == 1
    assert judged.lag_s == pytest.approx(4.5, abs=1e-6)
    assert (judged.age_ms, judged.first_token_age_ms) == (250, 750)


def test_a_clock_behind_the_brokers_counts_as_age_zero() -> None:
    judged = judge(
        oldest=Version(1, 3), trajectory_us=NOW_US + 5, first_token_us=0, now_us=NOW_US,
        lineage=LINEAGE, bounds=BOUNDS,
    )  # fmt: skip
    assert (judged.age_ms, judged.clock_skew) == (0, True)


def test_a_version_above_the_consuming_one_stops_the_process() -> None:
    lineage = Lineage(ordinal=1, ordinals={Version(1, 2): 2}, published_us={}, now_published_us=0)
    with pytest.raises(InvariantError, match="above"):
        judge(
            oldest=Version(1, 2), trajectory_us=0, first_token_us=0, now_us=0, lineage=lineage,
            bounds=BOUNDS,
        )  # fmt: skip


def test_the_down_weight_is_one_at_lag_zero_and_never_rises() -> None:
    bounds = Bounds(lag_steps_max=9, age_ms_max=1, rule=LagRule.DOWN_WEIGHT, decay=0.8)
    weights = [lag_weight(lag, bounds) for lag in range(10)]
    assert weights[0] == 1.0
    assert weights == sorted(weights, reverse=True)


def test_what_is_expired_is_settled_and_says_why() -> None:
    consumption = Consumption({0: 0})
    consumption.take(0, 0, *gated(0, at=0, version=Version(0, 0)))
    consumption.take(0, 1, *gated(1, at=1))
    skipped = consumption.expire(now_us=NOW_US, lineage=LINEAGE, bounds=BOUNDS)
    assert [(m.reason, m.lag_steps, m.offset) for m in skipped] == [(DropReason.LAG, 3, 0)]
    assert consumption.positions() == {0: 1}
    assert consumption.expired["lag", "arithmetic"] == 1
    assert consumption.expire(now_us=NOW_US, lineage=LINEAGE, bounds=BOUNDS) == ()


def test_a_batch_forms_at_exactly_its_size_in_order_of_arrival() -> None:
    consumption = Consumption({0: 0})
    for index in range(3):
        consumption.take(0, index, *gated(index, at=index))
    assert choose(consumption, 4) == []
    consumption.take(0, 3, *gated(3, at=3))
    assert choose(consumption, 4) == ["0.0", "1.0", "2.0", "3.0"]


def test_whole_groups_go_first_and_nothing_waits_for_one() -> None:
    consumption = Consumption({0: 0})
    order = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    for offset, (ordinal, member) in enumerate(order):
        consumption.take(0, offset, *gated(ordinal, member, at=offset))
    assert choose(consumption, 2, whole_groups=True) == ["0.0", "2.0"]
    assert choose(consumption, 2) == ["0.0", "1.0"]
    consumption.settle([f"{RUN}.0.0", f"{RUN}.2.0"])  # type: ignore[list-item]
    assert choose(consumption, 2, whole_groups=True) == ["1.0", "1.1"]


def test_a_stale_trajectory_cannot_be_chosen() -> None:
    consumption = Consumption({0: 0})
    consumption.take(0, 0, *gated(0, at=0, version=Version(0, 0)))
    with pytest.raises(InvariantError, match="stale"):
        choose(consumption, 1)


def test_trajectories_dropped_with_a_poison_record_are_repeats_when_they_come() -> None:
    consumption = Consumption({0: 0})
    consumption.take_unusable(0, 0, [3, 4])
    assert not consumption.take(0, 1, *gated(0, at=3))
    assert Consumption.from_state(consumption.to_state(), {}).is_taken(0, 4)


def test_an_offset_is_read_once() -> None:
    consumption = Consumption({0: 0})
    consumption.take(0, 4, *gated(0, at=0))
    with pytest.raises(InvariantError, match="read before"):
        consumption.take(0, 4, *gated(1, at=1))


def test_no_trained_token_lags_more_than_the_bound_on_a_thousand_random_schedules() -> None:
    chance = random.Random(5)
    for _ in range(1000):
        ordinals = {Version(1, number): number for number in range(8)}
        lineage = Lineage(ordinal=7, ordinals=ordinals, published_us={}, now_published_us=0)
        bounds = Bounds(lag_steps_max=chance.randrange(4), age_ms_max=chance.randrange(1, 2000))
        judged = judge(
            oldest=Version(1, chance.randrange(8)), trajectory_us=chance.randrange(3_000_000),
            first_token_us=0, now_us=3_000_000, lineage=lineage, bounds=bounds,
        )  # fmt: skip
        allowed = judged.lag_steps <= bounds.lag_steps_max and judged.age_ms <= bounds.age_ms_max
        assert (judged.reason is DropReason.NONE) is allowed
