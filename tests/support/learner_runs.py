"""Whole learners on the memory bus, with an engine of eight numbers, to be killed anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.canary import Observe
from learner.settings import LearnerSettings
from learner.trainer import run
from schemas import crash_points
from schemas.crash_points import CrashPoint
from schemas.enums import ControlKind, LearnerEventKind
from schemas.ids import EpisodeId, WorkerId
from schemas.ports import Context, Delivered
from schemas.records.control_event import ControlEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import LogEnd
from schemas.rules.lineage import LearnerLog
from schemas.topics import CONTROL, GATED, LEARNER_STEPS
from tests.support.fake_ranks import FakeRanks
from tests.support.gated_records import RUN, GatedLog, random_group, starts_of
from tests.support.memory_bus import MemoryBus

SCHEDULER = WorkerId("scheduler-0")
BATCH = 8
GROUP = 4
EDGES = (
    CrashPoint.AFTER_OPTIMISER_STEP,
    CrashPoint.AFTER_VERSION_FILES,
    CrashPoint.AFTER_RECORD,
    CrashPoint.AFTER_ANNOUNCEMENT,
    CrashPoint.AFTER_CHECKPOINT_FILES,
    CrashPoint.AFTER_MARKER,
)


class KilledError(BaseException):
    """The process is gone; nothing of ours catches it."""


@contextmanager
def killed_at(point: CrashPoint, nth: int) -> Iterator[None]:
    """Die at the n-th reach of an edge."""
    left = nth

    def handler(reached: CrashPoint) -> None:
        nonlocal left
        left -= reached is point
        if reached is point and not left:
            raise KilledError(point)

    crash_points.arm(handler)
    try:
        yield
    finally:
        crash_points.arm(None)


def model_folder(root: Path) -> Path:
    """Return a folder that looks like a model's."""
    folder = root / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"dtype": "float32"}')
    (folder / "model.safetensors").write_bytes(b"starting weights")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("template")
    return folder


class LearnerWorld:
    """One run's bus and folders, and its learners one after another."""

    def __init__(self, root: Path, *, partitions: int = 1, **changes: object) -> None:
        self.bus = MemoryBus(partitions=partitions)
        self.log = GatedLog(self.bus)
        self.root = root
        values: dict[str, object] = {
            "model_path": str(model_folder(root)),
            "versions_dir": str(root / "versions"),
            "checkpoints_dir": str(root / "checkpoints"),
            "batch": BATCH,
            "steps": 6,
            "checkpoint_every": 2,
            "max_lag_steps": 100,
            "silence_s": 20.0,
        }
        self.settings = LearnerSettings.model_validate(values | changes)
        self.observe: Observe | None = None
        self.ranks: FakeRanks | None = None
        self.admitted = 0

    def admit(self, groups: int, *, first: int = 0) -> None:
        """Let groups of four arrive at the learner."""
        for ordinal in range(first, first + groups):
            self.admitted += len(self.log.admit(random_group(ordinal, size=GROUP)))

    def context(self, stop: asyncio.Event) -> Context:
        """Return what a new learner process is given."""
        return Context(
            run_id=RUN, worker_id=WorkerId("learner-0"), incarnation=f"{self.bus.clock.now_us():x}",
            producer=self.bus.producer(), consumers=self.bus.consumers(), clock=self.bus.clock,
            starts=starts_of(self.bus), secret=b"", stop=stop,
        )  # fmt: skip

    async def learn(
        self,
        until: Callable[[], bool],
        *,
        after_load: Callable[[NDArray[np.float64]], None] | None = None,
        **changes: object,
    ) -> None:
        """Run a learner until a condition holds, or it ends, or it is killed.

        after_load may spoil the weights that a checkpoint gave back.
        """
        stop = asyncio.Event()
        settings = self.settings.model_copy(update=changes)
        self.ranks = FakeRanks(settings, after_load=after_load)
        codec = self.bus.codec
        learner = run(self.context(stop), settings, codec, self.observe, ranks=self.ranks)  # type: ignore[arg-type]  # passes the suite of the real ones
        task = asyncio.create_task(learner)
        await self._wait(until, task)
        stop.set()
        await asyncio.wait_for(task, 20)

    async def die(self, point: CrashPoint, nth: int) -> bool:
        """Run a learner that dies at the n-th reach of an edge; return whether it came there."""
        with killed_at(point, nth):
            try:
                await self.learn(self.is_done)
            except KilledError:
                return True
        return False

    async def _wait(self, until: Callable[[], bool], task: asyncio.Task[None]) -> None:
        seen = -1
        while not task.done():
            # Decoding the whole log at every look would cost more than the learner.
            end = sum(self.bus.end(LEARNER_STEPS.name, p) for p in range(self.bus.partitions))
            if end != seen and until():
                return
            seen = end
            await asyncio.sleep(0.002)

    def is_done(self) -> bool:
        """Whether the budget is reached and covered by a checkpoint."""
        return self.read_log().surviving_ordinal >= self.settings.steps

    async def finish(self) -> None:
        """Run a learner to the budget and have it close the run."""
        stop = asyncio.Event()
        self.ranks = FakeRanks(self.settings)
        codec = self.bus.codec
        learner = run(self.context(stop), self.settings, codec, self.observe, ranks=self.ranks)  # type: ignore[arg-type]  # passes the suite of the real ones
        task = asyncio.create_task(learner)
        await self._wait(self.is_done, task)
        if not task.done():
            end_stream(self.bus, self.admitted)
        await asyncio.wait_for(task, 20)

    def events(self, kind: str) -> list[LearnerEvent]:
        """Return the learner's records of one kind, void ones included."""
        wanted = LearnerEventKind(kind)
        return [event for event in self.bus.records(LEARNER_STEPS) if event.kind is wanted]

    def read_log(self) -> LearnerLog:
        """Read the learner's log by the rule that every reader shares."""
        log = LearnerLog()
        for message in self.bus.messages(LEARNER_STEPS):
            assert isinstance(message, Delivered)
            log.take(message.offset, message.timestamp_ms, message.record)
        return log

    def counting_steps(self) -> list[LearnerEvent]:
        """Return the Steps on the lineage, oldest first."""
        counting = {ref.offset: ref.ordinal for ref in self.read_log().steps}
        found = [
            message.record
            for message in self.bus.messages(LEARNER_STEPS)
            if isinstance(message, Delivered) and message.offset in counting
        ]
        return sorted(found, key=lambda step: step.ordinal)

    def trained(self) -> Counter[EpisodeId]:
        """Return how often each episode is trained on the lineage."""
        return Counter(m.episode_id for step in self.counting_steps() for m in step.trained)


def end_stream(bus: MemoryBus, admitted: int) -> None:
    """Let the scheduler end the run."""
    for kind in (ControlKind.SCHEDULER_FENCE, ControlKind.DRAINING, ControlKind.END_OF_STREAM):
        ends = tuple(
            LogEnd(topic=GATED.name, partition=p, offset=bus.end(GATED.name, p))
            for p in range(bus.partitions)
        )
        values: dict[str, Any] = {"counts": {"admitted": admitted, "issued": admitted}}
        if kind is ControlKind.END_OF_STREAM:
            values["ends"] = ends
        bus.append(
            CONTROL,
            ControlEvent(
                run_id=RUN, kind=kind, scheduler_epoch=1, scheduler_id=SCHEDULER, at_us=1,
                writer_id=SCHEDULER, **values,
            ),
        )  # fmt: skip
