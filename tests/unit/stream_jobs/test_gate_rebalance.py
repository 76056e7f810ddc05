"""Gates that come, go, are expelled and lose acknowledgements: each admitted episode reaches the
learner exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from schemas import topics
from schemas.enums import GateOutcome
from schemas.errors import FencedError
from schemas.ports import Delivered
from schemas.records.gated_trajectory import GatedTrajectory
from stream_jobs import gate
from stream_jobs.settings import GateSettings
from tests.support.fake_rollout import RUN, context_on, policy
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.seeds import seeds
from tests.unit.stream_jobs.scheduling import author
from tests.unit.stream_jobs.trajectories import abandoned, issued, trajectory

SETTINGS = GateSettings(poll_s=0.002, commit_interval_s=0.004, records_max=7, max_age_s=1e9)
GROUPS = 24
FAULTS = (Fault.UNKNOWN_WRITTEN, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE)


class Gates:
    """Gate processes that a test starts, kills and expels."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> None:
        context = context_on(self.bus, name)
        self.running[name] = asyncio.create_task(gate.run(context, SETTINGS, codec=self.bus.codec))

    def kill(self, name: str) -> None:
        """End a process where it stands: nothing is committed, its partitions are lost."""
        self.running.pop(name).cancel()
        group = self.bus.groups.get(f"gate-{RUN}")
        if group is not None and name in group.members:
            self.bus.expel(f"gate-{RUN}", name)

    def check(self) -> None:
        for name, task in list(self.running.items()):
            if task.done():
                del self.running[name]
                if not isinstance(task.exception(), FencedError):
                    task.result()

    async def stop(self) -> None:
        for task in self.running.values():
            task.cancel()
        await asyncio.gather(*self.running.values(), return_exceptions=True)


def consumed(bus: MemoryBus) -> Counter[str]:
    """Return how often the learner takes each episode, by its rule of W and taken ids."""
    taken: Counter[str] = Counter()
    for partition in range(bus.partitions):
        highest = 0
        for message in bus.messages(topics.GATED, partition):
            assert isinstance(message, Delivered)
            record: GatedTrajectory = message.record
            is_repeat = record.trajectory_offset < highest or record.episode_id in taken
            highest = max(highest, record.input_offset)
            if not is_repeat:
                taken[record.episode_id] += 1
    return taken


def first_decisions(bus: MemoryBus) -> dict[str, set[str]]:
    """Return the admitted episodes of the first decision of each group."""
    admitted: dict[str, set[str]] = {}
    for decision in bus.records(topics.GATE_DECISIONS):
        admits: set[str] = {
            m.episode_id for m in decision.members if m.outcome is GateOutcome.ADMIT
        }
        admitted.setdefault(decision.group_id, admits)
    return admitted


def is_done(bus: MemoryBus) -> bool:
    wanted = set().union(*first_decisions(bus).values()) if first_decisions(bus) else set()
    gated = {record.episode_id for record in bus.records(topics.GATED)}
    return len(first_decisions(bus)) == GROUPS and wanted <= gated


class Campaign:
    """Trajectories that come in disorder, some twice, while gates live and die."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bus = MemoryBus(partitions=3)
        self.gates = Gates(self.bus)
        self.bus.append(topics.POLICIES, policy())
        for partition in range(3):
            self.bus.append(topics.EPISODES, author(1).fence(at_us=1), partition=partition)
        self.arrivals = [(ordinal, member) for ordinal in range(GROUPS) for member in range(2)]
        for ordinal, member in self.arrivals:
            self.bus.append(topics.EPISODES, issued(ordinal, member))
        self.dice.shuffle(self.arrivals)

    def arrive(self) -> None:
        """Let the assembler write the next trajectories."""
        for ordinal, member in self.arrivals[:3]:
            if self.dice.random() < 0.1:
                self.bus.append(topics.EPISODES, abandoned(ordinal, member))
                continue
            for _ in range(1 + (self.dice.random() < 0.2)):
                self.bus.append(topics.TRAJECTORIES, trajectory(ordinal, member))
        del self.arrivals[:3]

    async def harm(self) -> None:
        """Do one harmful thing, or none."""
        name = self.dice.choice(("gate-0", "gate-1"))
        group = self.bus.groups.get(f"gate-{RUN}")
        is_member = group is not None and name in group.members
        match self.dice.randrange(8):
            case 0 if name in self.gates.running:
                self.gates.kill(name)
            case 1 | 2 if name not in self.gates.running:
                self.gates.start(name)
            case 3 if is_member:
                self.bus.expel(f"gate-{RUN}", name)
            case 4:
                topic = self.dice.choice((topics.GATED, topics.GATE_DECISIONS))
                self.bus.faults.next(self.dice.choice(FAULTS), topic=topic)
            case 5:
                self.bus.land_late()
            case _:
                await asyncio.sleep(0.004)

    async def run(self) -> None:
        """Go on until everything that was admitted is with the learner."""
        self.gates.start("gate-0")
        self.gates.start("gate-1")
        try:
            async with asyncio.timeout(20):
                while self.arrivals or not is_done(self.bus):
                    await asyncio.sleep(0.001)
                    self.arrive()
                    await self.harm()
                    self.gates.check()
                    if not self.gates.running:
                        self.gates.start("gate-0")
                self.bus.land_late()
        finally:
            await self.gates.stop()


@pytest.mark.parametrize("seed", seeds(3, quick=1))
async def test_each_admitted_episode_is_consumed_exactly_once(seed: int) -> None:
    campaign = Campaign(seed)
    await campaign.run()
    admitted = set().union(*first_decisions(campaign.bus).values())
    assert consumed(campaign.bus) == Counter(dict.fromkeys(admitted, 1))
    gated = campaign.bus.records(topics.GATED)
    assert {record.episode_id for record in gated} == admitted
    first: dict[str, int] = {}
    for message in campaign.bus.messages(topics.GATE_DECISIONS):
        assert isinstance(message, Delivered)
        first.setdefault(message.record.group_id, message.offset)
    assert all(record.decision_offset == first[record.group_id] for record in gated)
