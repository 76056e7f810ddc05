"""Every quantity that the tables answer with p50, p95, p99, max and n: name, unit, meaning, source.

Invariants: a name ends in its unit; a sample is made from one row alone, so that a rollup that is
filled as rows come holds what the rows hold, and at most its environment from the task of its
group; lengths of time are never below zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table with samples, and how its rows name what percentiles are cut by."""

    table: str
    record: str
    """The record on the topic that the rows are made from."""
    worker: str = "writer_id"
    environment: str = ""
    """Expression; empty where the record does not say it. Then the group's task does."""
    version: bool = False
    """Whether rows carry `epoch` and `number`."""
    episode: bool = True
    """Whether rows carry `episode_id`."""
    group: bool = True
    """Whether rows carry `group_id`."""
    waits_for_tasks: bool = False
    """Whether the rollup tells environments that only tasks name. Then a minute is made anew when
    tasks come that its rows lacked. Of the many commits it would hold several times the states.
    """

    @property
    def is_looked_up(self) -> bool:
        """Whether what the tasks say decides the environment of a row in the rollup."""
        return self.waits_for_tasks or "tasks" in self.environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity."""

    name: str
    unit: str
    definition: str
    source: Source
    value: str
    """SQL for the sample of one row."""
    where: str = "1"
    """SQL for whether a row holds a sample."""
    labels: tuple[str, ...] = ()
    """More columns of `NAME_samples`."""


def _between(later: str, earlier: str) -> str:
    """Return the milliseconds between two DateTime64(6) columns, 0 when clocks disagree."""
    gap = f"toUnixTimestamp64Micro({later}) - toUnixTimestamp64Micro({earlier})"
    return f"greatest(0, {gap}) / 1000"


def _since(earlier: str) -> str:
    """Return the milliseconds from a DateTime64(6) column to the broker's time, 0 when clocks
    disagree.
    """
    return f"greatest(0, toUnixTimestamp64Milli(ts) - toUnixTimestamp64Micro({earlier}) / 1000)"


TRAINED = Source(
    table="trained_members", record="LearnerEvent", environment="environment", version=True
)
DECIDED = Source(table="gate_members", record="GateDecision", waits_for_tasks=True)
COMMITS = Source(table="token_commits", record="TokenCommit", version=True)
EPISODES = Source(table="episode_events", record="EpisodeEvent", waits_for_tasks=True)
TOOLS = Source(table="tool_events", record="ToolEvent", waits_for_tasks=True)
VERDICTS = Source(table="verdicts", record="VerifierResult", waits_for_tasks=True)
TRAJECTORIES = Source(table="trajectories", record="Trajectory", environment="environment")
REFRESHES = Source(
    table="refreshes", record="RefreshEvent", worker="worker_id",
    version=True, episode=False, group=False,
)  # fmt: skip
STEPS = Source(
    table="learner_events", record="LearnerEvent", worker="learner_id",
    version=True, episode=False, group=False,
)  # fmt: skip
POINTS = Source(
    table="metric_points", record="MetricPoint",
    # Whatever a label says, percentiles are cut by environments that tasks name, and no others.
    environment="if(labels['environment'] IN (SELECT environment FROM tasks), "
    "labels['environment'], '')",
    episode=False, group=False,
)  # fmt: skip

_ENDED = "kind = 'ended'"
_LAST = "kind = 'action' AND finish_reason NOT IN ('none', '')"
_ASKED = "toUnixTimestamp64Micro(requested_at) > 0"

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        name="policy_lag_steps", unit="updates", source=TRAINED, value="lag_steps",
        definition="ordinal of the consuming version minus that of the trajectory's oldest action "
        "token, when it was trained",
    ),
    Quantity(
        name="policy_lag_s", unit="s", source=TRAINED, value="lag_s",
        definition="the same lag as time between the publications of the two versions",
    ),
    Quantity(
        name="policy_lag_kl_nats", unit="nats", source=TRAINED, value="kl",
        definition="the same lag as mean KL estimate (k3) of behaviour and current policy over "
        "the trajectory's action tokens",
    ),
    Quantity(
        name="buffer_age_s", unit="s", source=TRAINED, value="age_ms / 1000",
        definition="age of a trajectory when it was trained, from the broker's time of it",
    ),
    Quantity(
        name="first_token_age_s", unit="s", source=TRAINED, value="first_token_age_ms / 1000",
        definition="age of its first token then",
    ),
    Quantity(
        name="gate_lag_steps", unit="updates", source=DECIDED, value="lag_steps",
        where="lag_steps >= 0", labels=("outcome", "reason"),
        definition="lag of a trajectory when the gate decided on it",
    ),
    Quantity(
        name="gate_age_s", unit="s", source=DECIDED, value="age_ms / 1000",
        where="age_ms >= 0", labels=("outcome", "reason"),
        definition="age of a trajectory when the gate decided on it",
    ),
    Quantity(
        name="ttft_ms", unit="ms", source=COMMITS, value=_between("first_token_at", "requested_at"),
        where=f"{_LAST} AND {_ASKED}",
        definition="from the request at the gateway to the first token of a turn that ended",
    ),
    Quantity(
        name="inter_token_ms", unit="ms", source=POINTS, value="value / 1000",
        where="name = 'inter_token_us'",
        definition="mean gap between the tokens of a turn that ended: from its first token to its "
        "last, over the tokens after the first chunk, which an engine may hand over several at a "
        "time; none for a turn that came as one chunk",
    ),
    Quantity(
        name="commit_latency_ms", unit="ms", source=COMMITS, value=_since("at"), labels=("kind",),
        definition="from the making of a commit to the broker's time of it",
    ),
    Quantity(
        name="commit_size_tokens", unit="tokens", source=COMMITS, value="`count`",
        where="kind = 'action'",
        definition="tokens of one Action commit",
    ),
    Quantity(
        name="kv_reuse_ratio", unit="ratio", source=COMMITS,
        value="reused_tokens / (prefilled_tokens + reused_tokens)",
        where=f"{_LAST} AND prefilled_tokens + reused_tokens > 0",
        definition="share of a turn's context that the engine took from its cache",
    ),
    Quantity(
        name="exposure_wait_ms", unit="ms", source=POINTS, value="value / 1000",
        where="name = 'exposure_wait_us'",
        definition="from the last token of a turn to the acknowledgement that lets it be shown",
    ),
    Quantity(
        name="gateway_overhead_ms", unit="ms", source=POINTS, value="value / 1000",
        where="name = 'gateway_overhead_us'",
        definition="what the gateway itself adds to a turn, before and after the engine",
    ),
    Quantity(
        name="queue_wait_ms", unit="ms", source=EPISODES, value="queue_us / 1000", where=_ENDED,
        definition="from the lease of an episode to its start",
    ),
    Quantity(
        name="environment_reset_ms", unit="ms", source=EPISODES, value="reset_us / 1000",
        where=_ENDED,
        definition="building the environment of one episode",
    ),
    Quantity(
        name="environment_step_ms", unit="ms", source=EPISODES, value="step_us / 1000",
        where=_ENDED,
        definition="all environment steps of one episode",
    ),
    Quantity(
        name="environment_turn_ms", unit="ms", source=POINTS, value="value * 1000",
        where="name = 'environment_turn_s'",
        definition="one turn of the policy as its environment waits for it",
    ),
    Quantity(
        name="tool_call_ms", unit="ms", source=TOOLS, value="duration_us / 1000",
        where="kind = 'result' AND NOT replayed", labels=("tool", "exit_class"),
        definition="one tool call that ran",
    ),
    Quantity(
        name="verifier_ms", unit="ms", source=VERDICTS, value="duration_us / 1000",
        labels=("code",),
        definition="judging one episode, all tries",
    ),
    Quantity(
        name="verify_queue_ms", unit="ms", source=VERDICTS, value="queued_us / 1000",
        labels=("code",),
        definition="from the request to judge to the start of judging",
    ),
    Quantity(
        name="episode_s", unit="s", source=TRAJECTORIES,
        value=f"{_between('ended_at', 'issued_at')} / 1000", labels=("termination", "purpose"),
        definition="from the issue of an episode to its final end",
    ),
    Quantity(
        name="verdict_wait_ms", unit="ms", source=TRAJECTORIES,
        value=_between("verified_at", "ended_at"),
        where="toUnixTimestamp64Micro(verified_at) > 0", labels=("termination", "purpose"),
        definition="from the end of an episode to its verdict on the topic",
    ),
    Quantity(
        name="assembly_wait_ms", unit="ms", source=TRAJECTORIES,
        value=_since("greatest(ended_at, verified_at)"), labels=("termination", "purpose"),
        definition="from the last record that an episode waited for to its trajectory",
    ),
    Quantity(
        name="episode_size_tokens", unit="tokens", source=TRAJECTORIES, value="action_tokens",
        labels=("termination", "purpose"),
        definition="action tokens on the main line of an episode",
    ),
    Quantity(
        name="episode_length_turns", unit="turns", source=TRAJECTORIES, value="turns",
        labels=("termination", "purpose"),
        definition="turns of an episode",
    ),
    Quantity(
        name="episode_reward", unit="reward", source=TRAJECTORIES, value="assumeNotNull(reward)",
        where="isNotNull(reward)", labels=("termination", "purpose"),
        definition="reward of an episode that has one",
    ),
    Quantity(
        name="refresh_fetch_ms", unit="ms", source=REFRESHES, value="fetch_us / 1000",
        where="fetch_us > 0",
        definition="fetching a version and checking its digest",
    ),
    Quantity(
        name="refresh_pause_ms", unit="ms", source=REFRESHES, value="pause_us / 1000",
        where="pause_us > 0",
        definition="how long a worker served nothing",
    ),
    Quantity(
        name="refresh_load_ms", unit="ms", source=REFRESHES, value="load_us / 1000",
        where="load_us > 0",
        definition="loading the weights into the engine",
    ),
    Quantity(
        name="learner_step_ms", unit="ms", source=STEPS,
        value="arraySum(mapValues(phases_us)) / 1000", where="kind = 'step'",
        definition="from one update to the next: the sum of its phases",
    ),
    Quantity(
        name="learner_busy_ms", unit="ms", source=STEPS,
        value="(arraySum(mapValues(phases_us)) - phases_us['wait_batch'] - phases_us['paused'] "
        "- phases_us['start']) / 1000",
        where="kind = 'step'",
        definition="the same without waiting for a batch, pauses and the start",
    ),
)  # fmt: skip

SOURCES: Mapping[str, Source] = {one.source.table: one.source for one in QUANTITIES}
"""Table name to source, in the order of the quantities."""


def of_table(table: str) -> tuple[Quantity, ...]:
    """Return the quantities whose samples are rows of this table."""
    return tuple(one for one in QUANTITIES if one.source.table == table)
