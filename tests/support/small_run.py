"""A small run as records, worked out by hand, for the views of the tables.

One environment worker, two inference workers, two groups of two episodes and one held-out episode.
Times are seconds after `T0`. Of the first group both episodes are trained by step 1; of the second
the gate drops one, and the other is still pending. Nothing else ever ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from schemas import topics
from schemas.codec import schema_text
from schemas.ids import Version
from schemas.packing import Span, Timing, pack_spans, pack_timing
from schemas.topics import Topic
from tests.support.table_process import Tables

RUN = "run-1"
T0 = 1_764_442_000
"""Seconds since 1970."""

WAIT_S, TRAIN_S, RECORD_S = 10, 6, 2
"""Phases of the first step, which ends 18 s after the learner began at T0 + 2."""


def made(topic: Topic[Any], **fields: Any) -> Any:
    """Return a record of the schema's defaults and these fields."""
    datum = {"run_id": RUN, "writer_id": "writer-0"}
    for field in json.loads(schema_text(topic.schema))["fields"]:
        default = field["default"]
        value = default.encode() if field["type"] == "bytes" else default
        datum.setdefault(field["name"], value)
    return topic.record.from_avro(datum | fields)


def _us(second: float) -> int:
    return round((T0 + second) * 1_000_000)


def episode(number: int) -> str:
    """Return the id of one of the episodes 0 to 4; 4 is held out."""
    return f"{RUN}.{number // 2}.{number % 2}"


def _group(number: int) -> str:
    return f"{RUN}.{number // 2}.g"


_TOKENS = (40, 60, 30, 20, 50)
"""Action tokens that the episodes sampled."""

Row = tuple[Topic[Any], float, Any]
"""Topic, broker time as seconds after T0, record."""


def rows() -> Iterator[Row]:
    """Yield the records of the run, each topic in its order."""
    yield topics.CONTROL, 0, made(topics.CONTROL, kind="start")
    for group in range(3):
        yield (
            topics.TASKS, 0.5,
            made(topics.TASKS, task_id=f"t{group}", group_id=_group(2 * group), ordinal=group,
                 environment="counter", purpose="evaluate" if group == 2 else "train"),
        )  # fmt: skip
    for number in range(5):
        yield from _episode(number)
    yield from _gate()
    yield from _learner()
    yield from _policies()
    for value in (2_000.0, 3_000.0, float("nan")):
        yield topics.METRICS, 5, made(topics.METRICS, name="exposure_wait_us", value=value)
    yield topics.METRICS, 5, made(topics.METRICS, name="gateway_overhead_us", value=500.0)
    for number in range(5):
        yield (
            topics.METRICS, 5,
            made(topics.METRICS, name="inter_token_us", value=10_000.0,
                 writer_id=f"inference-{number % 2}"),
        )  # fmt: skip
    yield (
        topics.METRICS, 5,
        made(topics.METRICS, name="environment_turn_s", value=0.25,
             labels={"environment": "counter"}),
    )  # fmt: skip
    yield (
        topics.WORKERS, 1,
        made(topics.WORKERS, worker_id="inference-0", role="inference", status="ready",
             incarnation="a", at_us=_us(1)),
    )  # fmt: skip


def _episode(number: int) -> Iterator[Row]:
    """Issued at 1, run from 2 to 4 + number, judged for half a second, assembled 0.2 s later."""
    ends, purpose = 4 + number, "evaluate" if number == 4 else "train"
    names = {"episode_id": episode(number), "group_id": _group(number)}
    own = names | {"purpose": purpose, "task_id": f"t{number // 2}"}
    events, tokens = topics.EPISODES, topics.TOKENS
    yield events, 1, made(events, kind="issued", **own, at_us=_us(1))
    yield events, 2, made(events, kind="leased", **own, attempt=1, worker_id="environment-0")
    writer = {"writer_id": f"inference-{number % 2}", "attempt": 1, "fence_number": 1}
    yield tokens, 2.1, made(tokens, kind="prompt", **names, **writer, count=10, at_us=_us(2.09))
    first, sampled = 10, _TOKENS[number]
    for part, (count, reason) in enumerate(((10, "none"), (sampled - 10, "stop"))):
        last = 2.5 + 0.01 * (count - 1 if part == 0 else sampled - 1)
        yield (
            tokens, last + 0.02,
            made(tokens, kind="action", **names, **writer, seq=part + 1, start=first, count=count,
                 finish_reason=reason, at_us=_us(last + 0.01),
                 spans=pack_spans([Span(first, first + count, Version(1, 0))]),
                 timing=pack_timing(Timing(
                     requested_us=_us(2.2), first_token_us=_us(2.5), last_token_us=_us(last),
                     prefilled_tokens=4, reused_tokens=6))),
        )  # fmt: skip
        first += count
    tools = topics.TOOL_EVENTS
    yield (
        tools, 3,
        made(tools, kind="result", **names, tool="add", exit_class="ok", duration_us=20_000),
    )  # fmt: skip
    if number == 3:
        return
    yield (
        events, ends,
        made(events, kind="ended", **own, attempt=1, stop_cause="policy_stop", queue_us=10_000,
             reset_us=100_000, step_us=200_000),
    )  # fmt: skip
    verdicts = topics.VERDICTS
    yield (
        verdicts, ends + 0.5,
        made(verdicts, **names, code="correct", reward=1.0, components={"right": 1.0},
             component_weights={"right": 1.0}, queued_us=100_000, duration_us=400_000,
             at_us=_us(ends + 0.5)),
    )  # fmt: skip
    trajectories = topics.TRAJECTORIES
    yield (
        trajectories, ends + 0.7,
        made(trajectories, **own, environment="counter", termination="success",
             stop_cause="policy_stop", verdict_code="correct", reward=1.0,
             reward_source="verdict", action_tokens=sampled - (5 if number == 1 else 0),
             superseded_tokens=5 if number == 1 else 0, turns=1, tool_calls=1,
             issued_us=_us(1), ended_us=_us(ends), verified_us=_us(ends + 0.5)),
    )  # fmt: skip


def _gate() -> Iterator[Row]:
    decisions, gated = topics.GATE_DECISIONS, topics.GATED
    member = {"trajectory_offset": 0, "weight": 1.0, "repeat": 1, "lag_steps": 0, "age_ms": 900}
    admit = {**member, "outcome": "admit", "reason": "none"}
    drop = {**member, "outcome": "drop", "reason": "lag", "lag_steps": 9}
    for group, members in (
        (0, [{**admit, "episode_id": episode(0)}, {**admit, "episode_id": episode(1)}]),
        (2, [{**drop, "episode_id": episode(2)}]),
    ):
        yield decisions, 7, made(decisions, group_id=_group(group), members=members)
    for number, at in ((0, 6), (1, 8)):
        yield (
            gated, at,
            made(gated, episode_id=episode(number), group_id=_group(number),
                 trajectory_frame=b"x"),
        )  # fmt: skip


def _learner() -> Iterator[Row]:
    steps = topics.LEARNER_STEPS
    members = []
    for number, lag in ((0, 0), (1, 1)):
        kept = _TOKENS[number] - (5 if number == 1 else 0) - 3
        members.append(
            {
                "episode_id": episode(number), "group_id": _group(number), "partition": 0,
                "offset": number, "trajectory_offset": number, "environment": "counter",
                "lag_steps": lag, "lag_s": 2.0 * lag, "kl": 0.01 * lag, "age_ms": 1_000,
                "first_token_age_ms": 5_000, "action_tokens": kept + 3, "kept_tokens": kept,
                "masked_low": 1, "masked_high": 2, "masked_other": {}, "reward": 1.0,
                "advantage": 0.0, "weight": 1.0, "repeat": 1,
            }
        )  # fmt: skip
    yield steps, 2, made(steps, kind="epoch_started", epoch=1, learner_id="learner-0")
    whole = WAIT_S + TRAIN_S + RECORD_S
    yield (
        steps, 2 + whole,
        made(
            steps, kind="step", epoch=1, number=1, ordinal=1, learner_id="learner-0",
            trained=members, loss_name="dis", losses={"dis": 0.5}, at_us=_us(2 + whole),
            phases_us={"wait_batch": WAIT_S * 10**6, "train": TRAIN_S * 10**6,
                       "record": RECORD_S * 10**6},
            metrics={"kl_nats": 0.005, "measured_tokens": 95.0, "reward_mean_reward": 1.0,
                     "ratio_p50_lag_le_0_ratio": 1.0,
                     "ratio_p95_lag_le_0_ratio": 1.2, "ratio_p99_lag_le_0_ratio": 1.3,
                     "measured_lag_le_0_tokens": 40.0, "sample_size_lag_le_0_tokens": 36.0},
        ),
    )  # fmt: skip


def _policies() -> Iterator[Row]:
    policies, refreshes = topics.POLICIES, topics.REFRESHES
    for number in (0, 1):
        yield policies, 1 + 19.5 * number, made(policies, epoch=1, number=number, ordinal=number)
    for worker in (0, 1):
        for kind, took in (("prepare", {}), ("serving", {"fetch_us": 50_000})):
            yield (
                refreshes, 3,
                made(refreshes, kind=kind, worker_id=f"inference-{worker}", epoch=1, number=0,
                     at_us=_us(3), **took),
            )  # fmt: skip
    # One of the two workers stands still for two seconds while the learner waits: half of that.
    yield (
        refreshes, 5,
        made(refreshes, kind="loaded", worker_id="inference-0", epoch=1, number=0, at_us=_us(5),
             pause_us=2_000_000, load_us=1_500_000),
    )  # fmt: skip


def fill(tables: Tables, *, more: Iterable[Row] = ()) -> None:
    """Put the run into tables, and more rows of its topics."""
    batches: dict[str, tuple[list[Any], list[int]]] = {}
    for topic, at_s, record in (*rows(), *more):
        records, times = batches.setdefault(topic.name, ([], []))
        records.append(record)
        times.append(round((T0 + at_s) * 1000))
    for name, (records, times) in batches.items():
        tables.add(topics.BY_NAME[name], records, at_ms=times)
