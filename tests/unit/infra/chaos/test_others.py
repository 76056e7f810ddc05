"""What untouched workers did around the deaths of others, from streams whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from infra.chaos.others import (
    NOTHING,
    WINDOW_MS,
    Moment,
    Standstill,
    Sums,
    moments,
    ratio,
    speed,
    throughput,
    untouched,
)

ALIVE, DEAD = "inference-1@0", "inference-0@0"
TICK_MS = 50
AT = Moment(from_ms=10_000, to_ms=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    at_ms: int
    count: int = 1
    attempt: int = 1
    writer: tuple[str, str] = (ALIVE, "a")
    is_action: bool = True
    ends_turn: bool = False


def turn(
    since_ms: int,
    to_ms: int,
    *,
    slow: float = 1.0,
    from_ms: float = math.inf,
    chance: random.Random | None = None,
) -> list[Commit]:
    """One turn that loses tokens at random after `from_ms`, so that its pace falls to `slow` of
    what it was; its last commit ends it.
    """
    chance, found = chance or random.Random(1), []
    for at_ms in range(since_ms, to_ms, TICK_MS):
        kept = slow if at_ms > from_ms else 1.0
        count = sum(chance.random() < kept for _ in range(chance.choice((1, 2, 3))))
        if count:
            found.append(Commit(at_ms=at_ms, count=count))
    return [*found[:-1], replace(found[-1], ends_turn=True)]


def campaign(seed: int, *, slow: float = 1.0) -> list[Sums]:
    """Forty deaths, at each of which the other worker has some turns in hand."""
    chance, found = random.Random(seed), []
    for _ in range(40):
        total = NOTHING
        for _ in range(chance.randint(1, 6)):
            since_ms = AT.from_ms - chance.randint(200, 3_000)
            to_ms = AT.from_ms + chance.randint(100, 3_000)
            commits = turn(since_ms, to_ms, slow=slow, from_ms=AT.to_ms, chance=chance)
            total += speed(commits, AT, frozenset({ALIVE}))
        found.append(total)
    return found


def test_forty_deaths_tell_an_unchanged_pace_from_one_that_falls_by_a_tenth() -> None:
    for seed in range(3):
        same, slower = ratio(campaign(seed)), ratio(campaign(seed, slow=0.9))
        assert same.n == slower.n == 40
        assert same.low is not None
        assert same.high is not None
        assert slower.high is not None
        assert same.low <= 1.0 <= same.high, f"seed {seed}"
        assert same.high - same.low < 0.12
        assert slower.high < 1.0, f"seed {seed}"


def test_a_turn_that_stands_still_counts_as_a_fall_and_is_not_left_out() -> None:
    stuck = [*turn(8_000, 10_000)[:-1], Commit(at_ms=99_000)]
    found = speed(stuck, AT, frozenset({ALIVE}))
    assert (found.after_tokens, found.after_ms >= WINDOW_MS) == (0, True)
    assert ratio([found, found]).mean == 0.0
    silent = throughput([(9_000, ALIVE, 7)], AT, frozenset({ALIVE}))
    assert (silent.before_tokens, silent.after_tokens) == (7, 0)


def test_a_turn_that_its_environment_left_is_no_fall_and_one_turned_away_from_is() -> None:
    begun = turn(8_000, 10_000)[:-1]
    again = Commit(at_ms=11_000, attempt=2, writer=(DEAD, "b"))
    assert speed([*begun, again], AT, frozenset({ALIVE})) == NOTHING
    elsewhere = replace(again, attempt=1)
    assert speed([*begun, elsewhere], AT, frozenset({ALIVE})).after_tokens == 0
    assert speed([*begun, elsewhere], AT, frozenset({ALIVE})).after_ms >= WINDOW_MS


def test_only_the_turns_of_untouched_workers_are_looked_at() -> None:
    commits = turn(8_000, 12_500)
    assert speed(commits, AT, frozenset({DEAD})) == NOTHING
    assert speed(turn(8_000, 9_500), AT, frozenset({ALIVE})) == NOTHING
    written = [(9_000, ALIVE, 3), (9_500, DEAD, 50), (11_000, ALIVE, 4), (13_000, ALIVE, 9)]
    found = throughput(written, AT, frozenset({ALIVE}))
    assert (found.before_tokens, found.after_tokens) == (3, 4)


def test_deaths_within_a_window_of_one_another_are_one_moment() -> None:
    found = list(moments([30_000, 10_000, 11_500, 13_500, 20_000]))
    assert [(one.from_ms, one.to_ms) for one in found] == [
        (10_000, 13_500), (20_000, 20_000), (30_000, 30_000),
    ]  # fmt: skip


def test_a_worker_that_was_hindered_around_a_moment_or_is_only_just_back_is_left_out() -> None:
    def left(one: Standstill) -> frozenset[str]:
        return untouched([ALIVE], AT, [one])

    down = Standstill(worker_id=ALIVE, from_ms=2_000, to_ms=5_999)
    assert left(down) == {ALIVE}
    assert left(replace(down, to_ms=6_001)) == frozenset()
    assert left(replace(down, to_ms=math.inf)) == frozenset()
    assert left(replace(down, from_ms=12_000, to_ms=13_000)) == {ALIVE}
    assert left(replace(down, from_ms=11_999, to_ms=13_000)) == frozenset()
    assert left(Standstill(worker_id=DEAD, from_ms=0, to_ms=math.inf)) == {ALIVE}
    assert left(Standstill(worker_id="", from_ms=11_000, to_ms=11_001)) == frozenset()


def test_one_moment_has_a_ratio_and_no_interval_and_none_has_neither() -> None:
    one = Sums(before_tokens=10, before_ms=1_000, after_tokens=10, after_ms=2_000)
    assert ratio([one, NOTHING]) == replace(ratio([one]), n=1)
    assert (ratio([one]).mean, ratio([one]).low) == (0.5, None)
    assert ratio([]).n == 0
