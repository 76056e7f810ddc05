"""Random faults: whatever an environment was shown is in the accepted prefix, once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from schemas.topics import TOKENS
from tests.support.inference_stand import (
    Stand,
    action_ids,
    episode,
    inference_settings,
    scripted,
    stand,
    wal_of,
)  # fmt: skip
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.seeds import seeds

E = episode()
TURNS = 3
FAULTS = [Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE]


class Environment:
    """Talks to whichever worker it likes, names every fence number, and refuses lower answers."""

    def __init__(self, workers: list[Stand], chance: random.Random) -> None:
        self.workers = workers
        self.chance = chance
        self.worker = workers[0]
        self.number = 0
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        self.shown: list[str] = []

    async def run(self) -> None:
        await self.turn_to(self.worker)
        for turn in range(TURNS):
            answer = await self.ask(turn)
            message = answer["choices"][0]["message"]
            self.shown.append(message["content"])
            self.messages += [message, {"role": "user", "content": f"and {turn}"}]

    async def turn_to(self, worker: Stand) -> None:
        self.worker = worker
        for _ in range(20):
            self.number += 1
            is_first = self.number == 1
            status, answer = await worker.open(E, number=self.number, first=is_first)
            if status == 200:
                return
            self.number = max(self.number, answer["error"].get("fence_number", 0))
        raise AssertionError("no session opens")

    async def ask(self, turn: int) -> dict[str, Any]:
        for _ in range(30):
            asked = asyncio.create_task(
                self.worker.chat(E, self.messages, turn=turn, number=self.number)
            )
            if self.chance.random() < 0.3:
                # It loses patience and turns to another worker while the first one still writes.
                await asyncio.sleep(self.chance.random() * 0.02)
                await self.turn_to(self.chance.choice(self.workers))
                asked.add_done_callback(lambda _: None)
                self.late = asked
                continue
            status, answer = await asked
            if status == 200 and answer["sluice"]["fence_number"] == self.number:
                return answer
            await self.turn_to(self.worker)
        raise AssertionError("no answer")


@pytest.mark.parametrize("seed", seeds(5, quick=1))
async def test_what_was_shown_is_accepted_and_nothing_is_sampled_twice(seed: int) -> None:
    chance = random.Random(seed)
    bus = MemoryBus(partitions=1)
    settings = inference_settings(
        commit_tokens=4,
        commit_interval_ms=2,
        scripted=scripted(
            tokens_per_s=3000.0, length_median_tokens=40, length_sigma=0.3, seed=seed
        ),
    )

    async def trouble() -> None:
        while True:
            await asyncio.sleep(chance.random() * 0.03)
            bus.faults.next(chance.choice(FAULTS), topic=TOKENS)
            bus.land_late()

    async with stand(bus, settings) as one, stand(bus, settings, worker="inference-2") as two:
        environment = Environment([one, two], chance)
        maker = asyncio.create_task(trouble())
        await environment.run()
        maker.cancel()
    bus.land_late()
    wal = wal_of(bus, E)
    said = one.tokenizer.decode(action_ids(wal))
    assert said == "".join(environment.shown), f"seed {seed}"
    bare = MemoryBus(partitions=1)
    async with stand(bare, settings) as alone:
        undisturbed = Environment([alone], random.Random(0))
        undisturbed.chance.random = lambda: 1.0  # type: ignore[method-assign]
        await undisturbed.run()
    assert environment.shown == undisturbed.shown, f"seed {seed}"
