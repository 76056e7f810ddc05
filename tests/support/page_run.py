"""What the live page is shown in tests: the small run with something gone wrong, and a long run.

The long run began earlier. Its name is what a run's name must never become: markup, and the end of
a string. It made an update every 30 seconds of three trajectories, ten seconds of it a wait.
The lags of an update are all 0, but of every third one they are 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schemas import topics
from schemas.topics import Topic
from tests.support import small_run
from tests.support.small_run import Row, made
from tests.support.table_process import Tables

LONG = "it's <b>run</b> 2"
SILENT = "run-0"
"""A run that began and never sampled a token."""
UPDATES = 900
EVERY_S, WAIT_S, WORK_S = 30, 10, 20
LONG_BEGAN_S = -UPDATES * EVERY_S - 1_010
"""Seconds after `small_run.T0`. It ends 50 s into a minute."""
CROWD = 60
"""Workers, and trajectories, of the long run: more than a table of the page takes."""
ERRORS = 20
"""Kinds of its dead letters: more than the page shows."""
REFUSED = "digest of <i>1/1</i> differs"
POISON = "schema 9999 is unknown"


def fill(tables: Tables, rows: Iterable[Row]) -> None:
    """Put these records into tables."""
    batches: dict[str, tuple[list[object], list[int]]] = {}
    for topic, at_s, record in rows:
        records, times = batches.setdefault(topic.name, ([], []))
        records.append(record)
        times.append(round((small_run.T0 + at_s) * 1000))
    for name, (records, times) in batches.items():
        tables.add(topics.BY_NAME[name], records, at_ms=times)
    tables.roll()


def rows() -> Iterator[Row]:
    """Yield the records of both runs."""
    yield from small_run.rows()
    yield from _gone_wrong()
    yield from _long()
    began = LONG_BEGAN_S - 100
    yield topics.CONTROL, began, made(topics.CONTROL, run_id=SILENT, kind="start")
    yield (
        topics.WORKERS, began + 1,
        made(topics.WORKERS, run_id=SILENT, worker_id="inference-7", role="inference",
             status="starting", incarnation="a"),
    )  # fmt: skip


def _gone_wrong() -> Iterator[Row]:
    letters, refreshes = topics.DEAD_LETTERS, topics.REFRESHES
    for offset in (7, 8):
        yield (
            letters, 6,
            made(letters, kind="letter", origin_topic="verdicts.v1", origin_offset=offset,
                 consumer="assembler", error_class="PoisonRecordError", error=POISON),
        )  # fmt: skip
    yield (
        refreshes, 9,
        made(refreshes, kind="failed", worker_id="inference-1", epoch=1, number=1, detail=REFUSED),
    )  # fmt: skip


def _of_long(topic: Topic[Any], second: float, **fields: Any) -> Row:
    at = LONG_BEGAN_S + second
    micro = round((small_run.T0 + at) * 1_000_000)
    known = {field.name for field in topic.record.__dataclass_fields__.values()}
    when = {"at_us": micro} if "at_us" in known else {}
    return topic, at, made(topic, run_id=LONG, **when, **fields)


def _long() -> Iterator[Row]:
    events, steps, workers = topics.EPISODES, topics.LEARNER_STEPS, topics.WORKERS
    end = UPDATES * EVERY_S
    yield _of_long(topics.CONTROL, 0, kind="start")
    # Of the issued ones the first was given up; the last was issued in the run's last minute.
    for number, at in enumerate((5, 5, end - 20)):
        name = {"episode_id": f"{LONG}.{number}.0", "group_id": f"{LONG}.{number}.g"}
        yield _of_long(events, at, kind="issued", purpose="train", **name)
        if number == 0:
            yield _of_long(events, 9, kind="abandoned", abandon_reason="group_deadline", **name)
        yield _of_long(
            topics.TOKENS, at, kind="action", count=700 if number == 2 else 10, **name,
            finish_reason="stop", writer_id="inference-9",
        )  # fmt: skip
    for number in range(1, UPDATES + 1):
        yield _of_long(
            steps, number * EVERY_S, kind="step", epoch=1, number=number, ordinal=number,
            learner_id="learner-9", trained=[_member(number, place) for place in range(3)],
            phases_us={"wait_batch": WAIT_S * 10**6, "train": WORK_S * 10**6},
            metrics={"reward_mean_reward": 0.5},
        )  # fmt: skip
    for number in range(CROWD):
        yield _of_long(
            workers, 1, worker_id=f"verifier-{number:02}", role="verifier", status="ready",
            incarnation="a",
        )  # fmt: skip
        yield _of_long(
            topics.TRAJECTORIES, 449 * (number + 1), episode_id=f"{LONG}.{10 * number}.0",
            environment="counter", termination="success", purpose="train", reward=1.0,
            reward_source="verdict",
        )  # fmt: skip
    for number in range(ERRORS):
        yield _of_long(
            topics.DEAD_LETTERS, 2, kind="letter", origin_topic="verdicts.v1",
            consumer="assembler", error_class=f"Error{number}",
        )  # fmt: skip


def _member(number: int, place: int) -> dict[str, Any]:
    return {
        "episode_id": f"{LONG}.{10 * number}.{place}", "group_id": f"{LONG}.{10 * number}.g",
        "partition": 0, "offset": 3 * number + place, "trajectory_offset": 3 * number + place,
        "environment": "counter", "lag_steps": 9 if number % 3 == 0 else 0, "lag_s": 0.0,
        "kl": 0.0, "age_ms": 3_000 if number % 3 == 0 else 1_000, "first_token_age_ms": 5_000,
        "action_tokens": 7, "kept_tokens": 7, "masked_low": 0, "masked_high": 0,
        "masked_other": {}, "reward": 0.0 if place else 1.0, "advantage": 0.0, "weight": 1.0,
        "repeat": 1,
    }  # fmt: skip
