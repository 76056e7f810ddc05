"""Breaks of a recorded run, planted one at a time, each with the invariant that names it."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

from schemas.enums import (
    DropReason,
    EpisodeEventKind,
    LearnerEventKind,
    PayloadContent,
    RewardSource,
    TokenKind,
    ToolEventKind,
    VerdictCode,
)
from schemas.ids import EpisodeId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_ids, pack_logprobs, pack_spans
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, LogEnd, PolicySpan, SkippedMember
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.topics import CHUNK_BYTES_MAX, GATED, Topic
from tests.support.recorded_run import DROPPED, TRAINED

Spoil = Callable[[Any], Any]


def only(record_type: type[Any], spoil: Spoil, **fields: Any) -> Callable[[Topic[Any], Any], Any]:
    """Return a change that spoils the records of one type whose fields are as given."""

    def change(_: Topic[Any], record: Any) -> Any:
        is_it = type(record) is record_type and all(
            getattr(record, name) == value for name, value in fields.items()
        )
        return spoil(record) if is_it else record

    return change


def replaced(**fields: Any) -> Spoil:
    """Return a spoil that replaces fields."""
    return lambda record: dataclasses.replace(record, **fields)


def twice(record: Any) -> Any:
    """Write a record two times."""
    return [record, record]


def gone(_: Any) -> None:
    """Leave a record out."""


def _recrc(commit: TokenCommit, **fields: Any) -> TokenCommit:
    changed = dataclasses.replace(commit, **fields)
    crc = crc32c(changed.token_ids, changed.logprobs, changed.spans)
    return dataclasses.replace(changed, crc32c=crc)


def member_with(**fields: Any) -> Spoil:
    def spoil(event: LearnerEvent) -> LearnerEvent:
        first, *rest = event.trained
        return dataclasses.replace(event, trained=(dataclasses.replace(first, **fields), *rest))

    return spoil


def _trained_twice(event: LearnerEvent) -> list[LearnerEvent]:
    again = dataclasses.replace(event, number=2, ordinal=2, trained=event.trained[:1])
    return [event, again]


REJECTED = (
    struct.pack("<4sII", b"SLRJ", 1, 2) + b"[]"
    + b"".join(struct.pack("<Iif", 0, 4, ratio) for ratio in (-0.1, -0.2, 5.0, 6.0))
)  # fmt: skip
"""A list of two tokens below the band and two above it."""


def with_list(**fields: Any) -> Callable[[Topic[Any], Any], Any]:
    """Return a change that lets the Step point at a list of its rejected tokens."""

    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is PayloadChunk and record.episode_id == TRAINED:
            rejected = dataclasses.replace(
                record, content=PayloadContent.REJECTED_TOKENS, body=REJECTED,
                crc32c=crc32c(REJECTED),
            )  # fmt: skip
            return [rejected, record]
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.STEP:
            ref = ChunkRef(partition=0, offset=0, length=len(REJECTED), crc32c=crc32c(REJECTED))
            return dataclasses.replace(record, id_lists=(ref,), **fields)
        return record

    return change


def _skipped_too(event: LearnerEvent) -> list[LearnerEvent]:
    member = SkippedMember(episode_id=TRAINED, partition=0, offset=0, reason=DropReason.AGE)
    skip = dataclasses.replace(event, kind=LearnerEventKind.SKIPPED, trained=(), skipped=(member,))
    return [skip, event]


def _decided(**fields: Any) -> Spoil:
    def spoil(decision: GateDecision) -> GateDecision:
        first, *rest = decision.members
        return dataclasses.replace(decision, members=(dataclasses.replace(first, **fields), *rest))

    return spoil


def _passed_over(_: Topic[Any], record: Any) -> Any:
    """The checkpoint lies behind two gated records, and only the first was trained."""
    if type(record) is not LearnerEvent:
        return record
    if record.kind is LearnerEventKind.CHECKPOINTED:
        end = LogEnd(topic=GATED.name, partition=0, offset=2)
        return dataclasses.replace(record, positions=(end,))
    return dataclasses.replace(record, trained=record.trained[:1])


def _two_under_an_old_lease(_: Topic[Any], record: Any) -> Any:
    """The lease names no process, and a second one writes the Result of the first one's Intent."""
    if type(record) is EpisodeEvent and record.kind is EpisodeEventKind.LEASED:
        return dataclasses.replace(record, incarnation="")
    if type(record) is ToolEvent and record.kind is ToolEventKind.RESULT:
        return dataclasses.replace(record, incarnation="zombie")
    return record


STEP = {"kind": LearnerEventKind.STEP}
INTENT = {"kind": ToolEventKind.INTENT, "episode_id": TRAINED}
RESULT = {"kind": ToolEventKind.RESULT, "episode_id": TRAINED}
SECOND_TURN = {"kind": TokenKind.ACTION, "turn": 1, "episode_id": TRAINED}
OBSERVED = {"kind": TokenKind.OBSERVATION, "episode_id": TRAINED}
ENDED = {"kind": EpisodeEventKind.ENDED, "episode_id": TRAINED}
LEASED = {"kind": EpisodeEventKind.LEASED, "episode_id": TRAINED}
SEALED = {"episode_id": TRAINED}
ISSUED = {"kind": EpisodeEventKind.ISSUED, "episode_id": TRAINED}
LONG = {
    "count": 40_000,
    "token_ids": pack_ids([1] * 40_000),
    "logprobs": pack_logprobs([-1.0] * 40_000),
    "spans": pack_spans([Span(10, 40_010, Version(0, 0))]),
}

BREAKS: list[tuple[int, str, Any]] = [
    (1, "rests on WAL offset 999", only(ToolEvent, replaced(wal_position=999), **INTENT)),
    (1, "rests on WAL offset -1", only(ToolEvent, replaced(wal_position=-1), **INTENT)),
    (1, "rests on WAL offset 999", only(TokenCommit, replaced(rests_on=999), **OBSERVED)),
    (1, "Result at 77", only(TokenCommit, replaced(result_offset=77), **OBSERVED)),
    (1, "Ended rests on WAL offset 500", only(EpisodeEvent, replaced(wal_position=500), **ENDED)),
    (
        2,
        "log-prob",
        only(TokenCommit, lambda c: _recrc(c, logprobs=pack_logprobs([1.0] * 3)), **SECOND_TURN),
    ),
    (
        2,
        "gap or overlap",
        only(
            TokenCommit,
            lambda c: _recrc(c, spans=pack_spans([Span(11, 13, Version(0, 0))])),
            **SECOND_TURN,
        ),
    ),
    (
        2,
        "log-probs for 3 sampled",
        only(TokenCommit, lambda c: _recrc(c, logprobs=c.logprobs[:8]), **SECOND_TURN),
    ),
    (2, "the log has", only(TokenCommit, replaced(crc32c=1), **SECOND_TURN)),
    (2, "the log has", only(TokenCommit, replaced(seq=9), **SECOND_TURN)),
    (2, "the log has", only(Trajectory, replaced(action_tokens=8), **SEALED)),
    (2, "chunk at 0@0 is missing", only(PayloadChunk, replaced(body=b"other"), **SEALED)),
    (2, "Ended says 12", only(EpisodeEvent, replaced(token_count=12), **ENDED)),
    (
        2,
        "not those of the WAL",
        only(TokenCommit, lambda c: _recrc(c, token_ids=pack_ids([7, 7, 7])), **SECOND_TURN),
    ),
    (
        2,
        "not those of the WAL",
        only(TokenCommit, lambda c: _recrc(c, logprobs=pack_logprobs([-1.0] * 3)), **SECOND_TURN),
    ),
    (
        2,
        "not those of the WAL",
        only(
            TokenCommit,
            lambda c: _recrc(c, token_ids=pack_ids([0, 1, 2, 9, 4, 5])),
            kind=TokenKind.ACTION,
            turn=0,
            episode_id=TRAINED,
        ),
    ),
    (3, "no Intent before", only(ToolEvent, gone, **INTENT)),
    (3, "executed twice", only(ToolEvent, twice, **RESULT)),
    (3, "holds the lease", only(ToolEvent, replaced(incarnation="zombie"), **INTENT)),
    (3, "holds the lease", only(ToolEvent, replaced(writer_id=WorkerId("other")), **RESULT)),
    (3, "two processes", _two_under_an_old_lease),
    (4, "not the final one", only(Trajectory, replaced(ended_offset=3), **SEALED)),
    (4, "not the first of attempt", only(Trajectory, replaced(verdict_offset=3), **SEALED)),
    (4, "not the first", only(GateDecision, _decided(trajectory_offset=50), ordinal=0)),
    (
        4,
        "leaves out a member",
        only(GateDecision, lambda d: dataclasses.replace(d, members=d.members[:1]), ordinal=0),
    ),
    (4, "never issued", only(GateDecision, _decided(episode_id=EpisodeId("run-1.0.9")), ordinal=0)),
    (4, "without an Admit", only(GatedTrajectory, replaced(decision_offset=7), **SEALED)),
    (4, "not the final one", only(EpisodeEvent, replaced(writer_id=WorkerId("zombie")), **ENDED)),
    (4, "not the final one", only(EpisodeEvent, replaced(incarnation="zombie"), **ENDED)),
    (4, "members issued of 3", only(EpisodeEvent, replaced(group_size=3), **ISSUED)),
    (5, "no task offers", only(Task, gone, ordinal=0)),
    (5, "tool events of", only(EpisodeEvent, gone, **ISSUED)),
    (
        5,
        "Closed says",
        only(LearnerEvent, replaced(counts={"issued": 4}), kind=LearnerEventKind.CLOSED),
    ),
    (5, "is pending", only(Trajectory, gone, episode_id=EpisodeId("run-1.3.0"))),
    (5, "two headings", only(LearnerEvent, _skipped_too, **STEP)),
    (5, "kept and", only(LearnerEvent, member_with(kept_tokens=4), **STEP)),
    (5, "never issued", only(EpisodeEvent, gone, kind=EpisodeEventKind.ISSUED, episode_id=DROPPED)),
    (5, "EndOfStream says", only(EpisodeEvent, gone, kind=EpisodeEventKind.ABANDONED)),
    (6, "lag by the log is 0", only(LearnerEvent, member_with(lag_steps=-1), **STEP)),
    (6, "bound is 4", only(LearnerEvent, member_with(lag_steps=5), **STEP)),
    (6, "bound is 600000", only(LearnerEvent, member_with(age_ms=600_001), **STEP)),
    (
        6,
        "does not descend",
        only(
            TokenCommit,
            lambda c: _recrc(c, spans=pack_spans([Span(10, 13, Version(1, 1))])),
            **SECOND_TURN,
        ),
    ),
    (6, "decided at lag -1", only(GateDecision, _decided(lag_steps=-1), ordinal=0)),
    (7, "does not exist", only(LearnerEvent, member_with(partition=9), **STEP)),
    (7, "trained in 2 steps", only(LearnerEvent, _trained_twice, **STEP)),
    (7, "no gated record", only(LearnerEvent, member_with(offset=5), **STEP)),
    (7, "without an Admit", only(LearnerEvent, member_with(episode_id=DROPPED), **STEP)),
    (7, "no checkpoint", only(LearnerEvent, gone, kind=LearnerEventKind.CHECKPOINTED)),
    (8, "0 digests", only(PolicyVersion, gone, number=0)),
    (
        8,
        "2 digests",
        only(PolicyVersion, lambda p: [p, dataclasses.replace(p, digest="x")], number=0),
    ),
    (8, "differ in the digest", only(LearnerEvent, replaced(policy_digest="x"), **STEP)),
    (8, "not that of", only(Trajectory, replaced(policy_digest="x"), **SEALED)),
    (
        8,
        "by no Step",
        only(
            TokenCommit,
            lambda c: _recrc(c, spans=pack_spans([Span(10, 13, Version(7, 7))])),
            **SECOND_TURN,
        ),
    ),
    (8, "the registry says 5", only(PolicyVersion, replaced(ordinal=5), number=1)),
    (8, "without tokenizer_digest", only(Trajectory, replaced(tokenizer_digest=""), **SEALED)),
    (
        8,
        "the Trajectory says",
        only(
            Trajectory,
            replaced(spans=(PolicySpan(start=4, end=8, epoch=1, number=1),)),
            **SEALED,
        ),
    ),
    (9, "not of its attempt", only(VerifierResult, replaced(request_offset=99), **SEALED)),
    (9, "no ground", only(VerifierResult, replaced(code=VerdictCode.INFRA_ERROR), **SEALED)),
    (9, "no ground", only(Trajectory, replaced(reward=0.5), **SEALED)),
    (9, "no ground", only(Trajectory, replaced(reward_source=RewardSource.ATTRIBUTION), **SEALED)),
    (9, "trained with reward 0.25", only(LearnerEvent, member_with(reward=0.25), **STEP)),
    (
        9,
        "trained with reward",
        only(Trajectory, replaced(reward=None, reward_source=RewardSource.NONE), **SEALED),
    ),
    (10, "below the floor 50", only(EpisodeEvent, replaced(tokens_floor=50), **LEASED)),
    (10, "below the floor 60", only(EpisodeEvent, replaced(tool_events_floor=60), **LEASED)),
    (10, "and loses it", _passed_over),
    (
        10,
        "missing or another",
        only(
            LearnerEvent,
            replaced(id_lists=(ChunkRef(partition=0, offset=99, length=1, crc32c=1),)),
            **STEP,
        ),
    ),
    (5, "(1, 2) tokens below and above", with_list(rejected_low=1, rejected_high=2)),
    (11, "has no deadline", only(ToolEvent, replaced(deadline_us=0), **INTENT)),
    (11, "has no end", only(EpisodeEvent, replaced(lease_ms=0), **LEASED)),
    (
        11,
        "the bound is 524288",
        only(PayloadChunk, replaced(body=bytes(CHUNK_BYTES_MAX + 1)), **SEALED),
    ),
    (11, "the bound is 262144", only(TokenCommit, lambda c: _recrc(c, **LONG), **SECOND_TURN)),
]
