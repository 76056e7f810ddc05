"""Fences, unknown outcomes, deaths: the turn goes on at the next token after the prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from schemas.enums import TokenKind
from schemas.ids import EpisodeId
from schemas.packing import unpack_ids
from schemas.ports import Delivered
from schemas.topics import TOKENS
from tests.support.inference_stand import (
    Stand,
    action_ids,
    commits,
    context_on,
    episode,
    paced,
    serve,
    stand,
    until,
    wal_of,
)  # fmt: skip
from tests.support.memory_bus import Fault, MemoryBus

E = episode()
ASK: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
_UNDISTURBED: list[int] = []


async def undisturbed() -> list[int]:
    """Return what the scripted engine samples for the turn when nothing happens."""
    if not _UNDISTURBED:
        _UNDISTURBED.extend(await _sampled_alone())
    return _UNDISTURBED


async def _sampled_alone() -> list[int]:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        await worker.open(E)
        await worker.chat(E, ASK, turn=0)
    return action_ids(wal_of(bus, E))


async def reopened(
    worker: Stand, ask: Callable[[int], Awaitable[tuple[int, dict[str, Any]]]], number: int
) -> tuple[int, dict[str, Any]]:
    """Behave as an environment does: name a higher number until the answer is not `refence`."""
    for _ in range(5):
        status, answer = await ask(number)
        if status != 409 or answer["error"]["code"] != "refence":
            return status, answer
        number = max(number, answer["error"]["fence_number"]) + 1
        await worker.open(E, number=number, first=False)
    raise AssertionError("refence without end")


async def _standing(worker: Stand, bus: MemoryBus) -> asyncio.Task[tuple[int, dict[str, Any]]]:
    """Ask for the turn and wait until 30 of its tokens are in the log, where the engine stands."""
    worker.engine.ceiling = 30
    await worker.open(E)
    asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
    await until(lambda: len(action_ids(wal_of(bus, E))) == 30)
    return asked


@pytest.mark.parametrize("successor", ["inference-2", "inference-1"])
async def test_another_worker_or_its_own_next_process_goes_on_at_the_next_token(
    successor: str,
) -> None:
    bus = MemoryBus(partitions=2)
    next_process = replace(context_on(bus, successor), incarnation="the next")
    async with stand(bus, paced()) as one, serve(next_process, paced()) as two:
        one.engine.ceiling = 30
        await one.open(E)
        lost = asyncio.create_task(one.chat(E, ASK, turn=0))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 30)
        status, opened = await two.open(E, number=2, first=False)
        assert status == 200
        begun = opened["turns"][-1]
        assert (begun["kind"], begun["finished"]) == ("action", False)
        committed = wal_of(bus, E).length
        status, answer = await two.chat(E, ASK, turn=0, number=2)
        assert status == 200, answer
        assert answer["sluice"]["fence_number"] == 2
        # The whole turn is answered, the part of the first worker included.
        sampled = action_ids(wal_of(bus, E))
        assert answer["choices"][0]["message"]["content"] == two.tokenizer.decode(sampled)
        assert sampled == await undisturbed()
        assert max(two.engine.decoded.values()) == 1
        assert sum(two.engine.decoded.values()) == 121 - (committed - opened["turns"][0]["tokens"])
        one.engine.ceiling = None
        late_status, late = await lost
        # What the first worker answers late, it answers under the lower number.
        assert late_status == 200
        assert late["sluice"]["fence_number"] == 1
    assert action_ids(wal_of(bus, E)) == sampled
    assert wal_of(bus, E).superseded_action_tokens > 0, "the first process went on writing"


async def test_an_unknown_outcome_ends_in_refence_and_one_read_settles_it() -> None:
    for fault in (Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE):
        bus = MemoryBus(partitions=2)
        async with stand(bus, paced()) as worker:
            worker.engine.ceiling = 30
            await worker.open(E)
            asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
            await until(lambda: len(action_ids(wal_of(bus, E))) == 30)  # noqa: B023  awaited here
            bus.faults.next(fault, topic=TOKENS)
            worker.engine.ceiling = None
            status, answer = await asked
            assert (status, answer["error"]["code"]) == (409, "refence"), fault
            assert answer["error"]["fence_number"] == 1
            assert worker.context.producer.number == 2
            bus.land_late()
            status, answer = await reopened(
                worker, lambda n: worker.chat(E, ASK, turn=0, number=n), 1
            )
            assert (status, answer["sluice"]["fence_number"]) == (200, 2)
            bus.land_late()
            assert action_ids(wal_of(bus, E)) == await undisturbed()


async def test_every_live_episode_of_the_worker_is_told_to_refence() -> None:
    bus = MemoryBus(partitions=2)
    others = [episode(n) for n in range(1, 4)]
    async with stand(bus, paced()) as worker:
        worker.engine.ceiling = 30
        for one in (E, *others):
            await worker.open(one)
        asked = [asyncio.create_task(worker.chat(one, ASK, turn=0)) for one in (E, *others)]
        await until(lambda: all(len(action_ids(wal_of(bus, e))) == 30 for e in (E, *others)))
        bus.faults.next(Fault.UNKNOWN_LOST, topic=TOKENS)
        worker.engine.ceiling = 60
        answers = [await task for task in asked]
        assert [(s, a["error"]["code"]) for s, a in answers] == [(409, "refence")] * 4


async def test_a_fence_of_unknown_outcome_is_answered_with_refence() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        bus.faults.next(Fault.UNKNOWN_WRITTEN, topic=TOKENS)
        status, answer = await worker.open(E)
        assert (status, answer["error"]["code"]) == (409, "refence")
        assert (await worker.open(E, number=1, first=False))[1]["error"]["fence_number"] == 1
        status, _ = await worker.open(E, number=2, first=False)
        assert status == 200


async def test_a_full_queue_delays_and_loses_nothing() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        asked = await _standing(worker, bus)
        bus.faults.is_full = True
        worker.engine.ceiling = None
        await asyncio.sleep(0.05)
        bus.faults.is_full = False
        status, _ = await asked
        assert status == 200
        assert action_ids(wal_of(bus, E)) == await undisturbed()


async def test_a_commit_rejected_by_the_broker_ends_in_refence() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        asked = await _standing(worker, bus)
        bus.faults.next(Fault.REJECTED, topic=TOKENS)
        worker.engine.ceiling = None
        status, answer = await reopened(worker, lambda n: _joined(asked, worker, n), 1)
        assert status == 200, answer
        assert action_ids(wal_of(bus, E)) == await undisturbed()


async def _joined(
    first: asyncio.Task[tuple[int, dict[str, Any]]], worker: Stand, number: int
) -> tuple[int, dict[str, Any]]:
    return await (first if number == 1 else worker.chat(E, ASK, turn=0, number=number))


async def test_equal_and_lower_fences_are_refused_with_the_highest_number_read() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as one, stand(bus, worker="inference-2") as two:
        assert (await one.open(E, number=3, first=False))[0] == 200
        for number in (2, 3):
            status, answer = await two.open(E, number=number, first=False)
            assert (status, answer["error"]["code"]) == (409, "refence")
            assert answer["error"]["fence_number"] == 3
        assert (await two.open(E, number=4, first=False))[0] == 200


async def test_a_lower_attempt_is_fenced_off() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as one, stand(bus, worker="inference-2") as two:
        assert (await one.open(E, attempt=2, number=1, first=False))[0] == 200
        status, answer = await two.open(E, attempt=1, number=9, first=False)
        assert (status, answer["error"]["code"]) == (409, "fenced")


async def test_opening_the_same_fence_again_writes_no_second_fence() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        answers = await asyncio.gather(*(worker.open(E) for _ in range(3)))
        assert [status for status, _ in answers] == [200] * 3
        assert len(commits(bus, E)) == 1


async def test_a_request_under_a_number_that_was_not_opened_is_refused() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        status, answer = await worker.chat(E, ASK, turn=0, number=5)
        assert (status, answer["error"]["code"]) == (409, "refence")
        await worker.open(E, number=6, first=False)
        status, answer = await worker.chat(E, ASK, turn=0, number=7)
        assert (status, answer["error"]["fence_number"]) == (409, 7)
        status, answer = await worker.chat(E, ASK, turn=0, number=5)
        assert (status, answer["error"]["code"]) == (409, "fenced")


async def test_opening_anew_ends_what_the_older_fence_had_in_flight() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        worker.engine.ceiling = 30
        await worker.open(E)
        old = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await until(lambda: len(action_ids(wal_of(bus, E))) == 30)
        await worker.open(E, number=2, first=False)
        worker.engine.ceiling = None
        status, answer = await old
        assert (status, answer["error"]["code"]) == (409, "fenced")
        status, _ = await worker.chat(E, ASK, turn=0, number=2)
        assert status == 200
        assert action_ids(wal_of(bus, E)) == await undisturbed()


@pytest.mark.parametrize("deaths", [1, 3])
async def test_a_dead_engine_is_started_again_and_no_committed_token_is_decoded_twice(
    deaths: int,
) -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        worker.engine.ceiling = 30
        await worker.open(E)
        asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
        for number in range(1, deaths + 1):
            await until(lambda: len(action_ids(wal_of(bus, E))) == 30 * number)  # noqa: B023
            worker.engine.kill()
        worker.engine.ceiling = None
        status, answer = await asked
        assert status == 200, answer
        assert worker.service.keeper.restarts == deaths
        assert action_ids(wal_of(bus, E)) == await undisturbed()
        assert max(worker.engine.decoded.values()) == 1


async def test_a_turn_whose_last_token_was_committed_without_its_end_is_finished_not_sampled() -> (
    None
):
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        await worker.open(E)
        await worker.chat(E, ASK, turn=0)
    records = commits(bus, E)
    cut_off = MemoryBus(partitions=2)
    for message in records[:-1]:
        cut_off.append(TOKENS, message.record)
    assert isinstance(records[-1], Delivered)
    last = records[-1].record
    ids = list(unpack_ids(last.token_ids))
    async with stand(cut_off, paced(), worker="inference-2") as worker:
        await worker.open(E, number=2, first=False)
        status, answer = await worker.chat(E, ASK, turn=0, number=2, max_tokens=121 - len(ids))
        assert (status, answer["sluice"]["finish_reason"]) == (200, "length")
        assert worker.engine.requests == 0


async def test_an_older_turn_is_replayed_from_the_log_by_another_worker() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as one, stand(bus, worker="inference-2") as two:
        await one.open(E)
        _, first = await one.chat(E, ASK, turn=0)
        said = first["choices"][0]["message"]
        await one.chat(E, [*ASK, said, *ASK], turn=1)
        _, opened = await two.open(E, number=2, first=False)
        assert [(t["turn"], t["kind"]) for t in opened["turns"]] == [
            (0, "prompt"), (0, "action"), (1, "observation"), (1, "action"),
        ]  # fmt: skip
        _, replayed = await two.chat(E, ASK, turn=0, number=2)
        assert replayed["choices"][0]["message"] == said
        assert replayed["sluice"]["position"] == first["sluice"]["position"]
        status, _ = await two.chat(E, [*ASK, said, *ASK, dict(said), *ASK], turn=2, number=2)
        assert status == 422, "turn 1 said something else"
        assert two.engine.requests == 0


async def test_a_drained_worker_leaves_everything_it_sampled_in_the_log() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus, paced()) as worker:
        asked = await _standing(worker, bus)
        left = await worker.service.drain()
        assert left == 0
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (409, "refence")
        kept = len(action_ids(wal_of(bus, E)))
        assert sum(worker.engine.decoded.values()) == kept
    async with stand(bus, paced(), worker="inference-2") as two:
        await two.open(E, number=2, first=False)
        status, _ = await two.chat(E, ASK, turn=0, number=2)
        assert status == 200
        assert action_ids(wal_of(bus, E)) == await undisturbed()


async def test_a_damaged_record_is_skipped_and_the_turn_goes_on_before_it() -> None:
    bus = MemoryBus(partitions=1)
    async with stand(bus, paced()) as worker:
        asked = await _standing(worker, bus)
        bus.append_raw(TOKENS, partition=0, raw=b"junk", key=EpisodeId(E).encode())
        await worker.open(E, number=2, first=False)
        worker.engine.ceiling = None
        await asked
        status, _ = await worker.chat(E, ASK, turn=0, number=2)
        assert status == 200
        assert action_ids(wal_of(bus, E)) == await undisturbed()
        assert all(p.kind is not TokenKind.FENCE for p in wal_of(bus, E).pieces)
