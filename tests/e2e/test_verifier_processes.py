"""The verifier worker over a bus in memory, with real judging processes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.ports import Gold
from environments.transcripts import to_text
from schemas.enums import ClockOwner, Purpose, VerdictCode
from schemas.ids import WorkerId, episode_id
from schemas.ports import Clock, Context
from schemas.records.task import Task
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest
from schemas.topics import DEAD_LETTERS, TASKS, VERDICTS, VERIFY_REQUESTS
from tests.support.clocks import BackwardClock, HeldClock
from tests.support.environment_world import until
from tests.support.faulty_judge import PACKAGE as FAULTY
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.task_records import RUN, task_of
from verifier.core.verdicts import Outcome
from verifier.judge import Judge
from verifier.settings import VerifierSettings
from verifier.worker import VerifierWorker

SETTINGS = VerifierSettings(
    judge_s=0.4, back_off_ms=1, tries_max=2, commit_interval_s=0.02, poll_ms=10, drain_s=2.0
)


class World:
    """A bus with requests to judge."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.bus = MemoryBus(partitions=2, clock=clock)
        self._count = 0

    @asynccontextmanager
    async def verifier(self, **changes: Any) -> AsyncIterator[Context]:
        context = Context(
            run_id=RUN,
            worker_id=WorkerId("verifier-1"),
            incarnation="verifier-1-a",
            producer=self.bus.producer(),
            consumers=self.bus.consumers(),
            clock=self.bus.clock,
            starts={},
            secret=b"secret",
            stop=asyncio.Event(),
        )
        settings = SETTINGS.model_copy(update=changes)
        worker = VerifierWorker(
            context, settings, self.bus.codec, program="tests.support.faulty_judge"
        )
        running = asyncio.create_task(worker.run())
        try:
            yield context
        finally:
            assert isinstance(context.stop, asyncio.Event)
            context.stop.set()
            async with asyncio.timeout(10):
                await running

    def ask(self, task: Task, **changes: Any) -> VerifyRequest:
        """Append a request for a task."""
        self._count += 1
        request = VerifyRequest(
            run_id=RUN,
            episode_id=episode_id(RUN, self._count, 0),
            group_id=task.group_id,
            task_id=task.task_id,
            attempt=1,
            purpose=Purpose.TRAIN,
            environment=task.environment,
            environment_digest=task.environment_digest,
            verifier_digest=task.verifier_digest,
            task_frame=self.bus.codec.encode(TASKS, task),
            at_us=self.bus.clock.now_us(),
            writer_id=WorkerId("environment-1"),
        )
        request = replace(request, **changes)
        self.bus.append(VERIFY_REQUESTS, request)
        return request

    def faulty(self, fault: str, **payload: str) -> VerifyRequest:
        """Append a request whose rubric fails as told."""
        task = replace(
            task_of("digits"),
            environment="faulty",
            verifier_digest=FAULTY.verifier_digest(),
            payload=json.dumps({"fault": fault, **payload}),
        )
        return self.ask(task)

    async def verdicts(self, count: int) -> dict[str, VerifierResult]:
        """Wait for so many verdicts and return them by episode."""
        await until(lambda: len(self.bus.records(VERDICTS)) >= count, seconds=20.0)
        return {result.episode_id: result for result in self.bus.records(VERDICTS)}


async def test_each_cause_has_its_own_code_and_only_three_carry_a_reward(tmp_path: Path) -> None:
    world = World()
    expected = {
        "correct": (VerdictCode.CORRECT, 1.0, ClockOwner.NONE, 1),
        "wrong_answer": (VerdictCode.WRONG_ANSWER, 0.0, ClockOwner.NONE, 1),
        "invalid_format": (VerdictCode.INVALID_FORMAT, 0.0, ClockOwner.NONE, 1),
        "tamper": (VerdictCode.TAMPER_DETECTED, None, ClockOwner.NONE, 1),
        "agent_timeout": (VerdictCode.TIMEOUT, None, ClockOwner.AGENT, 1),
        "hang": (VerdictCode.TIMEOUT, None, ClockOwner.VERIFIER, 2),
        "exit": (VerdictCode.INFRA_ERROR, None, ClockOwner.NONE, 2),
        "memory": (VerdictCode.INFRA_ERROR, None, ClockOwner.NONE, 2),
        "transient": (VerdictCode.INFRA_ERROR, None, ClockOwner.NONE, 2),
        "raise": (VerdictCode.VERIFIER_ERROR, None, ClockOwner.NONE, 2),
        "nan": (VerdictCode.VERIFIER_ERROR, None, ClockOwner.NONE, 1),
        "print": (VerdictCode.WRONG_ANSWER, 0.0, ClockOwner.NONE, 1),
    }
    async with world.verifier(processes=2):
        asked = {fault: world.faulty(fault) for fault in expected}
        again = world.faulty("exit", once=str(tmp_path / "once"))
        found = await world.verdicts(len(expected) + 1)
    for fault, request in asked.items():
        result = found[request.episode_id]
        seen = (result.code, result.reward, result.clock_owner, result.tries)
        assert seen == expected[fault], fault
        assert result.evidence_id
        assert result.cost_s > 0.0
        assert result.verifier_digest == request.verifier_digest
    assert (found[again.episode_id].code, found[again.episode_id].tries) == (VerdictCode.CORRECT, 2)
    assert found[asked["hang"].episode_id].cost_s >= 0.8


def submitted(gold: Gold) -> dict[str, Any]:
    return {
        "stop_cause": gold.right.stop_cause,
        "transcript": to_text(gold.right.transcript),
        "artifact": json.dumps(dict(gold.right.artifact)),
    }


async def test_the_rubrics_of_the_tasks_are_run_and_repeats_get_no_second_verdict() -> None:
    world = World()
    async with world.verifier() as context:
        asked = []
        for name in ("digits", "arithmetic", "calculator", "python_tool", "counter"):
            gold = registry.load(name).gold()[0]
            asked.append(world.ask(task_of(name, gold.payload), **submitted(gold)))
        world.bus.append(VERIFY_REQUESTS, asked[0])
        found = await world.verdicts(len(asked))
        world.bus.append(VERIFY_REQUESTS, asked[0])
        ends = await context.consumers.ends(VERIFY_REQUESTS)
        committed = world.bus.groups[f"verifier-{RUN}"].committed
        await until(lambda: {p: f.offset for p, f in committed.items()} == dict(ends))
    assert {found[request.episode_id].reward for request in asked} == {1.0}
    assert len(world.bus.records(VERDICTS)) == len(asked)


async def test_ten_retries_with_one_key_give_one_verdict_one_reward_and_the_summed_cost(
    tmp_path: Path,
) -> None:
    world = World()
    async with world.verifier(tries_max=11) as context:
        request = world.faulty("transient", once=str(tmp_path / "tries"), times="10")
        for _ in range(10):
            world.bus.append(VERIFY_REQUESTS, request)
        found = await world.verdicts(1)
        ends = await context.consumers.ends(VERIFY_REQUESTS)
        committed = world.bus.groups[f"verifier-{RUN}"].committed
        await until(lambda: {p: f.offset for p, f in committed.items()} == dict(ends))
    (result,) = world.bus.records(VERDICTS)
    assert (result.code, result.reward, result.tries) == (VerdictCode.CORRECT, 1.0, 11)
    assert result == found[request.episode_id]
    assert 0 < result.cost_s * 1e6 <= result.duration_us


async def test_a_fifth_of_the_calls_fails_and_the_rest_is_judged_as_if_none_did() -> None:
    dice = random.Random(11)
    worth = [dice.choice(("correct", "wrong_answer")) for _ in range(20)]
    fails = {n: dice.choice(("exit", "raise", "transient")) for n in dice.sample(range(20), 4)}
    runs: list[list[tuple[VerdictCode, float | None]]] = []
    for failing in ({}, fails):
        world = World()
        async with world.verifier(processes=2):
            asked = [world.faulty(failing.get(n, fault)) for n, fault in enumerate(worth)]
            found = await world.verdicts(20)
        judged = [found[request.episode_id] for request in asked]
        runs.append([(one.code, one.reward) for one in judged])
    calm, faulty = runs
    rest = [n for n in range(20) if n not in fails]
    assert [faulty[n] for n in rest] == [calm[n] for n in rest]
    assert {faulty[n][1] for n in fails} == {None}
    assert not any(faulty[n][0].carries_reward for n in fails)


async def test_a_request_for_another_digest_is_refused_with_the_reason() -> None:
    world = World()
    async with world.verifier():
        task = task_of("digits")
        other = world.ask(replace(task, verifier_digest="0" * 64))
        nowhere = world.ask(replace(task, environment="nowhere"))
        junk = world.ask(task, task_frame=b"junk")
        found = await world.verdicts(3)
    for request in (other, nowhere, junk):
        result = found[request.episode_id]
        assert (result.code, result.reward, result.tries) == (VerdictCode.VERIFIER_ERROR, None, 1)
    assert "0000000000000000" in found[other.episode_id].evidence
    assert "nowhere" in found[nowhere.episode_id].evidence


async def test_a_hanging_rubric_does_not_block_the_others() -> None:
    world = World()
    async with world.verifier(processes=2, judge_s=1.5):
        hanging = world.faulty("hang")
        rest = [world.faulty("correct") for _ in range(5)]
        found = await world.verdicts(5)
        assert hanging.episode_id not in found
        assert {request.episode_id for request in rest} == set(found)


async def test_poison_becomes_a_dead_letter_and_the_floor_passes_it() -> None:
    world = World()
    async with world.verifier() as context:
        world.bus.append_raw(VERIFY_REQUESTS, partition=0, raw=b"junk")
        world.faulty("correct")
        await world.verdicts(1)
        ends = await context.consumers.ends(VERIFY_REQUESTS)
        committed = world.bus.groups[f"verifier-{RUN}"].committed
        await until(lambda: {p: f.offset for p, f in committed.items()} == dict(ends))
    assert len(world.bus.records(DEAD_LETTERS)) == 1


async def test_a_verdict_whose_fate_is_unknown_is_sent_again() -> None:
    world = World()
    async with world.verifier():
        world.bus.faults.next(Fault.UNKNOWN_LOST, topic=VERDICTS)
        request = world.faulty("correct")
        found = await world.verdicts(1)
    assert found[request.episode_id].reward == 1.0


async def test_a_rubric_sees_none_of_the_processs_environment() -> None:
    world = World()
    async with world.verifier():
        request = world.faulty("secrets")
        found = await world.verdicts(1)
    names = found[request.episode_id].evidence
    assert "PATH" in names
    assert "SLUICE" not in names
    assert "USER" not in names


async def test_a_late_judgement_shows_in_its_own_time_and_as_the_wait_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, late_us, judge = HeldClock(), 200_000, Judge.judge

    async def judged_late(self: Judge, request: VerifyRequest, task: Task) -> Outcome:
        if request.episode_id == first.episode_id:
            clock.advance(late_us // 1000)
        return await judge(self, request, task)

    monkeypatch.setattr(Judge, "judge", judged_late)
    world = World(clock)
    first, second = world.faulty("correct"), world.faulty("wrong_answer")
    clock.advance(50)
    async with world.verifier(processes=1):
        await world.verdicts(2)
        third = world.faulty("correct")
        found = await world.verdicts(3)
    told = [found[asked.episode_id] for asked in (first, second, third)]
    assert [(one.queued_us, one.duration_us, one.cost_s) for one in told] == [
        (50_000, late_us, late_us / 1e6),
        (50_000 + late_us, 0, 0.0),
        (0, 0, 0.0),
    ]


async def test_a_wall_clock_that_is_set_back_takes_no_time_from_a_judgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, late_us, judge = BackwardClock(), 200_000, Judge.judge

    async def judged_late(self: Judge, request: VerifyRequest, task: Task) -> Outcome:
        clock.advance(late_us // 1000)
        return await judge(self, request, task)

    monkeypatch.setattr(Judge, "judge", judged_late)
    world = World(clock)
    async with world.verifier(processes=1):
        request = world.faulty("correct")
        found = (await world.verdicts(1))[request.episode_id]
    # Asked at a time of another machine, which lies ahead of ours: no wait, and never below none.
    assert (found.queued_us, found.duration_us, found.cost_s) == (0, late_us, late_us / 1e6)
