"""A record is produced again once it decodes, and exactly once, whoever broke off before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consumers.dead_letters import bury
from infra.dead_letters import DECIDED_BY_PLACE, RIGHT_MS, Case, Desk
from infra.reissue import run_and_ordinal
from schemas.codec import Codec, schema_text
from schemas.enums import (
    AbandonReason,
    ControlKind,
    EpisodeEventKind,
    LetterKind,
    Role,
    StopCause,
    VerdictCode,
)
from schemas.errors import PoisonRecordError, SettingsError, UnknownOutcomeError
from schemas.ids import EpisodeId, WorkerId, episode_id, group_id
from schemas.ports import Poisoned
from schemas.records.verifier_result import VerifierResult
from schemas.topics import (
    ALL,
    CONTROL,
    DEAD_LETTERS,
    EPISODES,
    TASKS,
    TRAJECTORIES,
    VERDICTS,
    Topic,
)
from tests.support.clocks import HeldClock
from tests.support.fake_rollout import DIGEST, RUN, context_on, task
from tests.support.memory_bus import Fault, MemoryBus
from tests.unit.stream_jobs.scheduling import author, issued_event
from tests.unit.stream_jobs.trajectories import trajectory

LATER_ID = 900
"""Schema id that the readers of the run did not know."""


def verdict(ordinal: int = 0, **fields: Any) -> VerifierResult:
    values: dict[str, Any] = {"code": VerdictCode.CORRECT, "reward": 1.0} | fields
    return VerifierResult(
        run_id=RUN,
        episode_id=episode_id(RUN, ordinal, 0),
        group_id=group_id(RUN, ordinal),
        attempt=1,
        verifier_digest=DIGEST,
        at_us=1,
        writer_id=WorkerId("verifier-0"),
        **values,
    )


class Office:
    """A bus with a dead letter on it, and a desk whose codec knows the schema now."""

    def __init__(self) -> None:
        self.clock = HeldClock()
        self.bus = MemoryBus(partitions=2, clock=self.clock)
        self.codec = Codec(
            ids={topic.name: index + 1 for index, topic in enumerate(ALL)},
            writers={LATER_ID: schema_text(VERDICTS.schema)},
        )

    def desk(self, codec: Codec | None = None) -> Desk:
        return Desk(
            producer=self.bus.producer(),
            consumers=self.bus.consumers(),
            codec=codec or self.codec,
            clock=self.clock,
        )

    async def poison(self, topic: Topic[Any], record: Any, *, raw: bytes | None = None) -> Poisoned:
        """Let a record come in a schema that nobody knows, and be buried."""
        if raw is None:
            raw = b"\0" + LATER_ID.to_bytes(4, "big") + self.bus.codec.encode(topic, record)[5:]
        at = self.bus.append_raw(topic, partition=1, raw=raw, key=topic.key(record).encode())
        message = self.bus.message(topic.name, 1, at.offset)
        assert isinstance(message, Poisoned)
        await bury(context_on(self.bus, "assembler-0"), message, role=Role.ASSEMBLER)
        return message

    async def case(self) -> Case:
        (found,) = (await self.desk().cases()).values()
        return found

    def verdicts(self) -> list[VerifierResult]:
        return self.bus.records(VERDICTS)


async def test_a_record_is_produced_again_where_it_stood_and_a_repeat_is_refused() -> None:
    office = Office()
    await office.poison(VERDICTS, verdict())
    place = f"{office.bus.messages(DEAD_LETTERS)[0].partition}:0"
    case = await office.desk().case_at(place)
    copy = await office.desk().retry(case, retry_id="r1")
    assert (copy.topic, copy.partition, copy.offset) == (VERDICTS.name, 1, 1)
    assert office.verdicts() == [verdict()]
    again = await office.case()
    assert again.state is LetterKind.RETRIED
    with pytest.raises(SettingsError, match=r"was retried before: .* verdicts\.v1/1@1"):
        await office.desk().retry(again, retry_id="r2")
    with pytest.raises(SettingsError, match=r"another retry .* under way or done"):
        await office.desk().retry(case, retry_id="r3")
    assert len(office.verdicts()) == 1


async def test_two_consumers_that_buried_one_record_are_served_by_one_retry() -> None:
    office = Office()
    message = await office.poison(VERDICTS, verdict())
    await bury(context_on(office.bus, "sink-0"), message, role=Role.SINK)
    case = await office.case()
    assert len(case.letters) == 2
    await office.desk().retry(case, retry_id="r1")
    assert (await office.case()).state is LetterKind.RETRIED


async def test_what_still_does_not_decode_is_refused_with_the_reason() -> None:
    office = Office()
    await office.poison(VERDICTS, verdict(), raw=b"junk")
    with pytest.raises(PoisonRecordError, match="magic"):
        await office.desk().retry(await office.case(), retry_id="r1")
    assert (await office.case()).state is LetterKind.LETTER


async def test_before_the_schema_is_known_a_retry_is_refused_and_changes_nothing() -> None:
    office = Office()
    await office.poison(VERDICTS, verdict())
    with pytest.raises(PoisonRecordError):
        await office.desk(Codec.local()).retry(await office.case(), retry_id="r1")
    await office.desk().retry(await office.case(), retry_id="r2")
    assert len(office.verdicts()) == 1


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST])
async def test_a_retry_that_broke_off_is_followed_by_one_that_looks_first(fault: Fault) -> None:
    office = Office()
    await office.poison(VERDICTS, verdict())
    office.bus.faults.next(fault, topic=VERDICTS)
    with pytest.raises(UnknownOutcomeError):
        await office.desk().retry(await office.case(), retry_id="r1")
    case = await office.case()
    assert case.state is LetterKind.RETRY_BEGUN
    with pytest.raises(SettingsError, match="another retry"):
        await office.desk().retry(case, retry_id="r2")
    office.clock.advance(RIGHT_MS)
    copy = await office.desk().retry(await office.case(), retry_id="r3")
    assert copy.offset == 1
    assert len(office.verdicts()) == 1
    assert (await office.case()).state is LetterKind.RETRIED


async def test_a_settled_episode_is_never_reopened() -> None:
    office = Office()
    await office.poison(VERDICTS, verdict())
    office.bus.append(TRAJECTORIES, trajectory(0, 0), partition=1)
    with pytest.raises(SettingsError, match=r"has its Trajectory: a retry never reopens"):
        await office.desk().retry(await office.case(), retry_id="r1")
    assert office.verdicts() == []


@pytest.mark.parametrize(
    ("kind", "fields", "refused"),
    [
        (EpisodeEventKind.ENDED, {"stop_cause": StopCause.POLICY_STOP}, ""),
        (EpisodeEventKind.ABANDONED, {"abandon_reason": AbandonReason.RUN_ENDED}, "run_ended"),
    ],
)
async def test_a_verdict_still_counts_between_the_end_and_the_trajectory(
    kind: EpisodeEventKind, fields: dict[str, Any], refused: str
) -> None:
    office = Office()
    await office.poison(VERDICTS, verdict())
    by = author()
    identity: dict[str, Any] = {"scheduler_epoch": 1, "scheduler_id": by.scheduler_id}
    office.bus.append(EPISODES, by.fence(at_us=1), partition=1)
    issued = replace(issued_event(0, member=0), **identity)
    office.bus.append(EPISODES, issued, partition=1)
    leased = replace(
        issued, kind=EpisodeEventKind.LEASED, attempt=1, worker_id=WorkerId("environment-0")
    )
    office.bus.append(EPISODES, leased, partition=1)
    last = replace(
        leased, kind=kind, writer_id=WorkerId("environment-0"), worker_id=WorkerId(""), **fields
    )
    office.bus.append(EPISODES, last, partition=1)
    refusal = await office.desk().refusal(await office.case())
    assert (refused in str(refusal)) if refused else refusal is None


@pytest.mark.parametrize("topic", [topic for topic in ALL if topic in DECIDED_BY_PLACE])
async def test_what_means_something_only_where_it_stands_is_not_produced_again(
    topic: Topic[Any],
) -> None:
    office = Office()
    at = office.bus.append_raw(topic, partition=1, raw=b"junk", key=b"k")
    message = office.bus.message(topic.name, 1, at.offset)
    assert isinstance(message, Poisoned)
    await bury(context_on(office.bus, "gate-0"), message, role=Role.GATE)
    with pytest.raises(SettingsError, match="only where it stands"):
        await office.desk().retry(await office.case(), retry_id="r1")


async def test_a_task_is_reissued_once_under_the_next_free_ordinal() -> None:
    office = Office()
    for ordinal in range(3):
        office.bus.append(TASKS, task(ordinal))
    await office.poison(VERDICTS, verdict(1))
    at = await office.desk().reissue(await office.case(), retry_id="r1")
    new = office.bus.message(TASKS.name, at.partition, at.offset)
    assert not isinstance(new, Poisoned)
    assert (new.record.ordinal, new.record.payload) == (3, task(1).payload)
    assert new.record.task_id == f"{RUN}.3"
    with pytest.raises(SettingsError, match="was retried before"):
        await office.desk().reissue(await office.case(), retry_id="r2")
    assert len(office.bus.records(TASKS)) == 4


async def test_a_reissue_that_broke_off_is_found_again() -> None:
    office = Office()
    office.bus.append(TASKS, task(0))
    await office.poison(VERDICTS, verdict())
    office.bus.faults.next(Fault.UNKNOWN_WRITTEN, topic=TASKS)
    with pytest.raises(UnknownOutcomeError):
        await office.desk().reissue(await office.case(), retry_id="r1")
    office.clock.advance(RIGHT_MS)
    at = await office.desk().reissue(await office.case(), retry_id="r2")
    assert len(office.bus.records(TASKS)) == 2
    assert at.topic == TASKS.name


async def test_a_run_that_drains_takes_no_task_back() -> None:
    office = Office()
    office.bus.append(TASKS, task(0))
    await office.poison(VERDICTS, verdict())
    by = author()
    office.bus.append(CONTROL, by.control(ControlKind.SCHEDULER_FENCE, at_us=1))
    office.bus.append(CONTROL, by.control(ControlKind.DRAINING, at_us=1))
    with pytest.raises(SettingsError, match="reached its budget"):
        await office.desk().reissue(await office.case(), retry_id="r1")


def test_a_key_names_a_task_or_is_refused() -> None:
    for key in (f"{RUN}.7", f"{RUN}.7.g", f"{RUN}.7.2"):
        assert run_and_ordinal(key.encode()) == (RUN, 7)
    for key in ("", "k", "run.x"):
        with pytest.raises(SettingsError, match="names no task"):
            run_and_ordinal(key.encode())
    assert EpisodeId(f"{RUN}.7.2").rsplit(".", 2)[0] == RUN
