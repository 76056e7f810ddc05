"""The learner's shells on the memory bus: fences, poison, dead letters, payloads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from learner.bus import LearnerBus
from learner.core.consume import Consumption
from learner.intake import Intake
from learner.payloads import Lost, PayloadFetcher
from learner.settings import LearnerSettings
from schemas.deadline import Deadline
from schemas.enums import DropReason, GateOutcome, LearnerEventKind, RefreshEventKind
from schemas.errors import FencedError, SettingsError, UnknownOutcomeError
from schemas.ids import Version, WorkerId
from schemas.ports import Context, Poisoned
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef, MemberDecision
from schemas.records.refresh_event import RefreshEvent
from schemas.records.trajectory import Trajectory
from schemas.topics import (
    CONTROL,
    DEAD_LETTERS,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    PAYLOADS,
    POLICIES,
    REFRESHES,
    TRAJECTORIES,
    WORKERS,
    Topic,
)
from tests.support.gated_records import (
    RUN,
    GatedLog,
    heavy_of,
    random_group,
    starts_of,
    trajectory_of,
)
from tests.support.memory_bus import Fault, MemoryBus

SETTINGS = LearnerSettings(
    model_path="model", versions_dir="versions", checkpoints_dir="checkpoints", send_s=5.0
)


def context_of(bus: MemoryBus, name: str = "learner-0") -> Context:
    return Context(
        run_id=RUN, worker_id=WorkerId(name), incarnation=name, producer=bus.producer(),
        consumers=bus.consumers(), clock=bus.clock, starts=starts_of(bus), secret=b"",
        stop=asyncio.Event(),
    )  # fmt: skip


def deadline(bus: MemoryBus) -> Deadline:
    return Deadline.after(5_000, now_ms=bus.clock.monotonic_ms(), waiting_for="the test")


def intake_of(bus: MemoryBus) -> Intake:
    consumption = Consumption(dict.fromkeys(range(bus.partitions), 0))
    return Intake(context_of(bus), SETTINGS, bus.codec, consumption, {})


async def restored(bus: MemoryBus, name: str) -> LearnerBus:
    learner = LearnerBus(context_of(bus, name), SETTINGS)
    await learner.fence()
    await learner.append(learner.event(LearnerEventKind.RESTORED))
    return learner


async def test_a_newer_learner_fences_the_older_one_before_its_next_record_counts() -> None:
    bus = MemoryBus(partitions=2)
    old = await restored(bus, "learner-0")
    new = await restored(bus, "learner-1")
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(FencedError, match="epoch 2"):
        await old.append(old.event(LearnerEventKind.STEP, number=1, ordinal=1))
    assert new.log.newest_ordinal == 0
    await new.append(new.event(LearnerEventKind.STEP, number=1, ordinal=1))
    assert new.log.head == (Version(2, 1), 1)
    with pytest.raises(FencedError):
        await old.observe()


async def test_a_step_that_does_not_continue_the_log_stops_its_writer() -> None:
    learner = await restored(MemoryBus(partitions=2), "learner-0")
    with pytest.raises(FencedError, match="does not count"):
        await learner.append(learner.event(LearnerEventKind.STEP, number=5, ordinal=5))


async def test_an_unknown_step_ends_the_learner_and_an_unknown_version_is_sent_again() -> None:
    bus = MemoryBus(partitions=2)
    learner = await restored(bus, "learner-0")
    bus.faults.next(Fault.UNKNOWN_LOST, topic=LEARNER_STEPS)
    with pytest.raises(UnknownOutcomeError):
        await learner.append(learner.event(LearnerEventKind.STEP, number=1, ordinal=1))
    assert bus.records(POLICIES) == []


async def test_versions_that_workers_load_or_serve_are_referenced() -> None:
    bus = MemoryBus(partitions=2)
    learner = await restored(bus, "learner-0")
    for kind, number in ((RefreshEventKind.SERVING, 3), (RefreshEventKind.PREPARE, 4)):
        bus.append(
            REFRESHES,
            RefreshEvent(
                run_id=RUN, kind=kind, worker_id=WorkerId("inference-0"), epoch=1, number=number,
                at_us=1, writer_id=WorkerId("refresh-0"),
            ),
        )  # fmt: skip
    await learner.observe()
    assert learner.served == {Version(1, 3), Version(1, 4)}


async def test_a_gated_record_that_cannot_be_read_drops_its_groups_untrained_members() -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    first, second, third = (
        log.gated(trajectory_of(r, group_size=3, chunks=[_CHUNK]), [1.0, 0.0])
        for r in random_group(0, size=3)
    )
    bus.append(
        GATE_DECISIONS,
        GateDecision(
            run_id=RUN,
            group_id=first.group_id,
            members=tuple(
                MemberDecision(
                    episode_id=one.episode_id,
                    trajectory_offset=one.trajectory_offset,
                    outcome=GateOutcome.ADMIT,
                )
                for one in (first, second, third)
            ),
            at_us=1,
            writer_id=WorkerId("gate-0"),
        ),
    )
    bus.append(GATED, first)
    bus.append_raw(GATED, partition=0, raw=b"junk", key=first.group_id.encode())
    bus.append(GATED, third)
    intake = intake_of(bus)
    arrived, skipped = await intake.poll(timeout_s=0.1)
    assert arrived == 1
    assert [m.episode_id for m in skipped] == [
        first.episode_id, second.episode_id, third.episode_id,
    ]  # fmt: skip
    assert {m.reason for m in skipped} == {DropReason.INVALID_RECORD}
    assert intake.consumption.waiting == 0
    assert intake.consumption.take_repeats() == 1
    assert bus.records(DEAD_LETTERS)[0].raw == b"junk"


async def test_what_the_learner_cannot_read_on_its_own_topics_is_buried_and_passed_over() -> None:
    bus = MemoryBus(partitions=1)
    met: set[Topic[Any]] = {LEARNER_STEPS, CONTROL, WORKERS, REFRESHES, POLICIES}

    def spoil() -> None:
        for topic in met:
            bus.append_raw(topic, partition=0, raw=b"junk")

    spoil()
    learner = LearnerBus(context_of(bus), SETTINGS)
    await learner.fence()
    spoil()
    await learner.append(learner.event(LearnerEventKind.RESTORED))
    assert await learner.policies() == {}
    await learner.observe()
    assert (learner.log.epoch, learner.log.is_restored) == (1, True)
    letters = {(one.origin_topic, one.origin_offset) for one in bus.records(DEAD_LETTERS)}
    junk = {
        (topic.name, message.offset)
        for topic in met
        for message in bus.messages(topic)
        if isinstance(message, Poisoned)
    }
    assert letters == junk
    assert len(junk) == 2 * len(met)
    assert {one.consumer for one in bus.records(DEAD_LETTERS)} == {"learner"}


_CHUNK = ChunkRef(partition=0, offset=0, length=1, crc32c=0)


async def test_an_invalid_trajectory_is_skipped_once_with_its_evidence() -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    rollout = random_group(0, size=1)[0]
    bad = replace(trajectory_of(rollout, group_size=1, chunks=[_CHUNK]), tokenizer_digest="latest")
    record = log.gated(bad, [1.0])
    for _ in range(2):
        bus.append(GATED, record)
    intake = intake_of(bus)
    arrived, skipped = await intake.poll(timeout_s=0.1)
    assert arrived == 0
    assert [(m.reason, m.action_tokens) for m in skipped] == [
        (DropReason.INVALID_RECORD, bad.action_tokens)
    ]
    (letter,) = bus.records(DEAD_LETTERS)
    assert "tokenizer_digest" in letter.error
    assert intake.consumption.positions() == {0: 2}


async def test_a_verifier_that_changed_under_the_run_is_refused_by_name() -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    rollouts = random_group(0, size=2)
    one = trajectory_of(rollouts[0], group_size=2, chunks=[_CHUNK])
    other = replace(
        trajectory_of(rollouts[1], group_size=2, chunks=[_CHUNK]), verifier_digest="b" * 64
    )
    bus.append(GATED, log.gated(one, [1.0, 0.0]))
    bus.append(GATED, log.gated(other, [1.0, 0.0]))
    with pytest.raises(SettingsError, match="verifier of arithmetic"):
        await intake_of(bus).poll(timeout_s=0.1)


def trajectory(bus: MemoryBus, gated: GatedTrajectory) -> Trajectory:
    return bus.codec.decode(TRAJECTORIES, gated.trajectory_frame)


async def test_payloads_come_back_whole_in_any_order_through_one_reader() -> None:
    bus = MemoryBus(partitions=2)
    log = GatedLog(bus)
    groups = [random_group(ordinal) for ordinal in range(30)]
    written = [trajectory(bus, one) for group in groups for one in log.admit(group)]
    rollouts = [rollout for group in groups for rollout in group]
    fetcher = PayloadFetcher(context_of(bus))
    for chosen in ([100, 3, 50], [0, 1, 2], [119, 4]):
        found = await fetcher.fetch([written[i] for i in chosen], deadline=deadline(bus))
        for i in chosen:
            payload = found[written[i].episode_id]
            assert isinstance(payload, bytes)
            assert heavy_of(rollouts[i]).token_ids in payload
    await fetcher.close()


async def test_a_payload_that_is_wrong_or_gone_is_lost_and_the_others_are_not() -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    good, flipped, foreign, cut = (
        trajectory(bus, gated) for gated in log.admit(random_group(0, size=4))
    )
    flipped = replace(
        flipped, chunks=(replace(flipped.chunks[0], crc32c=flipped.chunks[0].crc32c ^ 1),)
    )
    foreign = replace(foreign, chunks=good.chunks)
    cut = replace(cut, payload_crc32c=cut.payload_crc32c ^ 1)
    fetcher = PayloadFetcher(context_of(bus))
    found = await fetcher.fetch([good, flipped, foreign, cut], deadline=deadline(bus))
    assert isinstance(found[good.episode_id], bytes)
    assert all(isinstance(found[t.episode_id], Lost) for t in (flipped, foreign, cut))
    bus.trim(PAYLOADS, 0, below=2)
    late = PayloadFetcher(context_of(bus))
    found = await late.fetch([good], deadline=deadline(bus))
    assert isinstance(found[good.episode_id], Lost)


async def test_of_two_processes_of_one_learner_that_start_at_once_one_goes_on() -> None:
    class Unaware(LearnerBus):
        async def catch_up(self, *, budget_s: float | None = None) -> None:
            """Read before the other wrote."""

    bus = MemoryBus(partitions=2)
    first, second = (Unaware(context_of(bus), SETTINGS) for _ in range(2))
    await first.fence()
    with pytest.raises(FencedError, match="has started epoch 1"):
        await second.fence()
    await first.append(first.event(LearnerEventKind.RESTORED))
