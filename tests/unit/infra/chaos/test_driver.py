"""The driver of a chaos run, on processes that only sleep."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from infra.chaos import driver as module
from infra.chaos.driver import Driver
from infra.chaos.plan import Act, Deed, Tally
from infra.run.history import History, StepRow
from infra.run.processes import Part, Processes
from schemas.crash_points import CrashPoint
from schemas.enums import LearnerEventKind
from schemas.ids import RunId, WorkerId
from schemas.records.learner_event import LearnerEvent

pytestmark = pytest.mark.slow

INFERENCE, LEARNER = "inference-0", "learner-0"


@pytest.fixture
async def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Processes]:
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    monkeypatch.setattr("infra.run.processes._PAUSE_FIRST_S", 0.01)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_MOVES_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_WORKS_WAIT_S", 0.0)
    parts = [Part(role="inference", index=0), Part(role="learner", index=0)]
    made = Processes(
        parts, run_folder=tmp_path, logs=tmp_path, restarts_max=50, environment=os.environ
    )
    made.start()
    yield made
    made.stop(budget_s=0.0)


def driver(plan: Sequence[Deed], orders: Path, wanted: int) -> Driver:
    def endless() -> Iterator[Deed]:
        yield from plan
        while True:
            yield Deed(after_s=0.01, act=Act.KILL, target=INFERENCE)

    return Driver(plan=endless(), tally=Tally(), wanted=wanted, orders=orders, broker=None)


async def driven(
    made: Driver, processes: Processes, *, history: History | None = None, seconds: float = 20.0
) -> None:
    """Run the driver, and start again what it kills, as a run does."""
    task = asyncio.create_task(made.run(processes, history or stepped()))
    async with asyncio.timeout(seconds):
        while not task.done():
            processes.watch()
            await asyncio.sleep(0.01)
    await task


def stepped(*, checkpointed_epoch: int = 1) -> History:
    """Accounts of a run whose learner has made a step."""
    learner = WorkerId(LEARNER)
    event = LearnerEvent(
        run_id=RunId(""), kind=LearnerEventKind.STEP, epoch=1, learner_id=learner, at_us=0,
        writer_id=learner,
    )  # fmt: skip
    row = StepRow(epoch=1, number=1, ordinal=1, at_ms=0, event=event)
    return History(run_id="", epoch=1, checkpointed_epoch=checkpointed_epoch, steps={1: row})


def state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_killed_part_is_hit_again_once_it_is_back(
    processes: Processes, tmp_path: Path
) -> None:
    made = driver([], tmp_path, wanted=3)
    await driven(made, processes)
    assert [done.deed.act for done in made.done] == [Act.KILL] * 3
    assert len({done.pid for done in made.done}) == 3


async def test_a_stopped_part_goes_on_after_its_time_and_is_left_alone_until_then(
    processes: Processes, tmp_path: Path
) -> None:
    stop = Deed(after_s=0.0, act=Act.STOP, target=LEARNER, lasts_s=0.3)
    at_once = Deed(after_s=0.0, act=Act.KILL, target=LEARNER)
    made = driver([stop, at_once], tmp_path, wanted=2)
    pid = processes.pid(LEARNER)
    await driven(made, processes)
    assert made.missed == 1
    assert processes.pid(LEARNER) == pid
    assert state_of(pid) in "SR"


async def test_the_end_of_the_run_lets_stopped_parts_go_on_and_takes_orders_back(
    processes: Processes, tmp_path: Path
) -> None:
    stop = Deed(after_s=0.0, act=Act.STOP, target=LEARNER, lasts_s=60.0)
    edge = Deed(after_s=0.0, act=Act.EDGE, target=INFERENCE, point=CrashPoint.AFTER_APPEND)
    late = Deed(after_s=60.0, act=Act.KILL, target=LEARNER)
    made = driver([stop, edge, late], tmp_path, wanted=5)
    task = asyncio.create_task(made.run(processes, stepped()))
    async with asyncio.timeout(20):
        while not ((tmp_path / INFERENCE).exists() and state_of(processes.pid(LEARNER)) == "T"):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert not (tmp_path / INFERENCE).exists()
    assert state_of(processes.pid(LEARNER)) in "SR"


async def test_an_edge_counts_when_it_was_reached_and_is_missed_when_it_was_not(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EDGE_WAIT_S", 0.05)
    monkeypatch.setattr(module, "_LEARNER_WAIT_S", 0.05)
    reached = Deed(after_s=0.0, act=Act.EDGE, target=INFERENCE, point=CrashPoint.AFTER_APPEND)
    never = Deed(after_s=0.0, act=Act.EDGE, target=LEARNER, point=CrashPoint.AFTER_MARKER)
    later = Deed(after_s=0.2, act=Act.KILL, target=INFERENCE)
    made = driver([reached, never, later], tmp_path, wanted=2)

    async def reach() -> None:
        while not (tmp_path / INFERENCE).exists():
            await asyncio.sleep(0.001)
        (tmp_path / INFERENCE).rename(tmp_path / f"{INFERENCE}.fired")

    reaching = asyncio.create_task(reach())
    await driven(made, processes)
    await reaching
    assert [done.deed for done in made.done] == [reached, later]
    assert made.missed == 1
    assert not (tmp_path / LEARNER).exists()


async def test_a_learner_that_kept_nothing_in_its_epoch_is_not_hit(
    processes: Processes, tmp_path: Path
) -> None:
    at_learner = Deed(after_s=0.0, act=Act.KILL, target=LEARNER)
    made = driver([at_learner], tmp_path, wanted=1)
    pid = processes.pid(LEARNER)
    await driven(made, processes, history=stepped(checkpointed_epoch=0))
    assert [done.deed.target for done in made.done] == [INFERENCE]
    assert made.missed == 1
    assert processes.pid(LEARNER) == pid


async def test_a_learner_whose_death_is_not_in_the_accounts_yet_counts_as_taken(
    processes: Processes, tmp_path: Path
) -> None:
    again = [Deed(after_s=0.0, act=Act.KILL, target=LEARNER)] * 2
    made = driver(again, tmp_path, wanted=2)
    await driven(made, processes)
    assert [done.deed.target for done in made.done] == [LEARNER, INFERENCE]
    assert made.missed == 1


async def test_nothing_is_drawn_or_missed_while_all_that_may_be_hit_is_taken(
    processes: Processes, tmp_path: Path
) -> None:
    once_more = [Deed(after_s=0.0, act=Act.KILL, target=LEARNER)] * 2
    made = driver(once_more, tmp_path, wanted=2)
    made.targets = frozenset({LEARNER})
    history = stepped()
    running = asyncio.create_task(driven(made, processes, history=history))
    async with asyncio.timeout(20):
        while not made.done:
            await asyncio.sleep(0.01)
        for _ in range(20):  # looks of the driver, and no deed
            await asyncio.sleep(0.01)
        assert len(made.done) == 1
        history.epoch = 2
        history.checkpointed_epoch = 2
        await running
    assert [done.deed.target for done in made.done] == [LEARNER] * 2
    assert made.missed == 0


async def test_the_plan_is_told_who_is_taken_and_what_was_missed(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EDGE_WAIT_S", 0.2)
    tally = Tally()
    taken: list[frozenset[str]] = []
    edge = Deed(after_s=0.0, act=Act.EDGE, target=INFERENCE, point=CrashPoint.AFTER_APPEND)

    def plan() -> Iterator[Deed]:
        tally.take(edge)
        yield edge
        while tally.edges[CrashPoint.AFTER_APPEND] == 1.0:
            taken.append(tally.busy)
            yield Deed(after_s=0.01, act=Act.STOP, target=LEARNER, lasts_s=0.01)
        yield Deed(after_s=0.0, act=Act.KILL, target=INFERENCE)

    made = Driver(plan=plan(), tally=tally, wanted=1000, orders=tmp_path, broker=None)
    with pytest.raises(RuntimeError):  # the plan is at its end
        await driven(made, processes)
    assert INFERENCE in taken[0]
    assert made.done[-1].deed.act is Act.KILL
    assert 0.0 < tally.edges[CrashPoint.AFTER_APPEND] < 1.0
