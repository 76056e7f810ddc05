"""From a record to the samples that its writer exports; pure.

A process exports what it writes to the log and nothing else about the protocol, so that the two
cannot disagree and no role has to count by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from infra.exporter import catalogue as of
from infra.exporter.catalogue import Quantity
from schemas.enums import (
    DropReason,
    EpisodeEventKind,
    FinishReason,
    GateOutcome,
    LearnerEventKind,
    RefreshEventKind,
    VerdictCode,
)
from schemas.packing import unpack_timing
from schemas.records.dead_letter import DeadLetter
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.metric_point import MetricPoint
from schemas.records.refresh_event import RefreshEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult

_US = 1e-6


class Sample(NamedTuple):
    """One value of a quantity: added to a counter, set on a gauge, observed by a histogram."""

    quantity: Quantity
    value: float
    labels: tuple[str, ...] = ()


AT_START: Mapping[str, tuple[Sample, ...]] = {
    "scheduler": (Sample(of.EPISODES, 0.0, (EpisodeEventKind.ISSUED.value,)),),
    "environment": (Sample(of.EPISODES, 0.0, (EpisodeEventKind.ENDED.value,)),),
    "verifier": (Sample(of.VERDICTS, 0.0, (VerdictCode.CORRECT.value,)),),
    "gate": (Sample(of.DECIDED, 0.0, (GateOutcome.ADMIT.value, DropReason.NONE.value)),),
    "learner": (Sample(of.STEPS, 0.0, (LearnerEventKind.STEP.value,)),),
    "inference": (Sample(of.REFRESHES, 0.0, (RefreshEventKind.FAILED.value,)),),
    "tracer": (Sample(of.SPANS, 0.0, ("sent",)), Sample(of.SPANS, 0.0, ("given_up",))),
}
"""What a role exports before its first record: a counter that is not there yet cannot be seen to
stand still, and a run that never makes its first update is starved all the same.
"""


def samples_of(record: Any) -> Iterator[Sample]:
    """Return what the writer of an acknowledged record exports; nothing for other records."""
    reading = _READINGS.get(type(record))
    return iter(()) if reading is None else reading(record)


def _commit(record: TokenCommit) -> Iterator[Sample]:
    yield Sample(of.TOKENS, record.count, (record.kind.value,))
    # Every commit of a turn says it all again; the one that ends the turn counts.
    if record.timing and record.finish_reason is not FinishReason.NONE:
        timing = unpack_timing(record.timing)
        if timing.first_token_us > timing.requested_us > 0:
            yield Sample(of.TTFT, (timing.first_token_us - timing.requested_us) * _US)
        yield Sample(of.PREFILLED, timing.prefilled_tokens)
        yield Sample(of.REUSED, timing.reused_tokens)


def _episode(record: EpisodeEvent) -> Iterator[Sample]:
    yield Sample(of.EPISODES, 1.0, (record.kind.value,))
    if record.kind is EpisodeEventKind.ABANDONED:
        yield Sample(of.ABANDONED, 1.0, (record.abandon_reason.value,))
    elif record.kind is EpisodeEventKind.ENDED:
        yield Sample(of.STOPS, 1.0, (record.stop_cause.value,))
        yield Sample(of.RESET, record.reset_us * _US)
        yield Sample(of.STEP, record.step_us * _US)


def _tool(record: ToolEvent) -> Iterator[Sample]:
    if record.duration_us > 0 and not record.replayed:
        yield Sample(of.TOOL_CALL, record.duration_us * _US, (record.exit_class.value,))


def _verdict(record: VerifierResult) -> Iterator[Sample]:
    yield Sample(of.VERDICTS, 1.0, (record.code.value,))
    yield Sample(of.VERIFY, record.duration_us * _US)
    yield Sample(of.VERIFY_QUEUE, record.queued_us * _US)


def _trajectory(record: Trajectory) -> Iterator[Sample]:
    yield Sample(of.TRAJECTORIES, 1.0, (record.environment, record.termination.value))
    if record.reward is not None:
        yield Sample(of.REWARD, record.reward, (record.environment,))


def _decision(record: GateDecision) -> Iterator[Sample]:
    for member in record.members:
        yield Sample(of.DECIDED, 1.0, (member.outcome.value, member.reason.value))


def _learner(record: LearnerEvent) -> Iterator[Sample]:
    yield Sample(of.STEPS, 1.0, (record.kind.value,))
    for skipped in record.skipped:
        yield Sample(of.SKIPPED, 1.0, (skipped.reason.value,))
    if record.kind is not LearnerEventKind.STEP:
        return
    yield Sample(of.ORDINAL, record.ordinal)
    for name, loss in record.losses.items():
        yield Sample(of.LOSS, loss, (name,))
    for phase, time_us in record.phases_us.items():
        yield Sample(of.PHASE, time_us * _US, (phase,))
    for member in record.trained:
        yield Sample(of.LAG, member.lag_steps)
        yield Sample(of.AGE, member.age_ms / 1000)


def _refresh(record: RefreshEvent) -> Iterator[Sample]:
    yield Sample(of.REFRESHES, 1.0, (record.kind.value,))
    yield Sample(of.REFRESH_AT, record.at_us * _US, (record.kind.value,))
    if record.load_us > 0:
        yield Sample(of.REFRESH_LOAD, record.load_us * _US)
        yield Sample(of.REFRESH_PAUSE, record.pause_us * _US)


def _letter(record: DeadLetter) -> Iterator[Sample]:
    if record.part == 0:
        yield Sample(of.LETTERS, 1.0, (record.origin_topic, record.error_class))


def _point(record: MetricPoint) -> Iterator[Sample]:
    yield Sample(of.SAMPLE, record.value, (record.name,))


_READINGS: dict[type, Callable[[Any], Iterator[Sample]]] = {
    TokenCommit: _commit,
    EpisodeEvent: _episode,
    ToolEvent: _tool,
    VerifierResult: _verdict,
    Trajectory: _trajectory,
    GateDecision: _decision,
    LearnerEvent: _learner,
    RefreshEvent: _refresh,
    DeadLetter: _letter,
    MetricPoint: _point,
}
