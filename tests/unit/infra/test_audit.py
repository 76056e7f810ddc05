"""The audit passes a sound run, and each invariant is seen to fail on a planted break."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.audit import report as report_module
from infra.audit.audit import Cut, Share, audit, audit_share
from infra.audit.processes import even
from infra.audit.report import NAMES, AuditReport
from schemas.enums import (
    DropReason,
    EpisodeEventKind,
    LearnerEventKind,
    RewardSource,
    StopCause,
    TokenKind,
    ToolEventKind,
    VerdictCode,
)
from schemas.ids import EpisodeId, RunId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_ids, pack_logprobs, pack_spans
from schemas.partition import partition_of
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
from schemas.topics import CHUNK_BYTES_MAX, GATED, LEARNER_STEPS, TOKENS, Topic
from tests.support.recorded_run import ABANDONED, DROPPED, RESUMED, TRAINED, RecordedRun
from tests.support.run_records import RUN

Spoil = Callable[[Any], Any]


async def _audit(change: Any = None, *, closed: bool = True) -> AuditReport:
    bus = RecordedRun(change, closed=closed).write()
    return await audit(bus.consumers(), RUN)


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


def _member(**fields: Any) -> Spoil:
    def spoil(event: LearnerEvent) -> LearnerEvent:
        first, *rest = event.trained
        return dataclasses.replace(event, trained=(dataclasses.replace(first, **fields), *rest))

    return spoil


def _trained_twice(event: LearnerEvent) -> list[LearnerEvent]:
    again = dataclasses.replace(event, number=2, ordinal=2, trained=event.trained[:1])
    return [event, again]


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
    (5, "kept and", only(LearnerEvent, _member(kept_tokens=4), **STEP)),
    (5, "never issued", only(EpisodeEvent, gone, kind=EpisodeEventKind.ISSUED, episode_id=DROPPED)),
    (5, "EndOfStream says", only(EpisodeEvent, gone, kind=EpisodeEventKind.ABANDONED)),
    (6, "lag by the log is 0", only(LearnerEvent, _member(lag_steps=-1), **STEP)),
    (6, "bound is 4", only(LearnerEvent, _member(lag_steps=5), **STEP)),
    (6, "bound is 600000", only(LearnerEvent, _member(age_ms=600_001), **STEP)),
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
    (7, "does not exist", only(LearnerEvent, _member(partition=9), **STEP)),
    (7, "trained in 2 steps", only(LearnerEvent, _trained_twice, **STEP)),
    (7, "no gated record", only(LearnerEvent, _member(offset=5), **STEP)),
    (7, "without an Admit", only(LearnerEvent, _member(episode_id=DROPPED), **STEP)),
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
    (9, "trained with reward 0.25", only(LearnerEvent, _member(reward=0.25), **STEP)),
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
    (11, "has no deadline", only(ToolEvent, replaced(deadline_us=0), **INTENT)),
    (11, "has no end", only(EpisodeEvent, replaced(lease_ms=0), **LEASED)),
    (
        11,
        "the bound is 524288",
        only(PayloadChunk, replaced(body=bytes(CHUNK_BYTES_MAX + 1)), **SEALED),
    ),
    (11, "the bound is 262144", only(TokenCommit, lambda c: _recrc(c, **LONG), **SECOND_TURN)),
]


def test_the_audit_reads_by_rules_of_its_own() -> None:
    forbidden = ("schemas.rules", "stream_jobs", "learner", "inference", "environments", "verifier")
    for path in Path(report_module.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith(forbidden), f"{path.name} imports {node.module}"


async def test_a_sound_run_is_clean_and_closed() -> None:
    report = await _audit()
    assert report.violations == ()
    assert report.closed
    assert report.is_clean
    assert all(report.checked[number] > 0 for number in NAMES)
    headings = ("issued", "trained", "dropped", "abandoned", "evaluated", "pending")
    assert [report.counts[name] for name in headings] == [5, 2, 1, 1, 1, 0]
    assert report.dropped == {"lag": 1}
    assert report.abandoned == {"group_deadline": 1}
    assert report.tokens["sampled"] == 36
    assert report.tokens["trained"] == 10
    assert report.tokens["masked:sibling_branch"] == 4
    assert report.tokens["dropped:lag"] == report.tokens["evaluated"] == 9


@pytest.mark.parametrize(
    ("invariant", "says", "change"),
    BREAKS,
    ids=[f"{n}-{says}-{i}" for i, (n, says, _) in enumerate(BREAKS)],
)
async def test_a_planted_break_is_named(invariant: int, says: str, change: Any) -> None:
    report = await _audit(change)
    found = [v.what for v in report.violations if v.invariant == invariant]
    assert any(says in what for what in found), [v.to_json() for v in report.violations]


async def test_partitions_read_apart_tell_the_same_story() -> None:
    bus = RecordedRun(partitions=3).write()
    together = await audit(bus.consumers(), RUN)
    apart = await audit(bus.consumers(), RUN, records_max=1)
    assert together.is_clean
    assert apart.to_json() == together.to_json()


async def test_shares_of_an_audit_add_up_to_the_whole() -> None:
    bus = RecordedRun(partitions=3).write()
    alone = await audit(bus.consumers(), RUN)

    def helpers(cut: Cut, records: Mapping[int, int]) -> Awaitable[Sequence[Share]]:
        shares = even(records, 2)
        assert len(shares) == 2
        return asyncio.gather(
            *(audit_share(bus.consumers(), RUN, None, cut, share) for share in shares)
        )

    shared = await audit(bus.consumers(), RUN, helpers=helpers)
    assert shared.to_json() == alone.to_json()


def test_partitions_are_shared_out_evenly() -> None:
    records = {0: 100, 1: 10, 2: 60, 3: 50, 4: 0}
    shares = even(records, 2)
    assert sorted(p for share in shares for p in share) == sorted(records)
    assert sorted(sum(records[p] for p in share) for share in shares) == [110, 110]
    assert even({0: 5}, 4) == [(0,)]


async def test_a_group_in_a_partition_that_is_not_its_own_is_named() -> None:
    bus = RecordedRun(partitions=3, at=lambda group, n: (partition_of(group, n) + 1) % n).write()
    report = await audit(bus.consumers(), RUN)
    assert any("not its own" in v.what for v in report.violations if v.invariant == 4)


def test_every_invariant_has_a_planted_break() -> None:
    assert {number for number, _, _ in BREAKS} == set(NAMES)


async def test_a_live_run_lists_what_is_pending_and_is_clean() -> None:
    report = await _audit(
        only(LearnerEvent, gone, kind=LearnerEventKind.CHECKPOINTED), closed=False
    )
    assert report.violations == ()
    assert not report.closed
    assert set(report.pending["a checkpoint that covers its step"]) == {TRAINED, RESUMED}
    assert report.counts["pending"] == 2
    assert report.tokens["pending"] == 18


async def test_pending_episodes_say_what_they_wait_for() -> None:
    def change(topic: Topic[Any], record: Any) -> Any:
        if topic is LEARNER_STEPS or getattr(record, "episode_id", "") == ABANDONED:
            keeps = getattr(record, "kind", None) is EpisodeEventKind.ISSUED
            return record if keeps else None
        if type(record) is GateDecision and record.ordinal == 2:
            return None
        return record

    report = await _audit(change, closed=False)
    assert report.violations == ()
    assert report.pending == {"the learner": (TRAINED, RESUMED), "a lease": (ABANDONED,)}


async def test_copies_and_zombies_are_superseded_and_no_violation() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        match record:
            case Trajectory() | GateDecision() | VerifierResult() | PolicyVersion():
                return [record, record]
            case EpisodeEvent(kind=EpisodeEventKind.ISSUED | EpisodeEventKind.ENDED):
                return [record, dataclasses.replace(record, scheduler_epoch=9)]
            case TokenCommit(kind=TokenKind.FENCE, attempt=2):
                zombie = dataclasses.replace(record, kind=TokenKind.PROMPT, attempt=1, seq=4)
                return [record, zombie]
            case LearnerEvent(kind=LearnerEventKind.STEP):
                return [record, dataclasses.replace(record, learner_id=WorkerId("zombie"))]
        return record

    # A copy moves the offset that later records name, so each is named by its first.
    def first_named(topic: Topic[Any], record: Any) -> Any:
        if type(record) is Trajectory:
            record = dataclasses.replace(
                record,
                ended_offset=record.ended_offset - 1,
                verdict_offset=record.verdict_offset - 1,
            )
        if type(record) is GateDecision:
            record = dataclasses.replace(
                record,
                members=tuple(
                    dataclasses.replace(m, trajectory_offset=m.trajectory_offset - 1)
                    for m in record.members
                ),
            )
        if type(record) is GatedTrajectory:
            record = dataclasses.replace(record, decision_offset=record.decision_offset - 1)
        return change(topic, record)

    report = await _audit(first_named)
    assert [v.to_json() for v in report.violations] == []
    assert report.counts["superseded trajectories"] == 4
    assert report.counts["superseded gate-decisions"] == 3
    assert report.counts["superseded verdicts"] == 4
    assert report.counts["superseded ended"] == 4
    assert report.counts["superseded issued"] == 5
    assert report.counts["learner records void"] == 1


async def test_poison_is_counted_and_other_runs_are_passed_over() -> None:
    def change(topic: Topic[Any], record: Any) -> Any:
        if type(record) is Task and record.ordinal == 0:
            return [record, dataclasses.replace(record, run_id=RunId("other"))]
        if topic is TOKENS and record.kind is TokenKind.ACTION and record.turn == 1:
            # Junk behind the last commit takes no right from anybody.
            return [b"junk", record]
        return record

    report = await _audit(change)
    assert report.violations == ()
    assert report.counts["poison tokens.v1"] == 4
    assert report.counts["tasks"] == 4


async def test_what_lies_behind_the_end_is_superseded() -> None:
    bus = RecordedRun().write()
    last = next(r for r in bus.records(TOKENS) if r.episode_id == TRAINED and r.turn == 1)
    bus.append(TOKENS, dataclasses.replace(last, seq=5), partition=0)
    report = await audit(bus.consumers(), RUN)
    assert report.violations == ()
    assert report.tokens["superseded"] == 3
    assert report.tokens["sampled"] == 39


async def test_the_report_is_plain_data_and_prints() -> None:
    report = await _audit(only(LearnerEvent, _member(kept_tokens=4), **STEP))
    tree = report.to_json()
    fifth = next(i for i in tree["invariants"] if i["number"] == 5)
    assert fifth["violations"][0]["ids"] == [TRAINED]
    assert fifth["violations"][0]["offsets"] == ["learner-steps.v1[0]@2"]
    assert tree["clean"] is False
    out = io.StringIO()
    report.show(stream=out)
    assert "trained" in out.getvalue()
    assert "run run-1 (closed): " in out.getvalue()


async def test_a_retried_attempt_is_no_final_end() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if (
            type(record) is EpisodeEvent
            and record.kind is EpisodeEventKind.LEASED
            and record.attempt == 2
        ):
            failed = dataclasses.replace(
                record,
                kind=EpisodeEventKind.ENDED,
                attempt=1,
                stop_cause=StopCause.INFRASTRUCTURE_ERROR,
                writer_id=WorkerId("environment-0"),
            )
            return [failed, record]
        return record

    report = await _audit(change)
    assert report.violations == ()
