"""Every quantity that a process exports: name, kind, unit, labels, bounds of its histogram.

Invariants: a name ends in its unit; label values come from enums, topics, roles and settings, never
from ids, and a quantity with more than `SERIES_MAX` label sets folds the rest into `other`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SERIES_MAX = 100
"""Label sets of one quantity in one process."""
OTHER = "other"


class Kind(StrEnum):
    """How Prometheus treats a quantity."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One exported quantity; `sluice_` stands before its name."""

    name: str
    kind: Kind
    text: str
    """What it says, with its unit."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, in the unit."""


_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_LONG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
_UNIT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _counter(name: str, text: str, *labels: str) -> Quantity:
    return Quantity(name=name, kind=Kind.COUNTER, text=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Quantity:
    return Quantity(name=name, kind=Kind.GAUGE, text=text, labels=labels)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Quantity:
    return Quantity(name=name, kind=Kind.HISTOGRAM, text=text, labels=labels, bounds=bounds)


# The doors of every process.
PRODUCED = _counter("produced_records_total", "Records by what became of them.", "topic", "outcome")
ACK = _histogram(
    "produce_ack_seconds",
    "From the hand-over of a record to its acknowledgement.",
    _SECONDS,
    "topic",
)
QUEUED = _gauge("producer_queue_records", "Records handed over and not yet acknowledged.")
CONSUMED = _counter("consumed_records_total", "Records delivered.", "topic")
POISONED = _counter("poisoned_records_total", "Records that could not be decoded.", "topic")
CONSUMER_LAG = _gauge(
    "consumer_lag_records", "Records in the log that this process has not been given.", "topic"
)
CLOCK_AHEAD = _histogram(
    "clock_ahead_seconds",
    "How far a writer's clock is ahead of the broker's, as seen by a reader.",
    (0.0, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0),
    "topic",
)
DISK_FREE = _gauge("disk_free_ratio", "Free share of the disk under a folder of the run.", "folder")

# Records that a process writes.
EPISODES = _counter("episode_events_total", "Events of episodes.", "kind")
STOPS = _counter("episode_stops_total", "Attempts that ended, by cause.", "cause")
ABANDONED = _counter("episodes_abandoned_total", "Episodes given up.", "reason")
RESET = _histogram(
    "environment_reset_seconds", "Building the environment of an episode.", _LONG_SECONDS
)
STEP = _histogram(
    "environment_step_seconds", "All environment steps of an attempt that ended.", _LONG_SECONDS
)
TOKENS = _counter("committed_tokens_total", "Tokens in acknowledged commits.", "kind")
TTFT = _histogram("ttft_seconds", "From a turn's request to its first token.", _SECONDS)
PREFILLED = _counter("prefilled_tokens_total", "Prompt tokens computed by the engine.")
REUSED = _counter("reused_tokens_total", "Prompt tokens answered from the prefix cache.")
TOOL_CALL = _histogram("tool_call_seconds", "Duration of a tool call.", _SECONDS, "exit")
VERDICTS = _counter("verdicts_total", "Verdicts by code.", "code")
VERIFY = _histogram("verify_seconds", "Duration of a verification.", _SECONDS)
VERIFY_QUEUE = _histogram(
    "verify_queue_seconds", "Wait of an episode before its verifier.", _SECONDS
)
REWARD = _histogram("reward", "Reward of an assembled trajectory.", _UNIT, "environment")
TRAJECTORIES = _counter(
    "trajectories_total", "Assembled trajectories.", "environment", "termination"
)
DECIDED = _counter("gate_decisions_total", "Members decided by the gate.", "outcome", "reason")
LAG = _histogram("policy_lag_steps", "Lag of a trajectory when it is trained.", _STEPS)
LAG_BOUND = _gauge(
    "policy_lag_bound_steps",
    "Lag above which this run drops a trajectory (training.max_lag_steps).",
)
AGE = _histogram("buffer_age_seconds", "Age of a trajectory when it is trained.", _LONG_SECONDS)
STEPS = _counter("learner_events_total", "Events of the learner.", "kind")
ORDINAL = _gauge("learner_ordinal_steps", "Ordinal of the newest version.")
LOSS = _gauge("learner_loss", "Loss of the newest update.", "loss")
PHASE = _counter("learner_phase_seconds_total", "Time of the learner by phase.", "phase")
SKIPPED = _counter("learner_skipped_total", "Trajectories skipped at consumption.", "reason")
REFRESHES = _counter("refresh_events_total", "Events of refreshes.", "kind")
REFRESH_AT = _gauge("refresh_last_event_timestamp_seconds", "When a kind was last written.", "kind")
REFRESH_LOAD = _histogram("refresh_load_seconds", "Time to load a version.", _SECONDS)
REFRESH_PAUSE = _histogram("refresh_pause_seconds", "Time that requests stood still.", _SECONDS)
SPANS = _counter("trace_spans_total", "Spans by what became of them.", "outcome")
TRACES_OPEN = _gauge("traces_open_episodes", "Episodes of which the tracer keeps something.")
TRACES_EVICTED = _counter(
    "traces_evicted_episodes_total", "Episodes that the tracer put out before they were settled."
)
TRACES_TROUBLE = _counter(
    "traces_troubles_total", "Times that the tracer began anew, or stopped, for an error.", "end"
)
TRACES_LATE = _counter(
    "traces_late_records_total", "Records of episodes that the tracer had told before."
)
LETTERS = _counter("dead_letters_total", "Dead letters written.", "topic", "error")
SAMPLE = _histogram(
    "sample",
    "Samples of metric points, in the unit that the name ends in.",
    (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7),
    "name",
)

ALL: tuple[Quantity, ...] = tuple(
    one for one in list(globals().values()) if isinstance(one, Quantity)
)
