"""Every table of the sink: which topic fills it, with which columns.

Invariants: every topic but the payloads has its tables; heavy contents (tokens, log-probs, tool
output, frames) are told by their size only, unless those of the token log are asked for. The
definitions under `infra/clickhouse` hold the same columns, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import topics
from schemas.errors import PoisonRecordError
from schemas.packing import unpack_ids, unpack_logprobs
from schemas.records.parts import MemberDecision, SkippedMember, TrainedMember
from schemas.records.token_commit import TokenCommit
from stream_jobs.core.sink_columns import (
    PLACE,
    Column,
    Kind,
    Rows,
    Table,
    columns_of,
    moments,
    of_part,
    of_parts,
    of_record,
)

_TIMES = ("requested_us", "first_token_us", "last_token_us", "prefilled_tokens", "reused_tokens")
_SPAN = ("start", "end", "epoch", "number")


def _packed(blobs: Sequence[bytes], fields: Sequence[str], *, times: int) -> NDArray[np.int64]:
    """Return int64 [rows, fields] of the first values that each blob packs; -1 where one is no
    whole number of quadruples or quintuples.

    times: how often the fields may stand in one blob; 0 is any number of times.
    """
    size = 8 * len(fields)
    whole = blobs
    if set(map(len, blobs)) != {size}:
        none = b"\xff" * size
        whole = [blob[:size] if blob and _fits(len(blob), size, times) else none for blob in blobs]
    return np.frombuffer(b"".join(whole), "<i8").reshape(len(blobs), len(fields))


def _fits(length: int, size: int, times: int) -> bool:
    return length == times * size if times else length % size == 0


def timings(commits: Sequence[TokenCommit]) -> NDArray[np.int64]:
    """Return int64 [commits, 5] of the times of Action commits, zeros where one carries none or
    damaged ones.
    """
    return timings_of(_packed([one.timing for one in commits], _TIMES, times=1))


def timings_of(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [commits, 5] of times as they are packed, zeros for the row of -1 alone that
    stands for none.
    """
    return np.where(np.all(found == -1, axis=1, keepdims=True), 0, found)


def versions(commits: Sequence[TokenCommit]) -> NDArray[np.int64]:
    """Return int64 [commits, 2] of epoch and number of each commit's oldest version; -1 where it
    names none that can be read.
    """
    return versions_of(_packed([one.spans for one in commits], _SPAN, times=0)[:, 2:])


def versions_of(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [commits, 2] of epochs and numbers as they are packed, -1 twice where one is
    negative.
    """
    return np.where(np.any(found < 0, axis=1, keepdims=True), -1, found)


def _shared(
    rows: Rows, name: str, make: Callable[[Sequence[Any]], NDArray[np.int64]]
) -> NDArray[np.int64]:
    if name not in rows.shared:
        rows.shared[name] = make(rows.parts)
    found: NDArray[np.int64] = rows.shared[name]
    return found


def _version(name: str, at: int) -> Column:
    return of_parts(
        name, Kind.INTEGER, lambda rows: _shared(rows, "versions", versions)[:, at].copy()
    )


def _moment(name: str, at: int) -> Column:
    return of_parts(
        f"{name}_at", Kind.TIME_US, lambda rows: moments(_shared(rows, "timings", timings)[:, at])
    )


def _count(name: str, at: int) -> Column:
    return of_parts(
        name, Kind.INTEGER, lambda rows: _shared(rows, "timings", timings)[:, at].copy()
    )


def _size(name: str) -> Column:
    return of_part(f"{name}_bytes", Kind.INTEGER, lambda part: len(getattr(part, name)))


def _length(name: str) -> Column:
    return of_part(f"{name}_n", Kind.INTEGER, lambda part: len(getattr(part, name)))


def _unpacked(unpack: Callable[[bytes], Sequence[Any]], packed: bytes) -> Sequence[Any]:
    """Return what was packed, nothing where it is damaged: a row is lost for nothing."""
    try:
        return unpack(packed)
    except PoisonRecordError:
        return ()


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
    _version("epoch", 0),
    _version("number", 1),
    _moment("requested", 0),
    _moment("first_token", 1),
    _moment("last_token", 2),
    _count("prefilled_tokens", 3),
    _count("reused_tokens", 4),
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
        Column(name="name", kind=Kind.WORD, field="name"),
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

CONTENTS = Table(
    name="token_contents",
    columns=(
        *PLACE,
        Column(name="episode_id", kind=Kind.TEXT, field="episode_id"),
        Column(name="kind", kind=Kind.WORD, field="kind"),
        Column(name="attempt", kind=Kind.INTEGER, field="attempt"),
        Column(name="turn", kind=Kind.INTEGER, field="turn"),
        Column(name="start", kind=Kind.INTEGER, field="start"),
        of_part("token_ids", Kind.IDS, lambda commit: _unpacked(unpack_ids, commit.token_ids)),
        of_part("logprobs", Kind.LOGPROBS, lambda one: _unpacked(unpack_logprobs, one.logprobs)),
    ),
    order=("run_id", "episode_id", "src_partition", "src_offset"),
)
"""The tokens of each commit; filled when it is asked for."""


def tables_of(*, has_contents: bool) -> Mapping[str, tuple[Table, ...]]:
    """Return logical topic name to the tables that its records fill."""
    if not has_contents:
        return TABLES
    return {**TABLES, topics.TOKENS.name: (_COMMITS, CONTENTS)}


TOPICS = tuple(topic for topic in topics.ALL if topic.name in TABLES)
"""What the sink reads: all but the payloads."""
