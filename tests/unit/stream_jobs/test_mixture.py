"""Which task stands at an ordinal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.enums import EpisodeEventKind, Purpose
from stream_jobs.core.mixture import Mixture
from stream_jobs.core.offering import Offering
from tests.support.fake_rollout import task
from tests.unit.stream_jobs.scheduling import author, issued_event


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**40), st.integers(0, 50)
)
def test_every_block_holds_each_component_exactly_weight_times(
    weights: list[int], seed: int, block: int
) -> None:
    mixture = Mixture(weights=tuple(weights), seed=seed)
    total = sum(weights)
    drawn = Counter(mixture.at(block * total + i).component for i in range(total))
    assert [drawn[i] for i in range(len(weights))] == weights


def test_each_component_counts_its_own_tasks_without_gap_or_repeat() -> None:
    mixture = Mixture(weights=(3, 1), seed=5, evaluate_every=7)
    draws = [mixture.at(ordinal) for ordinal in range(700)]
    for component in (0, 1):
        for purpose, first in ((Purpose.TRAIN, 0), (Purpose.EVALUATE, mixture.held_out_first)):
            indices = [d.index for d in draws if d.component == component and d.purpose is purpose]
            count = min(len(indices), mixture.held_out_count)
            assert indices[:count] == list(range(first, first + count))


def test_a_held_out_index_never_appears_in_training_and_the_share_is_exact() -> None:
    mixture = Mixture(weights=(1,), seed=1, evaluate_every=5, held_out_first=100, held_out_count=10)
    draws = [mixture.at(ordinal) for ordinal in range(1000)]
    assert all((d.index >= 100) == (d.purpose is Purpose.EVALUATE) for d in draws)
    assert sum(d.purpose is Purpose.EVALUATE for d in draws) == 200


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    one = [Mixture(weights=(1, 1), seed=1).at(i) for i in range(64)]
    assert one == [Mixture(weights=(1, 1), seed=1).at(i) for i in range(64)]
    assert one != [Mixture(weights=(1, 1), seed=2).at(i) for i in range(64)]


def test_the_source_stays_a_bounded_way_ahead_of_what_is_issued() -> None:
    offering = Offering()
    assert list(offering.wanted(look_ahead=3)) == [0, 1, 2]
    for ordinal in (0, 1, 2):
        offering.take_task(task(ordinal))
    assert not offering.wanted(look_ahead=3)
    offering.take_episode(0, author(1).fence(at_us=1))
    offering.take_episode(0, replace(issued_event(1), scheduler_id=author(1).scheduler_id))
    assert list(offering.wanted(look_ahead=3)) == [3]


def test_a_repeated_ordinal_and_a_void_scheduler_move_nothing() -> None:
    offering = Offering()
    offering.take_task(task(4))
    offering.take_task(task(4))
    assert (offering.next_ordinal, offering.repeats) == (5, 1)
    void = issued_event(0, epoch=3)
    assert void.kind is EpisodeEventKind.ISSUED
    before = offering.wanted(look_ahead=5)
    offering.take_episode(0, void)
    assert offering.wanted(look_ahead=5) == before


def test_a_hole_that_an_unknown_outcome_left_is_offered_first() -> None:
    offering = Offering()
    for ordinal in (0, 3):
        offering.take_task(task(ordinal))
    assert list(offering.wanted(look_ahead=6)) == [1, 2, 4, 5]
    assert list(offering.wanted(look_ahead=1)) == [1, 2]
