"""Every table of the sink: which topic fills it, with which columns.

Invariants: every topic but the payloads has its tables; heavy contents (tokens, log-probs, tool
output, frames) are told by their size only. The definitions under `infra/clickhouse` hold the same
columns, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas import topics
from schemas.errors import PoisonRecordError
from schemas.ids import Version
from schemas.packing import Timing, unpack_spans, unpack_timing
from schemas.records.parts import MemberDecision, SkippedMember, TrainedMember
from schemas.records.token_commit import TokenCommit
from stream_jobs.core.sink_columns import (
    PLACE,
    Column,
    Kind,
    Table,
    columns_of,
    moment,
    of_part,
    of_record,
)

_NO_TIMING = Timing(
    requested_us=0, first_token_us=0, last_token_us=0, prefilled_tokens=0, reused_tokens=0
)


def timing_of(commit: TokenCommit) -> Timing:
    """Return the times of an Action commit, zeros where it carries none or damaged ones."""
    try:
        return unpack_timing(commit.timing) if commit.timing else _NO_TIMING
    except PoisonRecordError:
        return _NO_TIMING


def version_of(commit: TokenCommit) -> Version | None:
    """Return the oldest version of an Action commit; None where it names none that can be read."""
    try:
        spans = unpack_spans(commit.spans)
    except PoisonRecordError:
        return None
    return spans[0].version if spans else None


def _epoch(commit: TokenCommit) -> int:
    version = version_of(commit)
    return -1 if version is None else version.epoch


def _number(commit: TokenCommit) -> int:
    version = version_of(commit)
    return -1 if version is None else version.number


def _moment(name: str) -> Column:
    return of_part(
        f"{name}_at", Kind.TIME_US, lambda commit: moment(getattr(timing_of(commit), f"{name}_us"))
    )


def _size(name: str) -> Column:
    return of_part(f"{name}_bytes", Kind.INTEGER, lambda part: len(getattr(part, name)))


def _length(name: str) -> Column:
    return of_part(f"{name}_n", Kind.INTEGER, lambda part: len(getattr(part, name)))


def _table(
    name: str,
    topic: topics.Topic[Any],
    *more: Column,
    without: tuple[str, ...] = (),
    order: tuple[str, ...] = (),
) -> Table:
    return Table(
        name=name,
        columns=(*PLACE, *columns_of(topic.record, without=frozenset(without)), *more),
        order=("run_id", *order, "src_partition", "src_offset"),
    )


_COMMITS = _table(
    "token_commits",
    topics.TOKENS,
    of_part("epoch", Kind.INTEGER, _epoch),
    of_part("number", Kind.INTEGER, _number),
    _moment("requested"),
    _moment("first_token"),
    _moment("last_token"),
    of_part("prefilled_tokens", Kind.INTEGER, lambda commit: timing_of(commit).prefilled_tokens),
    of_part("reused_tokens", Kind.INTEGER, lambda commit: timing_of(commit).reused_tokens),
    without=("digests",),
    order=("episode_id",),
)
_TRAINED = Table(
    name="trained_members",
    columns=(
        *PLACE,
        of_record("epoch", Kind.INTEGER, lambda event: event.epoch),
        of_record("number", Kind.INTEGER, lambda event: event.number),
        of_record("ordinal", Kind.INTEGER, lambda event: event.ordinal),
        of_record("writer_id", Kind.WORD, lambda event: event.writer_id),
        *columns_of(TrainedMember),
    ),
    order=("run_id", "ordinal", "src_partition", "src_offset"),
    parts=lambda event: event.trained,
)
_SKIPPED = Table(
    name="skipped_members",
    columns=(
        *PLACE,
        of_record("epoch", Kind.INTEGER, lambda event: event.epoch),
        of_record("ordinal", Kind.INTEGER, lambda event: event.ordinal),
        of_record("writer_id", Kind.WORD, lambda event: event.writer_id),
        *columns_of(SkippedMember),
    ),
    order=("run_id", "src_partition", "src_offset"),
    parts=lambda event: event.skipped,
)
_DECIDED = Table(
    name="gate_members",
    columns=(
        *PLACE,
        of_record("group_id", Kind.TEXT, lambda decision: decision.group_id),
        of_record("learner_ordinal", Kind.INTEGER, lambda decision: decision.learner_ordinal),
        of_record("writer_id", Kind.WORD, lambda decision: decision.writer_id),
        *columns_of(MemberDecision),
    ),
    order=("run_id", "group_id", "src_partition", "src_offset"),
    parts=lambda decision: decision.members,
)
_POINTS = Table(
    name="metric_points",
    columns=(
        *PLACE,
        of_part("name", Kind.WORD, lambda point: point.name),
        *(c for c in columns_of(topics.METRICS.record) if c.name != "name"),
    ),
    order=("run_id", "name", "ts"),
)

TABLES: Mapping[str, tuple[Table, ...]] = {
    topics.TASKS.name: (_table("tasks", topics.TASKS, order=("ordinal",)),),
    topics.EPISODES.name: (
        _table("episode_events", topics.EPISODES, _size("task_frame"), order=("episode_id",)),
    ),
    topics.TOKENS.name: (_COMMITS,),
    topics.TOOL_EVENTS.name: (
        _table(
            "tool_events",
            topics.TOOL_EVENTS,
            _size("arguments"),
            _size("output"),
            without=("arguments", "output"),
            order=("episode_id",),
        ),
    ),
    topics.VERIFY_REQUESTS.name: (
        _table(
            "verify_requests",
            topics.VERIFY_REQUESTS,
            _size("transcript"),
            _size("artifact"),
            without=("transcript", "artifact"),
            order=("episode_id",),
        ),
    ),
    topics.VERDICTS.name: (_table("verdicts", topics.VERDICTS, order=("episode_id",)),),
    topics.TRAJECTORIES.name: (
        _table(
            "trajectories",
            topics.TRAJECTORIES,
            _length("spans"),
            _length("chunks"),
            order=("episode_id",),
        ),
    ),
    topics.GATE_DECISIONS.name: (
        _table(
            "gate_decisions",
            topics.GATE_DECISIONS,
            _length("members"),
            _length("abandoned"),
            order=("group_id",),
        ),
        _DECIDED,
    ),
    topics.GATED.name: (
        _table("gated", topics.GATED, _size("trajectory_frame"), order=("episode_id",)),
    ),
    topics.LEARNER_STEPS.name: (
        _table(
            "learner_events",
            topics.LEARNER_STEPS,
            _length("trained"),
            _length("skipped"),
            _length("adopted"),
            order=("epoch",),
        ),
        _TRAINED,
        _SKIPPED,
    ),
    topics.POLICIES.name: (
        _table("policies", topics.POLICIES, without=("manifest",), order=("ordinal",)),
    ),
    topics.REFRESHES.name: (_table("refreshes", topics.REFRESHES, order=("worker_id",)),),
    topics.WORKERS.name: (_table("worker_states", topics.WORKERS, order=("worker_id",)),),
    topics.METRICS.name: (_POINTS,),
    topics.DEAD_LETTERS.name: (
        _table(
            "dead_letters",
            topics.DEAD_LETTERS,
            _size("raw"),
            order=("origin_topic",),
        ),
    ),
    topics.CONTROL.name: (
        _table(
            "control_events",
            topics.CONTROL,
            _size("settings"),
            _length("ends"),
            _size("snapshot"),
            without=("settings", "snapshot"),
        ),
    ),
}
"""Logical topic name to the tables that its records fill."""

TOPICS = tuple(topic for topic in topics.ALL if topic.name in TABLES)
"""What the sink reads: all but the payloads."""
