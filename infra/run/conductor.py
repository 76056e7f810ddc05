"""`sluice run` from start to end: Start record, processes, progress, stop, audit, summary, report.

Consumes every topic of the run (for progress and accounts); produces Start and Stop on `control`.
Waits for `Closed` from the learner; unblocked by it, by Ctrl-C, by `run.minutes_max`, or by a
process that cannot be kept alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from infra.run import environment
from infra.run.bus import Doors, counts_of
from infra.run.findings import find_out
from infra.run.folder import RunFolder, RunStart, write_atomically
from infra.run.history import History
from infra.run.mould import MOULDED
from infra.run.processes import Part, Processes
from infra.run.progress import Progress, what_it_waits_for
from infra.run.proof import prove
from infra.run.report import render
from infra.run.roles import ROLES, count_of
from infra.run.summary import summarise
from infra.settings import RunSettings
from infra.setup.extensions import learner_environ
from infra.setup.places import find_places
from infra.standing import delivered
from learner.settings import Device
from schemas.enums import ControlKind, Role
from schemas.errors import BusUnreachableError, SluiceError
from schemas.ports import Delivered, LogReader, Message
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    LEARNER_STEPS,
    POLICIES,
    REFRESHES,
    TOKENS,
    TRAJECTORIES,
    VERDICTS,
    Topic,
)

_READ: tuple[Topic[Any], ...] = (
    CONTROL, EPISODES, TOKENS, VERDICTS, TRAJECTORIES, GATE_DECISIONS, LEARNER_STEPS, POLICIES,
    REFRESHES,
)  # fmt: skip
_RECORDS_MAX = 2_000
_POLL_S = 0.25
_STOP_BUDGET_S = 60.0
_END_BUDGET_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: str
    closed: bool
    summary: Mapping[str, Any]
    folder: Path


class Disturber(Protocol):
    """Does something to the processes of a run while it goes on."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the processes are given beside those of this process."""
        ...

    async def run(self, processes: Processes, history: History) -> None:
        """Disturb until done or cancelled."""
        ...


def parts_of(settings: RunSettings) -> list[Part]:
    """Return the processes of a run."""
    return [
        Part(role=spec.name, index=index)
        for spec in ROLES.values()
        for index in range(count_of(spec, settings))
    ]


def open_history(doors: Doors, start: RunStart) -> tuple[History, LogReader]:
    """Return empty accounts and a reader of all topics they need, from the run's start."""
    starts = {topic: start.starts[topic.name] for topic in _READ}
    return History(run_id=start.run_id), doors.consumers.reader(starts)


async def catch_up(doors: Doors, history: History, reader: LogReader) -> None:
    """Read to the ends as they are now."""
    async for message in delivered(
        reader, _READ, clock=doors.clock, waiting_for="the run's records"
    ):
        history.take(message)


async def conduct(
    settings: RunSettings, *, folder: RunFolder, start: RunStart, doors: Doors, progress: Progress,
    disturber: Disturber | None = None,
) -> Outcome:  # fmt: skip
    """Run to the end and return how it ended; the caller has made the folder and written Start."""
    extra = {} if disturber is None else disturber.environment
    processes = Processes(
        parts_of(settings),
        run_folder=folder.root,
        logs=folder.logs,
        restarts_max=settings.run.restarts_max,
        environment={**os.environ, **learner_environ(find_places(os.environ)), **extra},
        # CUDA survives no fork.
        moulded=MOULDED if settings.learner.device is Device.CPU else frozenset(),
        # The sink takes the last words of all others; closed tables lack nothing then.
        last=frozenset({Role.SINK.value}),
    )
    history, reader = open_history(doors, start)
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    began_s = time.monotonic()
    processes.start()
    try:
        async with _disturbed(disturber, processes, history):
            reason = await _until_over(
                settings, processes, history, reader, progress, interrupted, began_s
            )
        if history.closed is None:
            progress.say(f"stopping: {reason}; what is pending stays for --resume")
            await doors.control(start.run_id, ControlKind.STOP, reason=reason)
            await _until_stopped(processes, budget_s=_STOP_BUDGET_S)
        else:
            await _until_stopped(processes, budget_s=_END_BUDGET_S)
    except SluiceError as error:
        reason = str(error)
        await doors.control(
            start.run_id, ControlKind.STOP, reason="a process could not be kept alive"
        )
        raise
    finally:
        killed = await asyncio.to_thread(processes.stop, budget_s=_END_BUDGET_S)
        if killed:
            progress.say(f"killed after {_END_BUDGET_S:.0f} s: {', '.join(killed)}")
        await reader.close()
    summary = await account(
        settings, folder=folder, start=start, doors=doors, restarts=processes.restarts
    )
    return Outcome(
        reason=reason, closed=bool(summary["closed"]), summary=summary, folder=folder.root
    )


async def _until_over(
    settings: RunSettings,
    processes: Processes,
    history: History,
    reader: LogReader,
    progress: Progress,
    interrupted: asyncio.Event,
    began_s: float,
) -> str:
    limit_s = settings.run.minutes_max * 60.0
    while True:
        for message in await _news(reader, progress):
            if isinstance(message, Delivered):
                history.take(message)
        if history.checkpointed_epoch == history.epoch:
            processes.got_on("learner", history.epoch)
        for line in processes.watch():
            progress.say(line)
        now_s = time.monotonic()
        alive = {name for name in processes.names() if processes.pid(name) is not None}
        waiting_for = what_it_waits_for(history, alive=alive, batch=settings.training.batch)
        progress.update(history, now_s=now_s, began_s=began_s, waiting_for=waiting_for)
        if history.closed is not None:
            return "the budget is reached and everything is accounted for"
        if interrupted.is_set():
            return "asked to stop"
        if now_s - began_s > limit_s:
            minutes = settings.run.minutes_max
            return f"run.minutes_max {minutes} is over while waiting for {waiting_for}"


async def _news(reader: LogReader, progress: Progress) -> Sequence[Message]:
    """Return what was written; a bus that is away is said and waited for, as every role does."""
    try:
        return await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S)
    except BusUnreachableError as error:
        progress.say(f"the bus does not answer: {error.message}")
        await asyncio.sleep(_POLL_S)
        return ()


@asynccontextmanager
async def _disturbed(
    disturber: Disturber | None, processes: Processes, history: History
) -> AsyncIterator[None]:
    """Let the disturber work meanwhile; its own failure is raised at the end."""
    if disturber is None:
        yield
        return
    task = asyncio.create_task(disturber.run(processes, history), name="disturber")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _until_stopped(processes: Processes, *, budget_s: float) -> None:
    ends_s = time.monotonic() + budget_s
    while time.monotonic() < ends_s:
        processes.watch(again=False)
        if not any(
            processes.pid(name)
            for name in processes.names()
            if name in ("learner-0", "scheduler-0")
        ):
            return
        await asyncio.sleep(_POLL_S)


async def account(
    settings: RunSettings, *, folder: RunFolder, start: RunStart, doors: Doors, restarts: int,
    keeps: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Audit the run, and write summary and report unless not `keeps`."""
    history, reader = open_history(doors, start)
    try:
        await catch_up(doors, history, reader)
    finally:
        await reader.close()
    report = await prove(doors, start.run_id, start.starts)
    tree = orjson.loads(settings.model_dump_json())
    summary = summarise(
        history,
        counts=counts_of(report),
        violations=len(report.violations),
        settings=tree,
        restarts=restarts,
    )
    if not keeps:
        return summary
    write_atomically(folder.summary, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    text = orjson.dumps(tree, option=orjson.OPT_INDENT_2).decode()
    page = render(
        history,
        summary,
        text,
        findings=await asyncio.to_thread(find_out, folder, start.run_id),
        began_in=environment.read(folder.environment),
        settings_digest=environment.settings_digest(
            text, Path(settings.learner.versions_dir).parent
        ),
    )
    write_atomically(folder.report, page.encode())
    return summary
