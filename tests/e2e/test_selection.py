"""Selection by length, on the embedded ClickHouse: runs whose dropped trajectories are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import ks_2samp

from schemas import topics
from schemas.ids import Version
from schemas.packing import Span, pack_spans
from tests.support.small_run import T0, made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

N = 2_400
AT_MS = T0 * 1000
_LAW = random.Random(7)
LENGTHS = [max(1, round(_LAW.lognormvariate(4.0, 1.0))) for _ in range(N)]
NO_LONG, AT_RANDOM, LATE_ONLY = "no-long", "at-random", "late-only"
TRAINED: dict[str, Callable[[int, random.Random], bool]] = {
    AT_RANDOM: lambda _, chance: chance.random() < 0.7,
    NO_LONG: lambda number, _: LENGTHS[number] <= sorted(LENGTHS)[int(0.7 * N)],
    LATE_ONLY: lambda number, _: number < 1_000 or LENGTHS[number] <= sorted(LENGTHS)[N // 2],
}
"""Runs, and which of their episodes are trained; others are dropped, one in fifty is pending."""


def is_pending(number: int) -> bool:
    return number % 50 == 49


ISSUED = made(topics.EPISODES, kind="issued", purpose="train")
TRAJECTORY = made(
    topics.TRAJECTORIES, purpose="train", environment="digits", termination="success",
    stop_cause="policy_stop", verdict_code="correct", reward=1.0, reward_source="verdict",
)  # fmt: skip
DROP = made(
    topics.GATE_DECISIONS,
    members=[
        {"episode_id": "", "trajectory_offset": 0, "outcome": "drop", "reason": "lag",
         "weight": 1.0, "repeat": 1, "lag_steps": 9, "age_ms": 0}
    ],
)  # fmt: skip
COMMITS = [
    made(
        topics.TOKENS, kind="action", attempt=1, fence_number=1, seq=seq, start=seq, count=1,
        spans=pack_spans([Span(seq, seq + 1, Version(1, number))]),
    )
    for seq, number in enumerate((0, 3))
]  # fmt: skip
"""Of one episode: the second is of a version three updates newer."""


def fill(tables: Tables, run: str, is_trained: Callable[[int, random.Random], bool]) -> None:
    """Put a run of `N` episodes of one group each into tables."""
    chance = random.Random(11)
    names = [
        {"run_id": run, "episode_id": f"{run}.{n}.0", "group_id": f"{run}.{n}"} for n in range(N)
    ]
    members, dropped = [], []
    for number, name in enumerate(names):
        if is_pending(number):
            continue
        if is_trained(number, chance):
            members.append(member(name, number))
        else:
            (one,) = DROP.members
            of_it = (replace(one, episode_id=name["episode_id"]),)
            dropped.append(replace(DROP, run_id=run, group_id=name["group_id"], members=of_it))
    step = made(
        topics.LEARNER_STEPS, run_id=run, kind="step", epoch=1, number=1, ordinal=1,
        learner_id="learner-0", trained=members,
    )  # fmt: skip
    trajectories = [
        replace(TRAJECTORY, **name, action_tokens=length)
        for name, length in zip(names, LENGTHS, strict=True)
    ]
    versions = [made(topics.POLICIES, run_id=run, epoch=1, number=n, ordinal=n) for n in range(4)]
    batches: list[tuple[Any, list[Any]]] = [
        (topics.EPISODES, [replace(ISSUED, **name) for name in names]),
        (topics.TRAJECTORIES, trajectories),
        (topics.GATE_DECISIONS, dropped),
        (topics.LEARNER_STEPS, [step]),
        (topics.POLICIES, versions),
        (topics.TOKENS, [replace(one, **name) for name in names[:1_000] for one in COMMITS]),
    ]
    for topic, records in batches:
        tables.add(topic, records, at_ms=[AT_MS + index for index in range(len(records))])


def member(name: dict[str, str], number: int) -> dict[str, Any]:
    return {
        "episode_id": name["episode_id"], "group_id": name["group_id"], "partition": 0,
        "offset": number, "trajectory_offset": number, "environment": "digits", "lag_steps": 0,
        "lag_s": 0.0, "kl": 0.0, "age_ms": 0, "first_token_age_ms": 0,
        "action_tokens": LENGTHS[number], "kept_tokens": LENGTHS[number], "masked_low": 0,
        "masked_high": 0, "masked_other": {}, "reward": 1.0, "advantage": 0.0, "weight": 1.0,
        "repeat": 1,
    }  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("selection"))
    for run, is_trained in TRAINED.items():
        fill(made_of, run, is_trained)
    yield made_of
    made_of.close()


def parts(tables: Tables, run: str) -> dict[int, dict[str, Any]]:
    rows = tables.ask(f"SELECT * FROM selection_by_length WHERE run_id = '{run}'")
    return {row["part"]: row for row in rows}


def test_the_distance_of_a_run_is_that_of_scipy_and_what_is_pending_is_left_out(
    tables: Tables,
) -> None:
    for run, is_trained in TRAINED.items():
        chance = random.Random(11)
        offered = [n for n in range(N) if not is_pending(n)]
        trained = [LENGTHS[n] for n in offered if is_trained(n, chance)]
        known = ks_2samp(trained, [LENGTHS[n] for n in offered], method="asymp")
        row = parts(tables, run)[-1]
        assert (row["offered"], row["trained"]) == (len(offered), len(trained))
        assert row["distance"] == pytest.approx(known.statistic)
        assert row["p"] == pytest.approx(known.pvalue, rel=0.2, abs=0.01)


def test_dropping_at_random_is_no_selection_and_dropping_what_is_long_is_an_alarm(
    tables: Tables,
) -> None:
    assert not any(row["is_alarm"] for row in parts(tables, AT_RANDOM).values())
    assert parts(tables, AT_RANDOM)[-1]["p"] > 0.01
    assert parts(tables, NO_LONG)[-1]["is_alarm"]
    assert parts(tables, NO_LONG)[-1]["p"] < 1e-6


def test_each_window_of_a_thousand_is_looked_at_and_a_short_last_one_gives_no_alarm(
    tables: Tables,
) -> None:
    found = parts(tables, LATE_ONLY)
    assert sorted(found) == [-1, 0, 1, 2]
    assert [found[part]["offered"] for part in (0, 1)] == [1_000, 1_000]
    assert [bool(found[part]["is_alarm"]) for part in (0, 1, 2)] == [False, True, False]
    assert found[2]["distance"] > 0.1


def test_the_span_of_versions_of_a_window_is_told_in_updates(tables: Tables) -> None:
    spans = parts(tables, AT_RANDOM)[0]
    assert (spans["span_p50"], spans["span_p99"]) == (3, 3)
