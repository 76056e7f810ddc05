"""The audit passes a sound run, and each invariant is seen to fail on a planted break."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import io
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.audit import report as report_module
from infra.audit.audit import Cut, Share, audit, audit_share
from infra.audit.processes import even
from infra.audit.report import NAMES, AuditReport
from schemas.enums import (
    ControlKind,
    EpisodeEventKind,
    LearnerEventKind,
    StopCause,
    TokenKind,
)
from schemas.ids import RunId, WorkerId
from schemas.partition import partition_of
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import LogEnd
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.topics import CONTROL, LEARNER_STEPS, PAYLOADS, TOKENS, TOOL_EVENTS, Topic
from tests.support.memory_bus import MemoryBus
from tests.support.planted_breaks import BREAKS, STEP, gone, member_with, only, with_list
from tests.support.recorded_run import ABANDONED, RESUMED, TRAINED, RecordedRun
from tests.support.run_records import RUN


async def _audit(change: Any = None, *, closed: bool = True) -> AuditReport:
    bus = RecordedRun(change, closed=closed).write()
    return await audit(bus.consumers(), RUN)


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


async def test_a_list_of_rejected_tokens_is_joined_to_its_step() -> None:
    report = await _audit(with_list(rejected_low=2, rejected_high=2))
    assert report.violations == ()
    assert report.counts["payload chunks"] == 5


def _lows(bus: MemoryBus, below: int) -> dict[str, dict[int, int]]:
    for topic in (TOKENS, TOOL_EVENTS, PAYLOADS):
        bus.trim(topic, partition=0, below=below)
    return {topic.name: {0: below} for topic in (TOKENS, TOOL_EVENTS, PAYLOADS)}


def _record_audit(bus: MemoryBus, report: AuditReport) -> None:
    ends = tuple(
        LogEnd(topic=topic, partition=partition, offset=offset)
        for topic, at in report.cut.items()
        for partition, offset in at.items()
    )
    event = ControlEvent(
        run_id=RUN, kind=ControlKind.AUDITED, ends=ends, at_us=0, writer_id=WorkerId("cli")
    )
    bus.append(CONTROL, event, partition=0)


async def test_what_was_trimmed_after_a_recorded_audit_is_left_to_it() -> None:
    bus = RecordedRun().write()
    before = await audit(bus.consumers(), RUN)
    _record_audit(bus, before)
    lows = _lows(bus, 3)
    after = await audit(bus.consumers(), RUN, lows=lows)
    assert [v.to_json() for v in after.violations] == []
    assert after.counts["episodes trimmed"] == 4
    headings = ("issued", "trained", "dropped", "abandoned", "evaluated", "pending")
    assert [after.counts[n] for n in headings] == [before.counts[n] for n in headings]
    assert after.checked[6] == before.checked[6]


async def test_what_was_trimmed_and_no_audit_has_seen_is_named() -> None:
    bus = RecordedRun().write()
    report = await audit(bus.consumers(), RUN, lows=_lows(bus, 3))
    found = {v.what for v in report.violations}
    assert "its tokens or tool events were deleted, and no recorded audit saw its end" in found
    assert "its payload was deleted, and no recorded audit saw its Trajectory" in found


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
    report = await _audit(only(LearnerEvent, member_with(kept_tokens=4), **STEP))
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
