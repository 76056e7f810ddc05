"""Nothing that anybody may still need is deleted, and what holds it has a name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from infra.trim import BusFacts, facts_of
from schemas.enums import (
    AbandonReason,
    ControlKind,
    DropReason,
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
)
from schemas.errors import SettingsError
from schemas.ids import RunId, WorkerId, episode_id, group_id
from schemas.records.control_event import ControlEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, LogEnd, MemberDecision, SkippedMember, TrainedMember
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    LEARNER_STEPS,
    PAYLOADS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
)
from tests.support.fake_rollout import RUN
from tests.support.memory_bus import MemoryBus
from tests.unit.stream_jobs.scheduling import author, issued_event
from tests.unit.stream_jobs.trajectories import trajectory

TRIMMED = (TOKENS, TOOL_EVENTS, PAYLOADS)


def control(kind: ControlKind, at: int, *, run: str = RUN, settings: str = "") -> ControlEvent:
    return ControlEvent(
        run_id=RunId(run),
        kind=kind,
        ends=tuple(LogEnd(topic=t.name, partition=0, offset=at) for t in TRIMMED),
        settings=settings,
        at_us=1,
        writer_id=WorkerId("cli"),
    )


class Log:
    """A run whose records are written by hand, all to partition 0."""

    def __init__(self, *, audited: int | None = 1_000, kept: int = 2) -> None:
        self.bus = MemoryBus(partitions=1)
        settings = json.dumps({"learner": {"checkpoints_kept": kept}})
        self.bus.append(CONTROL, control(ControlKind.START, 10, settings=settings))
        if audited is not None:
            self.bus.append(CONTROL, control(ControlKind.AUDITED, audited))
        self.bus.append(EPISODES, author().fence(at_us=1))
        self.number = 0
        for kind in (LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED):
            self.learner(kind)

    def issue(self, ordinal: int, *, floor: int) -> None:
        by: dict[str, Any] = {"scheduler_epoch": 1, "scheduler_id": author().scheduler_id}
        issued = replace(issued_event(ordinal, size=1), **by)
        self.bus.append(EPISODES, issued)
        leased = replace(
            issued, kind=EpisodeEventKind.LEASED, attempt=1, worker_id=WorkerId("environment-0"),
            tokens_floor=floor, tool_events_floor=floor + 1,
        )  # fmt: skip
        self.bus.append(EPISODES, leased)

    def abandon(self, ordinal: int) -> None:
        by: dict[str, Any] = {"scheduler_epoch": 1, "scheduler_id": author().scheduler_id}
        event = replace(
            issued_event(ordinal, size=1), kind=EpisodeEventKind.ABANDONED,
            abandon_reason=AbandonReason.RETRIES_EXHAUSTED, **by,
        )  # fmt: skip
        self.bus.append(EPISODES, event)

    def seal(self, ordinal: int, *, chunk: int, **fields: Any) -> None:
        chunks = (ChunkRef(partition=0, offset=chunk, length=1, crc32c=1),)
        self.bus.append(TRAJECTORIES, trajectory(ordinal, 0, chunks=chunks, **fields))

    def drop(self, ordinal: int) -> None:
        member = MemberDecision(
            episode_id=episode_id(RUN, ordinal, 0), trajectory_offset=0,
            outcome=GateOutcome.DROP, reason=DropReason.LAG,
        )  # fmt: skip
        self.bus.append(
            GATE_DECISIONS,
            GateDecision(
                run_id=RUN, group_id=group_id(RUN, ordinal), ordinal=ordinal, members=(member,),
                at_us=1, writer_id=WorkerId("gate-0"),
            ),
        )  # fmt: skip

    def learner(self, kind: LearnerEventKind, **fields: Any) -> None:
        self.bus.append(
            LEARNER_STEPS,
            LearnerEvent(
                run_id=RUN, kind=kind, learner_id=WorkerId("learner-0"), epoch=1,
                number=self.number, ordinal=self.number, at_us=1, writer_id=WorkerId("learner-0"),
                **fields,
            ),
        )  # fmt: skip

    def step(self, *ordinals: int) -> None:
        self.number += 1
        members = tuple(
            TrainedMember(episode_id=episode_id(RUN, o, 0), partition=0, offset=0) for o in ordinals
        )
        self.learner(LearnerEventKind.STEP, trained=members)

    async def floors(self) -> dict[str, int]:
        facts = await facts_of(self.bus.consumers())
        return {topic: hold.offset for (topic, _), hold in facts.holds().items()}


async def test_without_a_recorded_audit_nothing_may_be_deleted() -> None:
    log = Log(audited=None)
    with pytest.raises(SettingsError, match="no run has a recorded audit"):
        await log.floors()
    with pytest.raises(SettingsError, match="runs: none"):
        BusFacts().holds()


async def test_all_that_the_last_recorded_audit_saw_may_go_once_nobody_needs_it() -> None:
    log = Log(audited=400)
    log.bus.append(CONTROL, control(ControlKind.AUDITED, 700))
    assert await log.floors() == {topic.name: 700 for topic in TRIMMED}


async def test_a_run_that_was_never_audited_holds_everything_from_its_start() -> None:
    log = Log()
    log.bus.append(CONTROL, control(ControlKind.START, 300, run="run-2"))
    facts = await facts_of(log.bus.consumers())
    hold = facts.holds()[TOKENS.name, 0]
    assert (hold.offset, hold.run, hold.why) == (300, "run-2", "no audit is recorded")


async def test_an_episode_that_is_not_sealed_holds_its_tokens_and_tool_events() -> None:
    log = Log()
    log.issue(0, floor=500)
    log.issue(1, floor=600)
    assert await log.floors() == {TOKENS.name: 500, TOOL_EVENTS.name: 501, PAYLOADS.name: 1_000}
    log.abandon(0)
    assert (await log.floors())[TOKENS.name] == 600
    log.seal(1, chunk=1_200)
    assert (await log.floors())[TOKENS.name] == 1_000


async def test_payloads_are_held_until_a_kept_checkpoint_covers_their_training() -> None:
    log = Log(kept=2)
    for ordinal in range(3):
        log.seal(ordinal, chunk=100 * (ordinal + 1))
    assert (await log.floors())[PAYLOADS.name] == 100
    log.step(0)
    assert (await log.floors())[PAYLOADS.name] == 100
    log.learner(LearnerEventKind.CHECKPOINTED)
    assert (await log.floors())[PAYLOADS.name] == 200
    log.step(1)
    log.learner(LearnerEventKind.CHECKPOINTED)
    # Two are kept, and the learner may be told to go on from the older one.
    assert (await log.floors())[PAYLOADS.name] == 200
    log.step(2)
    log.learner(LearnerEventKind.CHECKPOINTED)
    assert (await log.floors())[PAYLOADS.name] == 300


async def test_what_is_dropped_evaluated_or_skipped_before_a_kept_checkpoint_holds_nothing() -> (
    None
):
    log = Log(kept=1)
    log.seal(0, chunk=100)
    log.drop(0)
    log.seal(1, chunk=200, purpose=Purpose.EVALUATE)
    log.seal(2, chunk=300)
    skipped = (
        SkippedMember(
            episode_id=episode_id(RUN, 2, 0), partition=0, offset=0, reason=DropReason.AGE
        ),
    )
    log.learner(LearnerEventKind.SKIPPED, skipped=skipped)
    assert (await log.floors())[PAYLOADS.name] == 300
    log.step()
    log.learner(LearnerEventKind.CHECKPOINTED)
    assert (await log.floors())[PAYLOADS.name] == 1_000


async def test_a_closed_run_holds_only_what_no_audit_has_seen() -> None:
    log = Log(audited=800)
    log.issue(0, floor=500)
    log.seal(1, chunk=100)
    log.learner(LearnerEventKind.CLOSED)
    assert await log.floors() == {topic.name: 800 for topic in TRIMMED}
