"""The gateway answers with durable tokens only, one turn at a time, and says no by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.engine import EngineDelta, GenerateRequest
from inference.scripted_engine import version_of
from inference.settings import Fault
from schemas.bearer import issue
from schemas.enums import CutReason, Drift, TokenKind
from schemas.ids import Version
from schemas.packing import unpack_ids, unpack_logprobs, unpack_spans, unpack_timing
from schemas.topics import DEAD_LETTERS
from tests.support.inference_stand import (
    ASK,
    CALL,
    TOOLS,
    action_ids,
    commits,
    episode,
    inference_settings,
    scripted,
    stand,
    wal_of,
)  # fmt: skip
from tests.support.memory_bus import MemoryBus

E = episode()


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


async def test_nothing_is_answered_before_every_commit_is_acknowledged() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        bus.faults.hold_acks()
        asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
        while len(commits(bus, E)) < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        # All of the turn is in the log, but nobody has said so yet.
        assert not asked.done()
        bus.faults.release_acks(1)
        await asyncio.sleep(0.02)
        assert not asked.done()
        bus.faults.release_acks()
        status, answer = await asked
        assert status == 200
        assert answer["sluice"]["position"] == commits(bus, E)[-1].offset


async def test_a_conversation_with_a_tool_grows_in_the_log() -> None:
    bus = MemoryBus(partitions=2)
    settings = inference_settings(commit_tokens=256, scripted=scripted(replies=(CALL,)))
    async with stand(bus, settings) as worker:
        await worker.open(E)
        _, first = await worker.chat(E, ASK, turn=0, tools=TOOLS)
        call = answered(first)["tool_calls"][0]
        assert call["function"] == {"name": "add", "arguments": '{"a": 2, "b": 2}'}
        messages = [
            *ASK,
            answered(first),
            {"role": "tool", "tool_call_id": call["id"], "content": "4"},
        ]
        status, _ = await worker.chat(
            E, messages, turn=1, tools=TOOLS, place={"result_offsets": [77]}
        )
        assert status == 200
        wal = wal_of(bus, E)
        kinds = [piece.kind for piece in wal.pieces]
        assert kinds == [
            TokenKind.PROMPT, TokenKind.ACTION, TokenKind.OBSERVATION, TokenKind.ACTION,
        ]  # fmt: skip
        observation = wal.pieces[2].commit
        # The client sends the call back as JSON of its own; our sampled ids stay.
        assert observation.drift in (Drift.CLEAN, Drift.REALIGN)
        assert observation.result_offset == 77
        assert observation.rests_on == wal.pieces[1].offset
        prompt = wal.pieces[0].commit
        assert len(prompt.digests.split()) == 3
        assert "add" in worker.tokenizer.decode(unpack_ids(prompt.token_ids))


async def test_several_results_are_each_named_by_an_observation() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        _, first = await worker.chat(E, ASK, turn=0)
        messages = [*ASK, answered(first), {"role": "tool", "content": "4"}]
        await worker.chat(E, messages, turn=1, place={"result_offsets": [5, 9]})
        shown = [p.commit.result_offset for p in wal_of(bus, E).pieces if p.turn == 1]
        assert shown[:2] == [5, 9]


async def test_repeats_join_a_turn_in_flight_and_replay_a_finished_one() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        bus.faults.hold_acks()
        asked = [asyncio.create_task(worker.chat(E, ASK, turn=0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        bus.faults.release_acks()
        answers = [await task for task in asked]
        answers.append(await worker.chat(E, ASK, turn=0))
        assert {status for status, _ in answers} == {200}
        assert len({answered(answer)["content"] for _, answer in answers}) == 1
        assert worker.engine.requests == 1


async def test_a_second_turn_in_flight_is_refused_as_busy() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        bus.faults.hold_acks()
        first = asyncio.create_task(worker.chat(E, ASK, turn=0))
        await asyncio.sleep(0.03)
        status, answer = await worker.chat(E, ASK, turn=1)
        assert (status, answer["error"]["code"]) == (409, "busy")
        bus.faults.release_acks()
        assert (await first)[0] == 200


@pytest.mark.parametrize(
    ("extra", "status", "code"),
    [
        ({"n": 2}, 400, "bad_request"),
        ({"stop": ["x"]}, 400, "bad_request"),
        ({"temperature": "hot"}, 400, "bad_request"),
        ({"max_tokens": 0}, 400, "bad_request"),
        ({"messages": []}, 400, "bad_request"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, "prompt_too_long"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(
    extra: dict[str, Any], status: int, code: str
) -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        body = {"messages": ASK, "sluice": {"turn": 0, "fence_number": 1}, **extra}
        got, answer = await worker.post("/v1/chat/completions", body, episode=E)
        assert (got, answer["error"]["code"]) == (status, code)
        assert answer["error"]["hint"]
        assert len(commits(bus, E)) == 1, "only the fence may be in the log"


async def test_a_token_of_another_run_is_unauthorised() -> None:
    async with stand(MemoryBus(partitions=2)) as worker:
        headers = {"Authorization": f"Bearer {issue(b'another secret', E, 1)}"}
        url = f"{worker.address}/v1/sessions"
        async with worker.http.post(url, json={}, headers=headers) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "unauthorised"


async def test_a_changed_history_needs_an_explicit_fork() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        await worker.chat(E, ASK, turn=0)
        changed = [*ASK, {"role": "assistant", "content": "something else"}, *ASK]
        status, answer = await worker.chat(E, changed, turn=1)
        assert (status, answer["error"]["code"]) == (422, "not_append_only")
        status, answer = await worker.chat(E, changed, turn=0, place={"fork": True})
        assert (status, answer["sluice"]["branch"]) == (200, 1)
        wal = wal_of(bus, E)
        assert (wal.branch, wal.sibling_tokens > 0) == (1, True)
        cut = next(c.record for c in commits(bus, E) if c.record.kind is TokenKind.CUT)
        assert cut.cut_reason is CutReason.FORK
        assert wal.pieces[0].commit.drift is Drift.FORK


async def test_three_updates_in_one_turn_give_four_spans_that_the_logprobs_confirm() -> None:
    bus = MemoryBus(partitions=2)
    settings = inference_settings(
        commit_tokens=8,
        scripted=scripted(length_median_tokens=160, length_sigma=0.0),
    )
    async with stand(bus, settings) as worker:
        worker.engine.ceiling = 0
        await worker.open(E)
        asked = asyncio.create_task(worker.chat(E, ASK, turn=0))
        for number in (1, 2, 3):
            worker.engine.ceiling = 35 * number
            while len(action_ids(wal_of(bus, E))) < 35 * number:
                await asyncio.sleep(0.002)
            await worker.service.keeper.swap(Path(), Version(1, number))
        worker.engine.ceiling = None
        status, answer = await asked
        assert status == 200, answer
        pieces = [p.commit for p in wal_of(bus, E).pieces if p.kind is TokenKind.ACTION]
        spans = [span for commit in pieces for span in unpack_spans(commit.spans)]
        assert list(dict.fromkeys(s.version for s in spans)) == [
            Version(0, 0), Version(1, 1), Version(1, 2), Version(1, 3),
        ]  # fmt: skip
        for commit in pieces:
            (span,) = unpack_spans(commit.spans)
            assert {version_of(value) for value in unpack_logprobs(commit.logprobs)} == {
                span.version
            }
        assert sum(s.end - s.start for s in spans) == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "fault", [Fault.NAN, Fault.POSITIVE, Fault.INFINITE, Fault.MISSING, Fault.WRONG_LENGTH]
)
async def test_a_bad_logprob_quarantines_the_whole_call_and_flags_the_engine(fault: Fault) -> None:
    await quarantined(fault, "invalid_logprob")


async def test_versions_that_the_engine_does_not_attest_quarantine_the_whole_call() -> None:
    await quarantined(Fault.WRONG_VERSION, "version_mismatch")


async def quarantined(fault: Fault, code: str) -> None:
    bus = MemoryBus(partitions=2)
    settings = inference_settings(
        commit_tokens=4,
        scripted=scripted(
            fault=fault, fault_at_token=70, fault_every_requests=2, length_median_tokens=90,
            length_sigma=0.0,
        ),
    )  # fmt: skip
    async with stand(bus, settings) as worker:
        await worker.open(E)
        status, answer = await worker.chat(E, ASK, turn=0)
        assert (status, answer["error"]["code"]) == (500, code)
        wal = wal_of(bus, E)
        # Sixty-four tokens were in the log before the bad one came; the call is taken back whole.
        assert wal.superseded_action_tokens >= 64
        assert not action_ids(wal)
        (letter,) = bus.records(DEAD_LETTERS)
        assert letter.error_class == code
        assert worker.service.keeper.flags == {code: 1}
        status, _ = await worker.chat(E, ASK, turn=0)
        assert status == 200, "the same turn starts anew"
        assert len(action_ids(wal_of(bus, E))) == 91


async def test_a_turn_tells_what_its_engine_prefilled_and_what_it_reused() -> None:
    bus = MemoryBus(partitions=2)
    cached = 0
    async with stand(bus) as worker:
        sample = worker.engine.generate

        async def with_cache(request: GenerateRequest) -> AsyncIterator[EngineDelta]:
            # As vLLM does: each delta says it again, or the first one alone.
            left = len(request.prompt_ids) - cached
            async for delta in sample(request):
                yield replace(delta, prefilled_tokens=left, reused_tokens=cached)

        worker.engine.generate = with_cache  # type: ignore[method-assign]
        await worker.open(E)
        _, first = await worker.chat(E, ASK, turn=0)
        cached = 17
        more = [*ASK, answered(first), {"role": "user", "content": "and now?"}]
        _, second = await worker.chat(E, more, turn=1)
    for answer, reused in ((first, 0), (second, 17)):
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == reused
        last = wal_of(bus, E).pieces[-1 if reused else 1].commit
        timing = unpack_timing(last.timing)
        assert last.finish_reason.value != "none"
        assert timing.reused_tokens == reused
        assert timing.prefilled_tokens + timing.reused_tokens == usage["prompt_tokens"]


async def test_text_completions_and_token_ids_keep_the_same_history() -> None:
    bus = MemoryBus(partitions=2)
    async with stand(bus) as worker:
        await worker.open(E)
        place = {"turn": 0, "fence_number": 1}
        _, first = await worker.post(
            "/v1/completions", {"prompt": "Say:", "sluice": place}, episode=E
        )
        text = "Say:" + first["choices"][0]["text"] + "<|im_end|>" + " and"
        status, second = await worker.post(
            "/v1/completions", {"prompt": text, "sluice": {**place, "turn": 1}}, episode=E
        )
        assert status == 200, second
        _, third = await worker.post(
            "/v1/tokens", {"token_ids": [65, 66], "sluice": {**place, "turn": 2}}, episode=E
        )
        last = wal_of(bus, E).pieces[-1]
        assert third["token_ids"] == list(unpack_ids(last.commit.token_ids))
        assert third["logprobs"] == list(unpack_logprobs(last.commit.logprobs))
        assert third["spans"] == [[last.start, last.start + last.count, 0, 0]]
