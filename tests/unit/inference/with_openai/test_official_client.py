"""The official client of the chat completions streams from the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import openai

from schemas.bearer import issue
from tests.support.inference_stand import (
    ASK,
    CALL,
    SECRET,
    TOOLS,
    Stand,
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


async def test_a_stream_shows_only_what_is_acknowledged() -> None:
    bus = MemoryBus(partitions=2)
    settings = inference_settings(
        commit_tokens=4, scripted=scripted(length_median_tokens=16, length_sigma=0.0)
    )
    async with stand(bus, settings) as worker:
        await worker.open(E)
        bus.faults.hold_acks()
        client = openai_client(worker)
        stream_task = asyncio.create_task(
            client.chat.completions.create(
                model="policy", messages=ASK, stream=True, extra_body={"sluice": {"turn": 0}}
            )
        )
        while len(commits(bus, E)) < 6:
            await asyncio.sleep(0.005)
        bus.faults.release_acks(3)  # the prompt and the first two commits of four tokens
        stream = await stream_task
        shown = ""
        async with asyncio.timeout(2):
            async for chunk in stream:
                shown += chunk.choices[0].delta.content or ""
                if len(shown) >= 8:
                    break
        assert len(shown) == 8
        bus.faults.release_acks()
        async for chunk in stream:
            shown += chunk.choices[0].delta.content or ""
        assert shown == worker.tokenizer.decode(action_ids(wal_of(bus, E)))


def openai_client(worker: Stand) -> Any:
    return openai.AsyncOpenAI(
        base_url=f"{worker.address}/v1", api_key=issue(SECRET, E, 1), max_retries=0, timeout=5
    )


async def test_the_official_client_streams_a_tool_call() -> None:
    settings = inference_settings(scripted=scripted(replies=(CALL,)))
    async with stand(MemoryBus(partitions=2), settings) as worker:
        await worker.open(E)
        stream = await openai_client(worker).chat.completions.create(
            model="policy", messages=ASK, tools=TOOLS, stream=True,
            stream_options={"include_usage": True}, extra_body={"sluice": {"turn": 0}},
        )  # fmt: skip
        said, finish = "", None
        calls: list[Any] = []
        usage: Any = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                finish = choice.finish_reason or finish
        assert said == "Well. "
        assert [c.function.name for c in calls] == ["add"]
        assert finish == "tool_calls"
        assert usage.completion_tokens == len(CALL) + 1
