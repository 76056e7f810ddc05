"""The rolling refresh: who is asked to change, when, and to what."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.core.refresh import (
    Command,
    Event,
    Prepare,
    RefreshLimits,
    RefreshState,
    Reported,
    Target,
    TargetChosen,
    Ticked,
    Trouble,
    Warn,
    Worker,
    WorkerSeen,
    behind,
    step,
)
from schemas.enums import RefreshEventKind
from schemas.ids import Version, WorkerId

LIMITS = RefreshLimits(
    at_once_max=1,
    prepare_timeout_ms=10_000,
    gone_after_ms=20_000,
    backoff_ms=1_000,
    backoff_max_ms=4_000,
    tries_max=3,
)
START, FIRST, SECOND = Version(0, 0), Version(1, 1), Version(1, 2)


@dataclass
class Fleet:
    """The core driven by hand."""

    limits: RefreshLimits = LIMITS
    now_ms: int = 1_000_000
    state: RefreshState = field(default_factory=RefreshState)
    warnings: list[tuple[str, Trouble]] = field(default_factory=list)

    def feed(self, event: Event) -> tuple[Command, ...]:
        self.state, commands = step(self.state, event, limits=self.limits)
        return commands

    def see(
        self, name: str, version: Version = START, *, incarnation: str = "a", ready: bool = True
    ) -> None:
        assert not self.feed(
            WorkerSeen(
                worker_id=WorkerId(name),
                incarnation=incarnation,
                version=version,
                seen_ms=self.now_ms,
                is_ready=ready,
            )
        )

    def choose(self, version: Version) -> None:
        assert not self.feed(TargetChosen(target=Target(version=version, digest=str(version))))

    def report(
        self, name: str, kind: RefreshEventKind, version: Version, incarnation: str = "a"
    ) -> None:
        assert not self.feed(
            Reported(worker_id=WorkerId(name), incarnation=incarnation, kind=kind, version=version)
        )

    def tick(self, after_ms: int = 0) -> list[tuple[str, Version]]:
        self.now_ms += after_ms
        self.warnings = []
        asked = []
        for command in self.feed(Ticked(now_ms=self.now_ms)):
            match command:
                case Prepare(worker_id=name, target=target):
                    asked.append((str(name), target.version))
                case Warn(worker_id=name, trouble=trouble):
                    self.warnings.append((str(name), trouble))
        return asked


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.see(name)
    return fleet


def test_nothing_is_asked_before_a_version_is_known_or_while_all_serve_it() -> None:
    fleet = fleet_of("a", "b")
    assert fleet.tick() == []
    fleet.choose(START)
    assert fleet.tick() == []
    assert behind(fleet.state) == ()


def test_two_workers_change_one_after_the_other() -> None:
    fleet = fleet_of("a", "b")
    fleet.choose(FIRST)
    assert fleet.tick() == [("a", FIRST)]
    assert fleet.tick() == []
    fleet.report("a", RefreshEventKind.LOADED, FIRST)
    assert fleet.tick() == []
    fleet.report("a", RefreshEventKind.SERVING, FIRST)
    assert behind(fleet.state) == ("b",)
    assert fleet.tick() == [("b", FIRST)]
    fleet.report("b", RefreshEventKind.SERVING, FIRST)
    assert fleet.tick() == []
    assert behind(fleet.state) == ()


def test_a_lone_worker_may_pause() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    assert fleet.tick() == [("a", FIRST)]


def test_of_three_workers_two_change_at_once_when_two_may() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.limits = RefreshLimits(**{**_fields(LIMITS), "at_once_max": 5})
    fleet.choose(FIRST)
    assert fleet.tick() == [("a", FIRST), ("b", FIRST)]


def test_versions_that_were_passed_over_are_skipped() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.choose(SECOND)
    fleet.choose(Version(1, 3))
    assert fleet.tick() == []
    fleet.report("a", RefreshEventKind.SERVING, FIRST)
    assert fleet.tick() == [("a", Version(1, 3))]


def test_a_worker_that_serves_an_orphaned_version_goes_back_to_a_lower_number() -> None:
    fleet = fleet_of()
    fleet.see("a", Version(1, 7))
    fleet.choose(Version(2, 6))
    assert fleet.tick() == [("a", Version(2, 6))]


def test_a_new_incarnation_is_asked_again() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.see("a", START, incarnation="b")
    assert fleet.tick() == [("a", FIRST)]


def test_an_older_process_that_goes_on_announcing_itself_takes_no_change_back() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.see("a", START, incarnation="b")
    assert fleet.tick() == [("a", FIRST)]
    fleet.see("a", START, incarnation="a")
    assert fleet.tick() == [], "the younger one was asked and has not answered yet"
    fleet.report("a", RefreshEventKind.SERVING, FIRST, incarnation="b")
    assert behind(fleet.state) == ()


def test_an_answer_of_an_earlier_incarnation_says_nothing() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.see("a", START, incarnation="b")
    fleet.tick()
    fleet.report("a", RefreshEventKind.SERVING, FIRST, incarnation="a")
    assert behind(fleet.state) == ("a",)


def test_a_worker_that_fell_silent_is_forgotten_and_the_other_may_then_change() -> None:
    fleet = fleet_of("a", "b")
    fleet.choose(FIRST)
    assert fleet.tick() == [("a", FIRST)]
    fleet.now_ms += 19_000
    fleet.see("b")
    assert fleet.tick(2_000) == [("b", FIRST)]
    assert ("a", Trouble.GONE) in fleet.warnings


def test_a_worker_that_ended_is_forgotten_at_once() -> None:
    fleet = fleet_of("a", "b")
    over = WorkerSeen(
        worker_id=WorkerId("a"),
        incarnation="a",
        version=START,
        seen_ms=fleet.now_ms,
        is_ready=False,
        is_over=True,
    )
    fleet.feed(over)
    fleet.choose(FIRST)
    assert fleet.tick() == [("b", FIRST)]


def test_a_worker_that_starts_or_drains_is_not_asked() -> None:
    fleet = Fleet()
    fleet.see("a", ready=False)
    fleet.choose(FIRST)
    assert fleet.tick() == []


def test_a_failed_worker_is_asked_again_after_pauses_that_double_to_a_bound() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    for pause_ms in (1_000, 2_000):
        assert fleet.tick() == [("a", FIRST)]
        fleet.report("a", RefreshEventKind.FAILED, FIRST)
        assert fleet.tick() == []
        fleet.see("a")
        assert fleet.tick(pause_ms - 1) == []
        fleet.see("a")
        fleet.tick(0)
        fleet.now_ms += 1
    assert fleet.tick() == [("a", FIRST)]


def fail_until_given_up(fleet: Fleet, name: str) -> list[tuple[str, Version]]:
    """Let every try of a worker with FIRST fail; return what the tick after that asks for."""
    asked = fleet.tick()
    for _ in range(LIMITS.tries_max):
        assert asked == [(name, FIRST)]
        fleet.report(name, RefreshEventKind.FAILED, FIRST)
        asked = fleet.tick()
        for other in tuple(fleet.state.workers):
            fleet.see(other)
        asked = asked or (fleet.tick(4_000) if not fleet.warnings else [])
    return asked


def test_after_its_tries_a_worker_waits_for_the_next_version() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fail_until_given_up(fleet, "a")
    assert fleet.warnings == [("a", Trouble.GAVE_UP)]
    fleet.see("a")
    assert fleet.tick(10_000) == []
    fleet.choose(SECOND)
    assert fleet.tick() == [("a", SECOND)]


def test_the_only_worker_that_serves_waits_for_a_failed_one() -> None:
    fleet = fleet_of("a", "b")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.report("a", RefreshEventKind.FAILED, FIRST)
    assert fleet.tick() == []
    assert fleet.tick(500) == []
    assert fleet.tick(500) == [("a", FIRST)]
    fleet.report("a", RefreshEventKind.SERVING, FIRST)
    assert fleet.tick() == [("b", FIRST)]


def test_the_only_worker_that_serves_does_not_wait_for_one_that_was_given_up() -> None:
    fleet = fleet_of("a", "b")
    fleet.choose(FIRST)
    assert fail_until_given_up(fleet, "a") == [("b", FIRST)]


def test_a_change_without_an_answer_fails_at_its_deadline() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.now_ms += LIMITS.prepare_timeout_ms
    fleet.see("a")
    assert fleet.tick() == []
    assert fleet.warnings == [("a", Trouble.TIMED_OUT)]
    assert fleet.tick(1_000) == [("a", FIRST)]


def test_what_a_worker_serves_replaces_its_lost_answer() -> None:
    fleet = fleet_of("a")
    fleet.choose(FIRST)
    fleet.tick()
    fleet.see("a", FIRST)
    assert fleet.state.workers[WorkerId("a")].change is None
    assert fleet.tick(LIMITS.prepare_timeout_ms + 1) == []
    assert fleet.warnings == []


def test_a_change_that_was_under_way_before_a_restart_is_not_asked_for_again() -> None:
    fleet = fleet_of("a", "b")
    fleet.report("a", RefreshEventKind.PREPARE, FIRST)
    fleet.choose(FIRST)
    assert fleet.tick() == []
    fleet.report("a", RefreshEventKind.SERVING, FIRST)
    assert fleet.tick() == [("b", FIRST)]


def _fields(limits: RefreshLimits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in RefreshLimits.__dataclass_fields__}


def check_tick(fleet: Fleet, asked: dict[str, Version], newest: Version, after_ms: int) -> None:
    """Tick, add what is asked for to `asked`, and assert what must hold of it."""

    def worker(name: str) -> Worker:
        return fleet.state.workers[WorkerId(name)]

    before = {str(n) for n, w in fleet.state.workers.items() if w.is_serving}
    new = dict(fleet.tick(after_ms))
    assert set(new).isdisjoint(asked)
    assert set(new.values()) <= {newest}
    asked |= new
    for name in tuple(asked):
        if worker(name).change is None:
            del asked[name]
    assert len(asked) <= fleet.limits.at_once_max
    given_up = [n for n, w in fleet.state.workers.items() if w.tries >= fleet.limits.tries_max]
    assert not before or before - set(new) or given_up


@pytest.mark.slow
@pytest.mark.parametrize("at_once_max", [1, 3])
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_happens_one_of_two_or_more_serving_workers_goes_on_serving(
    at_once_max: int, data: st.DataObject
) -> None:
    limits = RefreshLimits(**{**_fields(LIMITS), "at_once_max": at_once_max})
    names = ["a", "b", "c", "d"][: data.draw(st.integers(2, 4))]
    fleet = fleet_of(*names)
    fleet.limits = limits
    truth = dict.fromkeys(names, START)
    asked: dict[str, Version] = {}
    number = 0
    for _ in range(data.draw(st.integers(5, 40))):
        match data.draw(st.sampled_from(["publish", "serve", "fail", "see", "tick", "tick"])):
            case "publish":
                number += 1
                fleet.choose(Version(1, number))
            case "serve" if asked:
                name = data.draw(st.sampled_from(sorted(asked)))
                truth[name] = asked.pop(name)
                fleet.report(name, RefreshEventKind.SERVING, truth[name])
            case "fail" if asked:
                name = data.draw(st.sampled_from(sorted(asked)))
                fleet.report(name, RefreshEventKind.FAILED, asked.pop(name))
            case "see":
                for name in names:
                    fleet.see(name, truth[name])
            case "tick":
                for name in names:
                    fleet.see(name, truth[name])
                after_ms = data.draw(st.sampled_from([0, 100, 1_000, 5_000]))
                check_tick(fleet, asked, Version(1, number), after_ms)
            case _:
                pass


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(1, 3))
def test_once_nothing_fails_any_more_every_worker_comes_to_serve_the_newest_version(
    failures: list[int], at_once_max: int
) -> None:
    fleet = Fleet(limits=RefreshLimits(**{**_fields(LIMITS), "at_once_max": at_once_max}))
    left = {f"w{k}": count for k, count in enumerate(failures)}
    truth = dict.fromkeys(left, START)
    fleet.choose(SECOND)
    for _ in range(60):
        for name, version in truth.items():
            fleet.see(name, version)
        for name, version in fleet.tick(500):
            if left[name]:
                left[name] -= 1
                fleet.report(name, RefreshEventKind.FAILED, version)
            else:
                truth[name] = version
                fleet.report(name, RefreshEventKind.SERVING, version)
    assert set(truth.values()) == {SECOND}
    assert behind(fleet.state) == ()
