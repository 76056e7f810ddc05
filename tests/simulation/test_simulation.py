"""Seeded histories of the whole system under faults; `make test` plays some, `make sim` many.

`SLUICE_SIM_HISTORIES` says how many; the long run plays each profile and every mutant. A failing
seed prints its shrunk history; `python -m tests.simulation story SEED` tells it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from schemas.topics import EPISODES
from tests.simulation.faults import Ack, AckFault, AtRecord, Blow, ProcessFault
from tests.simulation.history import Profile, case_of, edges, play, shrink, sweep
from tests.simulation.mutants import MUTANTS, Mutant, find

_SHORT_S = 20.0
HISTORIES = int(os.environ.get("SLUICE_SIM_HISTORIES", "0"))
"""0: as many as fit into a part of the short run's 30 s. Unit: histories."""
_QUICK = ("expose before ack", "counters not re-seeded", "sealed before the tokens were read")
_LEARNING = (Profile.JUDGING, Profile.WHOLE)


@pytest.fixture(autouse=True)
def _edges() -> Iterator[None]:
    with edges():
        yield


@pytest.mark.timeout(3_600 if HISTORIES else 120)
def test_no_history_breaks_an_invariant() -> None:
    began = time.monotonic()
    count = 0
    while count < HISTORIES if HISTORIES else time.monotonic() - began < _SHORT_S:
        case = case_of(count)
        played = play(case)
        sweep(count)
        if played.violations:
            smaller = shrink(case)
            told = play(smaller, is_told=True)
            faults = "\n".join(map(str, smaller.faults))
            story = "\n".join(told.story)
            pytest.fail(f"seed {case.seed}: {played.violations}\nneeds\n{faults}\n{story}")
        count += 1
    assert count > 0


def test_a_seed_is_one_history() -> None:
    for profile in Profile:
        one, other = (play(case_of(3, profile), is_told=True) for _ in range(2))
        assert one.story == other.story
        assert one.callbacks == other.callbacks


def test_a_case_draws_acknowledgements_lost_and_processes_struck() -> None:
    faults = [fault for seed in range(200) for fault in case_of(seed).faults]
    fates = {fault.fate for fault in faults if isinstance(fault, AckFault)}
    blows = {fault.blow for fault in faults if isinstance(fault, ProcessFault)}
    assert fates == set(Ack)
    assert blows == set(Blow)


def test_half_the_seeds_draw_a_scene_beside_their_single_faults() -> None:
    scenes = [case_of(seed, profile).faults for seed in range(200) for profile in _LEARNING]
    moments = [any(isinstance(one, AtRecord) for one in faults) for faults in scenes]
    assert 0.2 < sum(moments) / len(moments) < 0.5, "some scenes are lost records alone"
    assert all(
        one.topic == EPISODES.name
        for seed in range(200)
        for one in case_of(seed, Profile.TOKENS).faults
        if isinstance(one, AtRecord)
    ), "the rollouts alone have no decisions, steps or versions"


def _killable() -> list[Mutant]:
    return [m for m in MUTANTS if HISTORIES or m.name in _QUICK]


@pytest.mark.timeout(3_600 if HISTORIES else 60)
@pytest.mark.parametrize("mutant", _killable(), ids=lambda mutant: mutant.name)
def test_a_rule_left_out_is_noticed(mutant: Mutant) -> None:
    found = find(mutant, seeds_max=1_000)
    assert found.case is not None, f"{found.histories} histories passed without the rule"
