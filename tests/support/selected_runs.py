"""Runs of one update whose dropped trajectories are known: any, the long ones, or late ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from schemas import topics
from schemas.ids import Version
from schemas.packing import Span, pack_spans
from tests.support.small_run import T0, made
from tests.support.table_process import Tables

N = 2_400
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
    """Return whether the fate of an episode is not known yet."""
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


def fill(tables: Tables, run: str, *, at_ms: int = T0 * 1000) -> None:
    """Put a run of `N` episodes of one group each into tables; at_ms: when it began."""
    is_trained = TRAINED[run]
    chance = random.Random(11)
    names = [
        {"run_id": run, "episode_id": f"{run}.{n}.0", "group_id": f"{run}.{n}"} for n in range(N)
    ]
    members, dropped = [], []
    for number, name in enumerate(names):
        if is_pending(number):
            continue
        if is_trained(number, chance):
            members.append(_member(name, number))
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
        tables.add(topic, records, at_ms=[at_ms + index for index in range(len(records))])


def _member(name: dict[str, str], number: int) -> dict[str, Any]:
    return {
        "episode_id": name["episode_id"], "group_id": name["group_id"], "partition": 0,
        "offset": number, "trajectory_offset": number, "environment": "digits", "lag_steps": 0,
        "lag_s": 0.0, "kl": 0.0, "age_ms": 0, "first_token_age_ms": 0,
        "action_tokens": LENGTHS[number], "kept_tokens": LENGTHS[number], "masked_low": 0,
        "masked_high": 0, "masked_other": {}, "reward": 1.0, "advantage": 0.0, "weight": 1.0,
        "repeat": 1,
    }  # fmt: skip
