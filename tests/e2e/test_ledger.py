"""What became of each episode, marked as rows come: late, twice, in any order, and after a kill
between the marks of a minute and the note of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas import topics
from schemas.ids import Version
from schemas.packing import Span, pack_spans
from schemas.topics import Topic
from tests.support import small_run
from tests.support.small_run import made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ALL = (
    "trajectory_accounts", "token_accounts", "episode_ledger", "settled_lengths", "episode_runs",
)  # fmt: skip
SOURCES = (
    "episode_events", "trajectories", "gate_members", "skipped_members", "trained_members",
    "token_commits", "learner_events", "episode_marks", "attempt_marks", "rolled_minutes",
)  # fmt: skip
OF_EPISODES = (
    topics.EPISODES, topics.TOKENS, topics.TRAJECTORIES, topics.GATE_DECISIONS,
    topics.LEARNER_STEPS,
)  # fmt: skip
STRETCH = 20
"""The small run lasts twenty seconds; so stretched, its rows lie in several minutes."""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made_of = Tables(tmp_path_factory.mktemp("ledger"))
    yield made_of
    made_of.close()


@pytest.fixture
def tables(one: Tables) -> Tables:
    """Empty tables."""
    for name in SOURCES:
        one.run(f"TRUNCATE TABLE {name}")
    return one


def add(tables: Tables, topic: Topic[Any], at_s: float, *records: Any) -> None:
    at_ms = round(1000 * (small_run.T0 + STRETCH * at_s))
    tables.add(topic, records, at_ms=[at_ms] * len(records))


def told(tables: Tables) -> dict[str, list[tuple[Any, ...]]]:
    return {
        view: [tuple(row.values()) for row in tables.ask(f"SELECT * FROM {view} ORDER BY ALL")]
        for view in ALL
    }


def test_rows_that_come_late_and_in_any_order_are_marked_as_those_that_came_at_once(
    tables: Tables,
) -> None:
    rows = [row for row in small_run.rows() if row[0] in OF_EPISODES]
    for topic, at_s, record in rows:
        add(tables, topic, at_s, record)
    tables.roll()
    at_once = told(tables)
    assert all(at_once.values())
    for name in SOURCES:
        tables.run(f"TRUNCATE TABLE {name}")
    random.Random(1).shuffle(rows)
    for number, (topic, at_s, record) in enumerate(rows):
        add(tables, topic, at_s, record)
        # As a sink does that goes on: minutes are marked while their rows still come.
        if number % 12 == 0:
            tables.roll()
    tables.roll()
    assert told(tables) == at_once


def test_minutes_that_were_marked_and_not_noted_are_marked_again_and_say_the_same(
    tables: Tables,
) -> None:
    small_run.fill(tables)
    tables.roll()
    before = told(tables)
    (count,) = tables.one(
        "SELECT count() FROM rolled_minutes WHERE rollup LIKE 'episode_marks%'"
    ).values()
    # Killed between the two: the marks stand, the note of them does not.
    tables.run("TRUNCATE TABLE rolled_minutes")
    assert tables.roll() > count > 0
    assert told(tables) == before
    # Killed before the marks: what comes next makes up for it.
    tables.run("TRUNCATE TABLE episode_marks")
    assert tables.ask("SELECT * FROM token_accounts") == []
    tables.run("TRUNCATE TABLE rolled_minutes")
    tables.roll()
    tables.run("OPTIMIZE TABLE episode_marks FINAL")
    assert told(tables) == before


NAMES = {"episode_id": "run-1.7.0", "group_id": "run-1.7.g"}
MEMBER = {
    "episode_id": "run-1.7.0", "trajectory_offset": 0, "outcome": "drop", "reason": "lag",
    "weight": 1.0, "repeat": 1, "lag_steps": 9, "age_ms": 0,
}  # fmt: skip


def _step(**skipped: Any) -> Any:
    return made(
        topics.LEARNER_STEPS, kind="step", epoch=1, ordinal=1,
        skipped=[{
            "episode_id": "run-1.7.0", "partition": 0, "offset": 0, "lag_steps": 0, "age_ms": 0,
            "action_tokens": 1, **skipped,
        }],
    )  # fmt: skip


def test_of_several_reasons_the_earliest_of_the_last_stage_is_told(tables: Tables) -> None:
    def fate() -> tuple[Any, ...]:
        tables.roll()
        return tuple(tables.one("SELECT outcome, reason FROM episode_fates").values())

    own = NAMES | {"purpose": "train"}
    add(tables, topics.EPISODES, 50, made(topics.EPISODES, kind="issued", **own))
    assert fate() == ("pending", "")
    add(
        tables,
        topics.EPISODES,
        40,
        made(topics.EPISODES, kind="abandoned", **own, abandon_reason="retries_exhausted"),
    )
    assert fate() == ("abandoned", "retries_exhausted")
    for at_s, reason in ((30, "lag"), (5, "age")):
        member = MEMBER | {"reason": reason}
        decision = made(topics.GATE_DECISIONS, group_id="run-1.7.g", members=[member])
        add(tables, topics.GATE_DECISIONS, at_s, decision)
        assert fate() == ("dropped", "lag")
    add(tables, topics.LEARNER_STEPS, 2, _step(reason="orphaned_version"))
    assert fate() == ("dropped", "orphaned_version")


def test_an_attempt_runs_from_its_lease_to_its_last_event_whichever_comes_first(
    tables: Tables,
) -> None:
    def event(at_s: float, kind: str, attempt: int, worker: str = "environment-1") -> None:
        record = made(
            topics.EPISODES, kind=kind, attempt=attempt, worker_id=worker, **NAMES, purpose="train"
        )
        add(tables, topics.EPISODES, at_s, record)
        tables.roll()

    event(9, "ended", 1)
    assert tables.ask("SELECT * FROM episode_runs") == []
    event(8, "progress", 2)
    event(5, "leased", 1)
    event(7, "leased", 2, "environment-2")
    event(6, "progress", 1, "another")
    runs = "SELECT attempt, worker, ended - began AS us FROM episode_runs ORDER BY attempt"
    assert tables.ask(runs) == [
        {"attempt": 1, "worker": "environment-1", "us": 4 * STRETCH * 1_000_000},
        {"attempt": 2, "worker": "environment-2", "us": 1 * STRETCH * 1_000_000},
    ]


def test_tokens_of_an_episode_that_was_not_issued_are_superseded_and_have_no_fate(
    tables: Tables,
) -> None:
    for at_s, number, count in ((9, 3, 70), (1, 5, 30), (9.1, 2, 5)):
        spans = pack_spans([Span(0, count, Version(number % 2, number))])
        commit = made(topics.TOKENS, kind="action", **NAMES, attempt=1, count=count, spans=spans)
        add(tables, topics.TOKENS, at_s, commit)
        tables.roll()
    assert [
        tuple(row.values()) for row in tables.ask("SELECT * EXCEPT run_id FROM token_accounts")
    ] == [("superseded", "", 105)]
    assert tables.ask("SELECT * FROM episode_fates") == []
    row = tables.one("SELECT outcome, sampled_tokens, span_updates FROM episode_ledger")
    assert tuple(row.values()) == ("", 105, 3)
    # Issued late, it is pending with all that it sampled.
    add(tables, topics.EPISODES, 0, made(topics.EPISODES, kind="issued", **NAMES, purpose="train"))
    tables.roll()
    assert [
        tuple(row.values()) for row in tables.ask("SELECT * EXCEPT run_id FROM token_accounts")
    ] == [("pending", "", 105)]


def test_what_an_update_made_anew_kept_counts_in_place_of_what_was_rolled_back(
    tables: Tables,
) -> None:
    (step,) = [r for t, _, r in small_run.rows() if t is topics.LEARNER_STEPS and r.kind == "step"]
    anew = made(
        topics.LEARNER_STEPS, kind="step", epoch=2, number=1, ordinal=1, learner_id="learner-0",
        trained=[
            {name: getattr(member, name) for name in member.__dataclass_fields__}
            | {"kept_tokens": 1, "masked_low": 20, "masked_other": {"length": 7}}
            for member in step.trained
        ],
    )  # fmt: skip
    for first, second in ((step, anew), (anew, step)):
        for name in SOURCES:
            tables.run(f"TRUNCATE TABLE {name}")
        for topic in (topics.EPISODES, topics.TRAJECTORIES):
            add(tables, topic, 1, *(record for of, _, record in small_run.rows() if of is topic))
        add(tables, topics.LEARNER_STEPS, 20, first)
        tables.roll()
        add(tables, topics.LEARNER_STEPS, 40, second)
        tables.roll()
        kept = tables.ask(
            "SELECT kept_tokens, masked_low, masked_high, masked_other FROM episode_accounts "
            "WHERE outcome = 'trained'"
        )
        assert [tuple(row.values()) for row in kept] == [(1, 20, 2, 7)] * 2


def test_what_was_admitted_and_not_trained_is_dropped_once_the_run_is_closed(
    tables: Tables,
) -> None:
    small_run.fill(tables)
    tables.roll()
    asked = "SELECT outcome, reason, n FROM trajectory_accounts WHERE outcome != 'trained'"
    before = {(row["outcome"], row["reason"]): row["n"] for row in tables.ask(asked)}
    assert before["pending", ""] == 1
    admitted = {
        "episode_id": small_run.episode(3), "trajectory_offset": 0, "outcome": "admit",
        "reason": "none", "weight": 1.0, "repeat": 1, "lag_steps": 0, "age_ms": 900,
    }  # fmt: skip
    decision = made(topics.GATE_DECISIONS, group_id="run-1.1.h", members=[admitted])
    tables.add(topics.GATE_DECISIONS, [decision], at_ms=[(small_run.T0 + 50) * 1000])
    tables.roll()
    assert {(row["outcome"], row["reason"]): row["n"] for row in tables.ask(asked)} == before
    closed = made(topics.LEARNER_STEPS, kind="closed", epoch=1)
    tables.add(topics.LEARNER_STEPS, [closed], at_ms=[(small_run.T0 + 60) * 1000])
    after = {(row["outcome"], row["reason"]): row["n"] for row in tables.ask(asked)}
    assert after == {key: n for key, n in before.items() if key[0] != "pending"} | {
        ("dropped", "run_ended"): 1
    }
    dropped = "SELECT reason, n FROM trajectory_funnel WHERE stage = 'dropped' ORDER BY reason"
    assert [tuple(row.values()) for row in tables.ask(dropped)] == [("lag", 1), ("run_ended", 1)]


def test_what_is_written_again_is_counted_once_in_the_token_funnel(tables: Tables) -> None:
    asked = "SELECT stage, reason, tokens FROM token_funnel ORDER BY place, reason"
    steps = topics.LEARNER_STEPS
    skip = {
        "episode_id": small_run.episode(2), "partition": 0, "offset": 9, "reason": "lag",
        "lag_steps": 9, "age_ms": 900, "action_tokens": 30,
    }  # fmt: skip
    skipped = made(steps, kind="skipped", epoch=1, ordinal=1, skipped=[skip])
    small_run.fill(tables, more=[(steps, 30, skipped)])
    before = tables.ask(asked)
    counted = [tuple(row.values()) for row in before]
    assert [one for one in counted if one[0] not in ("prefilled", "reused")] == [
        ("sampled", "", 200), ("assembled", "", 175), ("superseded", "", 5), ("skipped", "lag", 30),
        ("masked", "dis_high", 4), ("masked", "dis_low", 2), ("trained", "", 89),
    ]  # fmt: skip
    for topic, at_s, record in small_run.rows():
        if topic is topics.TRAJECTORIES:
            tables.add(topic, [record], at_ms=[round((small_run.T0 + at_s + 1) * 1000)])
        elif topic is steps and record.trained:
            # A restored learner makes the same step again.
            again = replace(record, epoch=2)
            tables.add(topic, [again], at_ms=[(small_run.T0 + 40) * 1000])
    tables.add(steps, [skipped], at_ms=[(small_run.T0 + 41) * 1000])
    assert tables.ask("SELECT count() AS n FROM trained_members") == [{"n": 4}]
    assert tables.ask(asked) == before
