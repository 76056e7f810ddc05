"""A thousand episodes at once for two minutes: is any lost, and what do the processes weigh?

Real processes of a run over a real broker: task source, scheduler, environment worker, inference
worker with the scripted engine behind the real gateway, verifier, assembler, gate, lag and age
jobs. No learner: the starting weights are published, and eta is so large that the admission
bound does not bind. Once as many episodes as asked for run, they are kept up for the whole time;
then the task source is stopped, what was offered is finished, and the log is read: an episode that
was issued and has no Trajectory is lost. The audit's violations are part of the result.

Prints a list of {name, value, unit, goal, conditions} as JSON: `python -m benchmarks.episodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.broker import RUN, Broker, own_broker
from benchmarks.figures import row
from infra.audit.audit import audit
from infra.run.folder import RunFolder, RunStart, make, write_atomically
from infra.run.processes import Part, Processes
from infra.run.roles import ROLES, count_of
from infra.settings import RunSettings, assemble
from infra.setup.places import find_places
from infra.topic_admin import topic_ids
from schemas.deadline import Deadline
from schemas.enums import ControlKind, EpisodeEventKind, LearnerEventKind
from schemas.errors import TransientError
from schemas.ids import EpisodeId, WorkerId
from schemas.ports import Context, Delivered, LogReader
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.trajectory import Trajectory
from schemas.topics import (
    ALL,
    CONTROL,
    EPISODES,
    LEARNER_STEPS,
    PARTITIONS_DEFAULT,
    POLICIES,
    TRAJECTORIES,
    Topic,
)

GOAL_GIB = 2.0
CONTROL_PLANE = ("scheduler", "assembler", "gate", "lag-age", "environment", "inference")
_LEFT_OUT = ("learner", "refresh", "sink")
_SPARE = 1.04
_START_S = 240.0
_FINISH_S = 180.0
_STOP_S = 30.0
_SEND_MS = 15_000
_RECORDS_MAX = 20_000
_SOURCE = "task-source-0"
_LEARNER = WorkerId("learner-0")
_GIB = 1 << 30


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the log says of the episodes, as far as it was read."""

    issued: set[EpisodeId] = field(default_factory=set)
    running: set[EpisodeId] = field(default_factory=set)
    abandoned: set[EpisodeId] = field(default_factory=set)
    sealed: set[EpisodeId] = field(default_factory=set)
    tokens: int = 0

    def take(self, record: EpisodeEvent | Trajectory) -> None:
        """Take one record of `episodes` or `trajectories`."""
        if isinstance(record, Trajectory):
            self.sealed.add(record.episode_id)
            self.tokens += record.action_tokens
            return
        match record.kind:
            case EpisodeEventKind.ISSUED:
                self.issued.add(record.episode_id)
            case EpisodeEventKind.LEASED:
                self.running.add(record.episode_id)
            case EpisodeEventKind.ENDED:
                self.running.discard(record.episode_id)
            case EpisodeEventKind.ABANDONED:
                self.running.discard(record.episode_id)
                self.abandoned.add(record.episode_id)
            case _:
                pass

    @property
    def lost(self) -> int:
        """Episodes issued without a Trajectory."""
        return len(self.issued - self.sealed)


def settings_of(model: Path, *, concurrent: int, episode_s: float) -> RunSettings:
    """Return the settings of a run that keeps this many episodes of about this length going."""
    slots = int(concurrent * _SPARE) + 4
    rate = 5.0
    tree: dict[str, Any] = {
        "run": {"name": "episodes", "steps": 1_000},
        "model": {"path": str(model)},
        "training": {
            "batch": 500,
            "eta": 1_000,
            "max_lag_steps": 1_000,
            "group_size": 4,
            "max_age_s": 3_600,
        },
        "bus": {"partitions": PARTITIONS_DEFAULT},
        "task_source": {
            "look_ahead_tasks": 64,
            "streams": [{"environment": "digits", "tokens_max": 2_000, "turn_tokens_max": 1_500}],
        },
        "scheduler": {"max_concurrent": slots},
        "environment": {
            "capacity": min(4096, slots + 64),
            "request_deadline_s": 500.0,
            "turn_deadline_s": 500.0,
            "verdict_deadline_s": 300.0,
        },
        "inference": {
            "engine": "scripted",
            "inflight_max": slots + 64,
            "request_deadline_s": 500.0,
            "open_deadline_s": 120.0,
            "commit_interval_ms": 500,
            "scripted": {
                "tokens_per_s": rate,
                "tick_ms": 100,
                "length_median_tokens": rate * episode_s,
                "length_sigma": 0.3,
            },
        },
    }
    return assemble(
        tree,
        places={
            "learner.versions_dir": "versions",
            "learner.checkpoints_dir": "checkpoints",
            "sink.tables_dir": "tables",
            "sink.address_file": "sink.json",
        },
    )


def make_folder(root: Path, broker: Broker, settings: RunSettings) -> RunFolder:
    """Write what the processes of a run read when they start."""
    folder = RunFolder(root=root)
    start = RunStart(
        run_id=RUN,
        bootstrap=broker.bootstrap,
        registry="",
        prefix=broker.prefix,
        starts={topic.name: dict.fromkeys(range(PARTITIONS_DEFAULT), 0) for topic in ALL},
        topic_ids=topic_ids(broker.bootstrap, prefix=broker.prefix),
    )
    make(folder, start, settings.model_dump(mode="json"))
    ids = {topic.name: number for number, topic in enumerate(ALL, 1)}
    write_atomically(folder.schemas, json.dumps({"ids": ids, "writers": {}}).encode())
    return folder


class Load:
    """One run of the processes, followed in the log."""

    def __init__(self, context: Context, processes: Processes) -> None:
        self._context = context
        self._processes = processes
        self._reader: LogReader
        self.seen = Seen()
        self.lowest = 0
        """Fewest episodes that ran at once while they were to be kept up."""
        self.peak_bytes: dict[str, int] = {}
        """Resident memory of the control plane by process, when their sum was highest."""

    async def run(self, *, concurrent: int, duration_s: float) -> None:
        """Start, keep the episodes up for the whole time, and let them finish."""
        await self._publish()
        starts = dict.fromkeys(range(PARTITIONS_DEFAULT), 0)
        self._reader = self._context.consumers.reader({EPISODES: starts, TRAJECTORIES: starts})
        self._processes.start()
        try:
            await self._until(
                lambda: len(self.seen.running) >= concurrent, _START_S, f"{concurrent} episodes"
            )
            self.lowest = len(self.seen.running)
            ends_s = time.monotonic() + duration_s
            while time.monotonic() < ends_s:
                await self._look()
                self.lowest = min(self.lowest, len(self.seen.running))
            self._processes.retire(_SOURCE)
            # What is not sealed by then counts as lost; the row says how many.
            await self._until(self._is_finished, _FINISH_S, "the last trajectories", must=False)
            await self._send(CONTROL, self._control(ControlKind.STOP))
        finally:
            await asyncio.to_thread(self._processes.stop, budget_s=_STOP_S)
            await self._reader.close()

    def _is_finished(self) -> bool:
        return self._processes.pid(_SOURCE) is None and not self.seen.lost

    async def _until(
        self, holds: Callable[[], bool], budget_s: float, what: str, *, must: bool = True
    ) -> None:
        ends_s = time.monotonic() + budget_s
        while not holds():
            if time.monotonic() > ends_s:
                if not must:
                    return
                raise TransientError(f"gave up on {what}: {self._words()}", hint="see the logs")
            await self._look()

    async def _look(self) -> None:
        for message in await self._reader.poll(records_max=_RECORDS_MAX, timeout_s=0.5):
            assert isinstance(message, Delivered), "nothing here is poison"
            self.seen.take(message.record)
        for line in self._processes.watch():
            sys.stderr.write(f"{line}\n")
        self._weigh()
        await asyncio.sleep(0.5)

    def _words(self) -> str:
        seen = self.seen
        return f"{len(seen.issued)} issued, {len(seen.running)} run, {len(seen.sealed)} sealed"

    def _weigh(self) -> None:
        now: dict[str, int] = {}
        for name in self._processes.names():
            pid = self._processes.pid(name)
            if pid is None or name.rpartition("-")[0] not in CONTROL_PLANE:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                parts = [process, *process.children(recursive=True)]
                now[name] = sum(one.memory_info().rss for one in parts)
        if sum(now.values()) > sum(self.peak_bytes.values()):
            self.peak_bytes = now

    async def _publish(self) -> None:
        """Write Start, and the starting weights as a learner does."""
        await self._send(CONTROL, self._control(ControlKind.START))
        for kind in (LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED):
            event = LearnerEvent(
                run_id=RUN, kind=kind, epoch=1, learner_id=_LEARNER, number=0, ordinal=0,
                at_us=self._context.clock.now_us(), writer_id=_LEARNER,
            )  # fmt: skip
            await self._send(LEARNER_STEPS, event)
        policy = PolicyVersion(
            run_id=RUN, epoch=0, number=0, digest="ab" * 32, ordinal=0, location="none",
            at_us=self._context.clock.now_us(), writer_id=_LEARNER,
        )  # fmt: skip
        await self._send(POLICIES, policy)

    def _control(self, kind: ControlKind) -> ControlEvent:
        now_us = self._context.clock.now_us()
        return ControlEvent(run_id=RUN, kind=kind, at_us=now_us, writer_id=WorkerId("cli"))

    async def _send(self, topic: Topic[Any], record: Any) -> None:
        now_ms = self._context.clock.monotonic_ms()
        deadline = Deadline.after(_SEND_MS, now_ms=now_ms, waiting_for=f"a record of {topic.name}")
        await self._context.producer.send(topic, record, deadline=deadline)


async def measure(
    broker: Broker, root: Path, *, concurrent: int, duration_s: float, episode_s: float
) -> list[dict[str, Any]]:
    model = find_places(os.environ).model
    settings = settings_of(model, concurrent=concurrent, episode_s=episode_s)
    folder = make_folder(root, broker, settings)
    parts = [
        Part(role=spec.name, index=index)
        for spec in ROLES.values()
        if spec.name not in _LEFT_OUT
        for index in range(count_of(spec, settings))
    ]
    processes = Processes(
        parts, run_folder=folder.root, logs=folder.logs, restarts_max=0, environment=os.environ
    )
    context = broker.context("learner-0")
    load = Load(context, processes)
    await load.run(concurrent=concurrent, duration_s=duration_s)
    report = await audit(context.consumers, RUN, context.starts)
    for one in report.violations[:20]:
        sys.stderr.write(f"violation of {one.invariant}: {one.what} {one.ids[:3]}\n")
    return _rows(load, len(report.violations), concurrent=concurrent, duration_s=duration_s)


def _rows(
    load: Load, violations: int, *, concurrent: int, duration_s: float
) -> list[dict[str, Any]]:
    seen = load.seen
    where = (
        f"{os.cpu_count()} {platform.machine()} cores with broker, scripted engine, {concurrent} "
        f"episodes at once for {duration_s:.0f} s (fewest {load.lowest})"
    )
    weights = ", ".join(f"{n} {b / _GIB:.2f}" for n, b in sorted(load.peak_bytes.items()))
    return [
        row(
            "episodes_lost",
            seen.lost,
            unit="episodes",
            goal=0,
            conditions=f"at most the goal; {where}; {len(seen.issued)} issued, "
            f"{len(seen.sealed)} sealed, {len(seen.abandoned)} abandoned, {seen.tokens} action "
            f"tokens, {violations} violations found by the audit",
        ),
        row(
            "control_plane_gib",
            round(sum(load.peak_bytes.values()) / _GIB, 3),
            unit="GiB",
            goal=GOAL_GIB,
            conditions=f"below the goal; {where}; resident memory with children, shared pages "
            f"counted in each, at its highest sum: {weights}",
        ),
    ]


def run(
    *, concurrent: int = 1_000, duration_s: float = 120.0, episode_s: float = 50.0
) -> list[dict[str, Any]]:
    """Measure once; takes three to six minutes on two cores."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="sluice-episodes-") as root:
        return asyncio.run(
            measure(
                broker,
                Path(root) / "run",
                concurrent=concurrent,
                duration_s=duration_s,
                episode_s=episode_s,
            )
        )


def numbers(words: list[str]) -> Mapping[str, Any]:
    """Return arguments of `run` from words like concurrent=100."""
    return {name: json.loads(value) for name, _, value in (word.partition("=") for word in words)}


if __name__ == "__main__":
    print(json.dumps(run(**numbers(sys.argv[1:])), indent=2))
