"""The environment worker: episodes from lease to end over a bus in memory and fake gateways."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.ports import canonical
from environments.worker import run
from schemas.enums import EpisodeEventKind, StopCause, WorkerStatus
from schemas.errors import FencedError
from schemas.ids import WorkerId
from schemas.ports import Context
from schemas.records.task import Task
from schemas.records.worker_state import WorkerState
from schemas.topics import DEAD_LETTERS, EPISODES, TASKS, VERIFY_REQUESTS, WORKERS
from tests.support.environment_world import SETTINGS, World, until
from tests.support.fake_gateway import FakeGateway
from tests.support.memory_bus import Fault
from tests.support.task_records import task_of

CALCULATOR = canonical({"left": 2, "right": 3, "then": 4, "number": 7})


def counter(path: Path, **config: Any) -> Task:
    payload = registry.load("counter").payload({"path": str(path), **config}, 0, 0)
    return task_of("counter", payload)


async def test_a_single_turn_is_asked_judged_and_ended_in_this_order() -> None:
    world = World(lambda *_: "3 4")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        task = task_of("digits")
        episode = world.lease(task)
        ended = await world.ended(episode)
        path, body = gateway.requests[1]
    assert ended.stop_cause is StopCause.POLICY_STOP
    assert (ended.attempt, ended.turns, ended.fence_number) == (1, 1, 1)
    assert ended.wal_position == world.wal.episode(episode).turns[0].offset
    assert ended.token_count == 2
    [request] = world.bus.records(VERIFY_REQUESTS)
    assert json.loads(request.transcript)[-1] == {"role": "assistant", "content": "3 4"}
    assert world.bus.codec.decode(TASKS, request.task_frame) == task
    assert request.wal_position == ended.wal_position
    assert gateway.requests[0][1]["first"] is True
    assert path == "/v1/chat/completions"
    assert "seed" not in body
    assert (body["temperature"], body["max_tokens"]) == (1.0, 16)


@pytest.mark.slow
async def test_many_episodes_run_at_once_and_each_ends_once() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker() as context:
        world.announce(gateway)
        tasks = [task_of("digits", ordinal=number) for number in range(30)]
        episodes = [world.lease(task, member=m) for task in tasks for m in range(4)]
        await until(lambda: len(world.events(EpisodeEventKind.ENDED)) == len(episodes))
    ended = world.events(EpisodeEventKind.ENDED)
    assert {event.episode_id for event in ended} == set(episodes)
    states = [s.status for s in world.bus.records(WORKERS) if s.worker_id == context.worker_id]
    assert list(dict.fromkeys(states)) == ["starting", "ready", "draining", "stopped"]


async def test_a_turn_cut_off_by_its_budget_is_judged_as_truncated() -> None:
    world = World(lambda *_: "12")
    world.wal.finish = "length"
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        ended = await world.ended(world.lease(task_of("digits")))
    assert ended.stop_cause is StopCause.BUDGET_TRUNCATION
    assert len(world.bus.records(VERIFY_REQUESTS)) == 1


async def test_a_budget_of_turns_ends_the_episode(tmp_path: Path) -> None:
    world = World(lambda *_: "go on")
    task = replace(counter(tmp_path / "c.sqlite", calls=50), turns_max=3)
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        ended = await world.ended(world.lease(task))
    assert (ended.stop_cause, ended.turns) == (StopCause.BUDGET_TRUNCATION, 3)
    assert "3 turns" in ended.detail


async def test_a_worker_that_dies_mid_turn_is_replaced_under_a_higher_number() -> None:
    world = World(lambda *_: "12")
    wal = world.wal
    async with FakeGateway(wal, "inference-2").serving() as second, world.worker():
        async with FakeGateway(wal, "inference-1").serving() as first:
            first.hold.clear()
            world.announce(first)
            episode = world.lease(task_of("digits"))
            await until(lambda: len(first.requests) == 2)
            world.announce(second)
        # The first gateway is gone with its connections.
        ended = await world.ended(episode)
    assert (ended.stop_cause, ended.fence_number) == (StopCause.POLICY_STOP, 2)
    assert second.requests[0][1]["fence_number"] == 2
    assert second.requests[0][1]["first"] is False


async def test_a_worker_that_falls_silent_is_left_though_its_connection_stands() -> None:
    world = World(lambda *_: "12")
    async with (
        FakeGateway(world.wal, "inference-1").serving() as silent,
        FakeGateway(world.wal, "inference-2").serving() as other,
        world.worker(),
    ):
        silent.hold.clear()
        world.announce(silent)
        episode = world.lease(task_of("digits"))
        await until(lambda: len(silent.requests) == 2)
        world.announce(silent, incarnation="b", started_us=1, status=WorkerStatus.STOPPED)
        world.announce(other)
        ended = await world.ended(episode)
        silent.hold.set()
    assert (ended.stop_cause, ended.fence_number) == (StopCause.POLICY_STOP, 2)


async def test_refence_is_answered_with_a_number_above_the_highest_read() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.refuse(409, "refence", fence_number=6)
        world.announce(gateway)
        ended = await world.ended(world.lease(task_of("digits")))
        numbers = [b["fence_number"] for path, b in gateway.requests if path == "/v1/sessions"]
    assert numbers == [1, 7]
    assert ended.fence_number == 7


async def test_an_answer_under_a_lower_pair_than_asked_for_is_not_acted_on() -> None:
    world = World(lambda *_: "12")

    def lower(answer: dict[str, Any]) -> None:
        if answer["sluice"]["fence_number"] == 1:
            answer["sluice"]["fence_number"] = 0
            answer["choices"][0]["message"]["content"] = "late and wrong"

    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.spoil = lower
        world.announce(gateway)
        ended = await world.ended(world.lease(task_of("digits")))
    assert ended.fence_number == 2
    [request] = world.bus.records(VERIFY_REQUESTS)
    assert "late and wrong" not in request.transcript


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (400, "prompt_too_long", StopCause.BUDGET_TRUNCATION),
        (422, "not_append_only", StopCause.ENVIRONMENT_ERROR),
        (500, "invalid_logprob", StopCause.INFRASTRUCTURE_ERROR),
        (500, "version_mismatch", StopCause.INFRASTRUCTURE_ERROR),
    ],
)
async def test_a_refusal_for_good_ends_the_attempt_with_its_cause(
    status: int, code: str, cause: StopCause
) -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.refuse(status, code)
        world.announce(gateway)
        ended = await world.ended(world.lease(task_of("digits")))
    assert ended.stop_cause is cause
    assert code in ended.detail
    assert len(world.bus.records(VERIFY_REQUESTS)) == (0 if cause.is_retried else 1)


async def test_without_any_gateway_the_attempt_ends_as_an_infrastructure_error() -> None:
    world = World(lambda *_: "12")
    settings = SETTINGS.model_copy(update={"turn_deadline_s": 0.1})
    async with world.worker(settings=settings):
        ended = await world.ended(world.lease(task_of("digits")))
    assert ended.stop_cause is StopCause.INFRASTRUCTURE_ERROR
    assert "no inference worker is ready" in ended.detail


@pytest.mark.parametrize("breakage", ["payload", "package", "frame"])
async def test_a_task_that_cannot_begin_ends_as_an_environment_error(breakage: str) -> None:
    world = World(lambda *_: "12")
    task = task_of("digits")
    if breakage == "payload":
        task = replace(task, payload="no json")
    if breakage == "package":
        task = replace(task, environment="nowhere")
    async with world.worker():
        if breakage == "frame":
            episode = world.event(
                task, EpisodeEventKind.LEASED, attempt=1, lease_ms=60_000,
                worker_id=WorkerId("environment-1"), task_frame=b"junk",
            )  # fmt: skip
        else:
            episode = world.lease(task)
        ended = await world.ended(episode)
    assert ended.stop_cause is StopCause.ENVIRONMENT_ERROR
    assert ended.detail != ""


async def test_an_unknown_end_is_written_again_since_the_first_of_two_counts() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        world.bus.faults.next(Fault.UNKNOWN_LOST, topic=VERIFY_REQUESTS)
        episode = world.lease(task_of("digits"))
        ended = await world.ended(episode)
    assert ended.stop_cause is StopCause.POLICY_STOP
    assert len(world.bus.records(VERIFY_REQUESTS)) == 1


async def test_the_stop_signal_records_the_rest_as_paused() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway:
        gateway.hold.clear()
        async with world.worker():
            world.announce(gateway)
            episode = world.lease(task_of("digits"))
            await until(lambda: len(gateway.requests) == 2)
        [paused] = world.events(EpisodeEventKind.PAUSED, episode)
    assert (paused.attempt, paused.fence_number) == (1, 1)
    assert world.events(EpisodeEventKind.ENDED, episode) == []


async def test_a_pause_from_the_scheduler_is_recorded_at_once() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.hold.clear()
        world.announce(gateway)
        task = task_of("digits")
        episode = world.lease(task)
        await until(lambda: len(gateway.requests) == 2)
        world.event(task, EpisodeEventKind.PAUSE_REQUESTED, attempt=1)
        await until(lambda: len(world.events(EpisodeEventKind.PAUSED, episode)) == 1)


async def test_an_abandoned_episode_is_let_go_without_a_record() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.hold.clear()
        world.announce(gateway)
        task = task_of("digits")
        episode = world.lease(task)
        await until(lambda: len(gateway.requests) == 2)
        world.event(task, EpisodeEventKind.ABANDONED, attempt=1)
        await until(lambda: len(world.bus.records(EPISODES)) >= 6)
        gateway.hold.set()
    assert world.events(EpisodeEventKind.ENDED, episode) == []
    assert world.events(EpisodeEventKind.PAUSED, episode) == []


async def test_a_lease_that_has_run_out_by_the_workers_own_clock_writes_nothing() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        late = world.lease(task_of("digits"), lease_ms=1)
        await world.ended(world.lease(task_of("digits"), member=1))
        opened = [body["episode_id"] for path, body in gateway.requests if "sessions" in path]
        assert late not in opened
    events = [event for event in world.bus.records(EPISODES) if event.episode_id == late]
    assert [event.kind for event in events] == [EpisodeEventKind.LEASED]


async def test_waiting_at_the_gateway_renews_the_lease_while_a_request_may_take_so_long() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        gateway.hold.clear()
        world.announce(gateway)
        episode = world.lease(task_of("digits"), lease_ms=300)
        await until(lambda: len(world.events(EpisodeEventKind.PROGRESS, episode)) >= 8)
        gateway.hold.set()
        ended = await world.ended(episode)
    assert ended.stop_cause is StopCause.POLICY_STOP
    assert sum(p.at_gateway for p in world.events(EpisodeEventKind.PROGRESS, episode)) >= 7


async def test_a_poison_record_on_episodes_becomes_a_dead_letter_and_nothing_stops() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        world.bus.append_raw(EPISODES, partition=0, raw=b"junk")
        await world.ended(world.lease(task_of("digits")))
        await until(lambda: len(world.bus.records(DEAD_LETTERS)) == 1)


async def test_a_worker_is_ready_only_once_a_gateway_is() -> None:
    world = World(lambda *_: "12")

    def states() -> list[str]:
        return [s.status for s in world.bus.records(WORKERS) if s.worker_id == "environment-1"]

    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        assert set(states()) == {"starting"}
        world.announce(gateway, status=WorkerStatus.STARTING)
        await until(lambda: len(states()) == 2)
        world.announce(gateway)
        await until(lambda: "ready" in states())


async def test_a_lease_of_another_process_under_its_name_is_left_to_it() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker() as context:
        world.announce(gateway)
        others = world.lease(task_of("digits"), incarnation="z")
        ended = await world.ended(world.lease(task_of("digits"), member=1, incarnation="a"))
        assert ended.incarnation == context.incarnation
    assert [event.kind for event in world.bus.records(EPISODES) if event.episode_id == others] == [
        EpisodeEventKind.LEASED
    ]


async def test_a_lease_that_comes_as_soon_as_it_is_seen_ready_is_run() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker() as context:
        world.bus.faults.hold_acks()
        world.announce(gateway)
        await until(lambda: states_of(world, context)[-1].status is WorkerStatus.READY)
        # The scheduler has read of it, while it still waits for the acknowledgement.
        episode = world.lease(task_of("digits"), incarnation="a")
        world.bus.faults.release_acks()
        ended = await world.ended(episode)
        assert ended.incarnation == context.incarnation


async def test_a_lease_that_stands_twice_in_the_log_is_run_once() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway, world.worker():
        world.announce(gateway)
        task = task_of("digits")
        episode = world.lease(task)
        await world.ended(episode)
        world.lease(task)
        await world.ended(world.lease(task, member=1))
    sessions = [body["episode_id"] for path, body in gateway.requests if "sessions" in path]
    assert sessions.count(episode) == 1


async def test_a_process_ends_when_it_reads_of_a_younger_one_under_its_name() -> None:
    world = World(lambda *_: "12")
    async with FakeGateway(world.wal).serving() as gateway:
        world.announce(gateway)
        context = world.context()
        running = asyncio.create_task(run(context, SETTINGS, codec=world.bus.codec))
        await until(lambda: "ready" in [s.status for s in states_of(world, context)], running)
        gateway.hold.clear()
        episode = world.lease(task_of("digits"))
        await until(lambda: len(gateway.requests) == 2)
        [*_, ours] = states_of(world, context)
        for name, started_us in (("older", ours.started_us - 1), ("younger", ours.started_us + 1)):
            other = replace(ours, incarnation=name, started_us=started_us)
            world.bus.append(WORKERS, other)
        with pytest.raises(FencedError, match="younger"):
            await running
        gateway.hold.set()
    assert states_of(world, context)[-1].status is WorkerStatus.FAILED
    assert world.events(EpisodeEventKind.ENDED, episode) == []


def states_of(world: World, context: Context) -> list[WorkerState]:
    return [s for s in world.bus.records(WORKERS) if s.incarnation == context.incarnation]
