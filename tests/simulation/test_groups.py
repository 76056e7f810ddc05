"""What the simulated machines owe the roles: a member of a group whose name went to another process
hears so, its successor keeps its session, and who says that it is ready takes the next lease.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest

from schemas.enums import EpisodeEventKind
from schemas.ids import EpisodeId, GroupId, WorkerId
from schemas.ports import Assigned, Context, Delivered, GroupEvent, Message, Revoked
from schemas.records.episode_event import EpisodeEvent
from schemas.records.worker_state import WorkerState
from schemas.topics import EPISODES
from tests.simulation.bus import SimBus
from tests.simulation.faults import Blow, ProcessFault
from tests.simulation.loop import SimLoop
from tests.simulation.scripted import roll_out
from tests.simulation.world import RUN, World

PARTITIONS = 2
OLD, NEW, OTHER = "assembler-1#1", "assembler-1#2", "assembler-0#1"


class Members:
    """Two members of one group, and what each of their processes heard."""

    def __init__(self, blow: Blow, for_ms: int, seed: int = 0) -> None:
        """Strike the second one at 4 s and let 40 s pass."""
        self.world = _world(seed)
        self.heard: dict[str, list[GroupEvent]] = defaultdict(list)
        loop = self.world.loop
        for name in ("assembler-0", "assembler-1"):
            self.world.add(name, self._poll, is_member=True)
        fault = ProcessFault(4_000, "assembler-1", blow, for_ms)
        loop.call_later(fault.at_ms / 1000, self.world.strike, fault)
        loop.run(40.0, lambda: False)

    async def _poll(self, context: Context) -> None:
        group = context.consumers.group(
            EPISODES,
            group="g",
            member=context.worker_id,
            starts=dict.fromkeys(range(PARTITIONS), 0),
            floors=lambda _: {},
        )
        while True:
            self.heard[context.incarnation] += await group.poll(records_max=9, timeout_s=1.0)

    def owned(self, process: str) -> set[int]:
        """Return what a process owns after all it heard."""
        owned: set[int] = set()
        for event in self.heard[process]:
            match event:
                case Assigned(partitions=partitions):
                    owned |= set(partitions)
                case Revoked(partitions=partitions):
                    owned -= set(partitions)
                case _:
                    pass
        return owned

    def ends_of(self, process: str) -> list[str]:
        """Return how a process ended, in words."""
        return [line for line in self.world.story if f"end {process}:" in line]


def _world(seed: int) -> World:
    loop = SimLoop()  # type: ignore[abstract]  # what the roles do not use is left out
    chance = random.Random(seed)
    world = World(loop, SimBus(loop, chance, partitions=PARTITIONS, fates={}), chance)
    world.is_told = True
    return world


@pytest.mark.parametrize("for_ms", [5, 300, 1_500, 9_000])
def test_a_member_that_was_replaced_hears_so_and_takes_nothing_from_its_successor(
    for_ms: int,
) -> None:
    for seed in range(10):
        members = Members(Blow.ZOMBIE, for_ms, seed)
        [end] = members.ends_of(OLD)
        assert "FencedError" in end
        assert len([e for e in members.heard[OLD] if isinstance(e, Assigned)]) == 1
        owned = [members.owned(process) for process in (NEW, OTHER)]
        assert sorted(map(sorted, owned)) == [[0], [1]]


@pytest.mark.parametrize("blow", [Blow.ZOMBIE, Blow.KILL])
def test_the_session_of_a_replaced_member_takes_nothing_from_its_successor(blow: Blow) -> None:
    members = Members(blow, 9_000 if blow is Blow.ZOMBIE else 200)
    revoked = [e for e in members.heard[NEW] if isinstance(e, Revoked)]
    assert not [e for e in revoked if e.lost]
    assert members.owned(NEW)


def test_a_member_that_stays_down_loses_its_partitions_to_the_other() -> None:
    members = Members(Blow.PAUSE, 20_000)
    assert len([e for e in members.heard[OTHER] if isinstance(e, Assigned)]) > 1
    lost = [e for e in members.heard[OLD] if isinstance(e, Revoked) and e.lost]
    assert lost, "it hears so when it comes back"


def test_an_environment_runs_the_leases_that_come_as_soon_as_it_says_that_it_is_ready() -> None:
    world = _world(0)
    world.watch = SimpleNamespace(lines={})
    world.add("environment-0", lambda context: roll_out(context, world))
    fence = _event(EpisodeEventKind.SCHEDULER_FENCE, EpisodeId(""))
    for partition in range(PARTITIONS):
        world.bus.append(EPISODES, fence, partition)
    episodes = [EpisodeId(f"run-1.{number}.0") for number in range(10)]

    def lease(message: Message) -> None:
        state = message.record if isinstance(message, Delivered) else None
        if isinstance(state, WorkerState) and world.loop.time() < 1.0:
            for episode in episodes:
                leased = _event(EpisodeEventKind.LEASED, episode)
                world.bus.append(EPISODES, replace(leased, incarnation=state.incarnation))

    world.bus.landed.append(lease)
    world.loop.run(5.0, lambda: False)
    records = [m.record for m in world.bus.records(EPISODES) if isinstance(m, Delivered)]
    ended = {r.episode_id for r in records if r.kind is EpisodeEventKind.ENDED}
    assert len(ended) > len(episodes) / 2, "now and then one is lost on purpose"


def _event(kind: EpisodeEventKind, episode: EpisodeId) -> EpisodeEvent:
    scheduler = WorkerId("scheduler-0")
    return EpisodeEvent(
        run_id=RUN,
        episode_id=episode,
        group_id=GroupId(episode.rpartition(".")[0] + ".g"),
        kind=kind,
        attempt=1,
        worker_id=WorkerId("environment-0"),
        scheduler_epoch=1,
        scheduler_id=scheduler,
        at_us=1,
        writer_id=scheduler,
    )
