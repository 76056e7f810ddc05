"""What our path of a trajectory costs beside raw Kafka: payload and metadata of 1,024 tokens put,
decided by the gate's rule and fetched, against a raw put and get of the same bytes.

Ours goes as in a run, in one process: chunks through the write door, each Trajectory after the
acknowledgement of its chunk; the gate's core takes what the read door gives, decides per group,
writes the decisions and follows what it reads back; the learner's fetcher reads each admitted
payload by its position and checks it. The raw arm produces the same frames to the same partitions
with the same settings, looks at every delivery, and consumes them as bytes while it produces.

Prints a list of {name, value, unit, goal, conditions} as JSON: `python -m benchmarks.trajectories`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.assembler import COMMITS, GROUP, REGISTRY, load
from benchmarks.broker import RUN, Broker, own_broker
from benchmarks.codec import TOKENS_PER_COMMIT
from benchmarks.figures import interval, median, ratio_row, row
from benchmarks.raw import Frame, RawDoor, frame_of
from learner.payloads import Lost, PayloadFetcher
from producers.core.routing import partition_for
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import LearnerEventKind
from schemas.ids import WorkerId
from schemas.ports import Acked, Context, Delivered, LogReader, Message, Pending
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.trajectory import Trajectory
from schemas.rules.lineage import LearnerLog
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    PARTITIONS_DEFAULT,
    PAYLOADS,
    TRAJECTORIES,
)
from stream_jobs.core.deciding import Writer, decision_on
from stream_jobs.core.floors import Floors
from stream_jobs.core.gate import Arrived, GatePartition, OpenGroup
from stream_jobs.core.sealing import Sealed
from stream_jobs.core.staleness import Bounds, Judged, constant, judge
from stream_jobs.reading import settled
from stream_jobs.settings import GroupRule

RATIO_GOAL = 0.5
RATE_GOAL = 10_000
_WINDOW = 256
_BUDGET_MS = 60_000
_RECORDS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one block writes."""

    sealed: Sequence[Sealed]
    issued: Sequence[EpisodeEvent]
    """A SchedulerFence, then Issued and Leased of every episode."""
    frames: Sequence[Frame]
    """Every payload and Trajectory as bytes, for the raw arm."""


class Path:
    """Our path of one block: put, decide, fetch, all three at once in one process."""

    def __init__(self, context: Context, codec: Codec) -> None:
        self._context = context
        self._codec = codec
        self._fetcher = PayloadFetcher(context)
        self._learner = _learner()
        self._bounds = Bounds(max_lag_steps=4, max_age_ms=600_000, weight=constant)
        self._reader: LogReader
        self._partitions: dict[int, GatePartition] = {}

    async def open(self) -> None:
        """Read from the ends as they are now."""
        ends = {t: await self._context.consumers.ends(t) for t in (TRAJECTORIES, GATE_DECISIONS)}
        self._reader = self._context.consumers.reader(ends)

    async def block(self, load: Load) -> float:
        """Return trajectories a second, from the first offer to the last payload checked."""
        self._issue(load)
        began = time.perf_counter()
        admitted: asyncio.Queue[list[Trajectory]] = asyncio.Queue(len(load.sealed))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._put(load.sealed))
            tasks.create_task(self._decide(len(load.sealed), admitted))
            tasks.create_task(self._fetch(len(load.sealed), admitted))
        return len(load.sealed) / (time.perf_counter() - began)

    async def close(self) -> None:
        """Release the readers."""
        await self._fetcher.close()
        await self._reader.close()

    def _issue(self, load: Load) -> None:
        at = self._reader.positions()
        for partition in range(PARTITIONS_DEFAULT):
            floors = Floors(
                offset=at[TRAJECTORIES.name, partition],
                others={
                    EPISODES.name: 0,
                    GATE_DECISIONS.name: at[GATE_DECISIONS.name, partition],
                },
            )
            self._partitions[partition] = GatePartition(floors)
            self._partitions[partition].take_episode(0, 1, load.issued[0])
        for offset, event in enumerate(load.issued[1:], 1):
            partition = partition_for(EPISODES, event, PARTITIONS_DEFAULT)
            self._partitions[partition].take_episode(offset, 1, event)

    async def _put(self, sealed: Sequence[Sealed]) -> None:
        offer = self._context.producer.offer
        windows = [sealed[at : at + _WINDOW] for at in range(0, len(sealed), _WINDOW)]
        chunks = [offer(PAYLOADS, chunk) for one in windows[0] for chunk in one.chunks]
        written = []
        for number, window in enumerate(windows):
            # The next window's chunks are under way while this one's are waited for.
            after = windows[number + 1] if number + 1 < len(windows) else ()
            ahead = [offer(PAYLOADS, chunk) for one in after for chunk in one.chunks]
            acked = iter(await self._acked(chunks))
            for one in window:
                places = [_place(next(acked)) for _ in one.chunks]
                written.append(offer(TRAJECTORIES, one.placed(places)))
            await asyncio.sleep(0)
            chunks = ahead
        await self._acked(written)

    async def _decide(self, count: int, admitted: asyncio.Queue[list[Trajectory]]) -> None:
        handed = 0
        while handed < count:
            self._take(await self._reader.poll(records_max=_RECORDS_MAX, timeout_s=1.0))
            groups = [(p, g) for p, owned in self._partitions.items() for g in owned.complete()]
            if groups:
                await self._write(groups)
            ready = []
            for owned in self._partitions.values():
                for owed in owned.owed():
                    assert owed.arrived.trajectory is not None, "all of them were decoded"
                    ready.append(owed.arrived.trajectory)
                    owned.sent(owed)
            if ready:
                handed += len(ready)
                await admitted.put(ready)

    async def _write(self, groups: Sequence[tuple[int, OpenGroup]]) -> None:
        """Append the decisions and follow what is read back."""
        now_us = self._context.clock.now_us()
        writer = Writer(run_id=RUN, worker_id=WorkerId("gate-0"), at_us=now_us)
        judging = partial(self._judge, now_ms=now_us // 1000)
        pending = [
            self._context.producer.offer(
                GATE_DECISIONS,
                decision_on(
                    group,
                    judge=judging,
                    rule=GroupRule.REPAIR,
                    learner=self._learner,
                    is_draining=False,
                    writer=writer,
                ),
            )
            for _, group in groups
        ]
        ends: dict[tuple[str, int], int] = {}
        for ack in await self._acked(pending):
            partition, offset = _place(ack)
            place = (GATE_DECISIONS.name, partition)
            ends[place] = max(ends.get(place, 0), offset + 1)
        self._take(await self._reader.read_to(ends, deadline=self._deadline("the decisions")))

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            assert isinstance(message, Delivered), "nothing here is poison"
            owned = self._partitions[message.partition]
            match message.record:
                case GateDecision() as decision:
                    owned.take_decision(message.offset, decision)
                case Trajectory() as trajectory:
                    owned.take_trajectory(
                        Arrived(
                            offset=message.offset,
                            timestamp_ms=message.timestamp_ms,
                            episode_id=trajectory.episode_id,
                            trajectory=trajectory,
                        )
                    )

    def _judge(self, arrived: Arrived, *, now_ms: int) -> Judged:
        assert arrived.trajectory is not None, "all of them were decoded"
        judged = judge(
            arrived.trajectory,
            timestamp_ms=arrived.timestamp_ms,
            now_ms=now_ms,
            learner=self._learner,
            registry=REGISTRY,
            bounds=self._bounds,
            is_draining=False,
        )
        assert judged.is_valid, judged.detail
        return judged

    async def _fetch(self, count: int, admitted: asyncio.Queue[list[Trajectory]]) -> None:
        fetched = 0
        while fetched < count:
            ready = await admitted.get()
            while not admitted.empty():
                ready += admitted.get_nowait()
            found = await self._fetcher.fetch(ready, deadline=self._deadline("payloads"))
            lost = [one.why for one in found.values() if isinstance(one, Lost)]
            assert not lost, lost[0]
            fetched += len(found)

    async def _acked(self, pending: Sequence[Pending]) -> list[Acked]:
        clock_ms = self._context.clock.monotonic_ms()
        return await settled(pending, clock_ms=clock_ms, deadline=self._deadline("acks"))

    def _deadline(self, waiting_for: str) -> Deadline:
        now_ms = self._context.clock.monotonic_ms()
        return Deadline.after(_BUDGET_MS, now_ms=now_ms, waiting_for=waiting_for)


def _place(ack: Acked) -> tuple[int, int]:
    return ack.partition, ack.offset


def _learner() -> LearnerLog:
    """Return a lineage whose head is the version that the commits were sampled under."""
    log = LearnerLog()
    learner = WorkerId("learner-0")
    head = max(version.number for version in REGISTRY)
    kinds = [LearnerEventKind.EPOCH_STARTED, LearnerEventKind.RESTORED]
    kinds += [LearnerEventKind.STEP] * head
    for offset, kind in enumerate(kinds):
        number = max(0, offset - 1)
        event = LearnerEvent(
            run_id=RUN, kind=kind, epoch=1, learner_id=learner, number=number, ordinal=number,
            at_us=1, writer_id=learner,
        )  # fmt: skip
        assert log.take(offset, 1, event), "the lineage of the measurement is sound"
    return log


def make_load(prefix: str, codec: Codec, episodes: int) -> Load:
    """Return what one block writes, and the same as frames for the raw arm."""
    loaded = load(episodes)
    for offset, commit in enumerate(loaded.log):
        loaded.core.take_commit(offset, commit)
    loaded.end()
    sealed = tuple(loaded.sealed())
    frames = []
    for one in sealed:
        frames += [frame_of(PAYLOADS, chunk, codec, prefix) for chunk in one.chunks]
        placed = one.placed([(0, 1_000_000)] * len(one.chunks))
        frames.append(frame_of(TRAJECTORIES, placed, codec, prefix))
    return Load(sealed=sealed, issued=loaded.issued, frames=tuple(frames))


async def measure(broker: Broker, *, pairs: int, episodes: int) -> list[dict[str, Any]]:
    codec = Codec.local()
    beside = broker.beside("raw")
    block = make_load(beside.prefix, codec, episodes)
    context = broker.context("path")
    path, raw = Path(context, codec), RawDoor(beside, (PAYLOADS, TRAJECTORIES))
    await path.open()
    ours, theirs = [], []
    for pair in range(pairs + 1):
        for arm in ("ours", "raw") if pair % 2 else ("raw", "ours"):
            gc.collect()
            if arm == "ours":
                ours.append(await path.block(block))
            else:
                began = time.perf_counter()
                raw.put_and_get(block.frames)
                theirs.append(episodes / (time.perf_counter() - began))
    await path.close()
    raw.close()
    # The first pair warms connections and caches up.
    return _rows(ours[1:], theirs[1:], episodes)


def _rows(ours: list[float], theirs: list[float], episodes: int) -> list[dict[str, Any]]:
    low, high = interval(ours)
    where = (
        f"{platform.machine()}, one broker beside it, {len(ours)} blocks of {episodes} "
        f"trajectories of {COMMITS * TOKENS_PER_COMMIT} tokens in groups of {GROUP}, one process"
    )
    ratios = [our / raw for our, raw in zip(ours, theirs, strict=True)]
    return [
        ratio_row(
            "trajectories_ratio",
            ratios,
            goal=RATIO_GOAL,
            conditions=f"{where}, medians {median(ours):.0f}/s against {median(theirs):.0f}/s raw",
        ),
        row(
            "trajectories_per_s",
            round(median(ours)),
            unit="trajectories/s",
            goal=RATE_GOAL,
            conditions=f"{where}; 95 % interval {low:.0f} to {high:.0f}",
        ),
    ]


def run(*, pairs: int = 15, episodes: int = 2_000) -> list[dict[str, Any]]:
    """Measure; the values are medians over paired blocks."""
    gc.set_threshold(100_000, 50, 100)  # as assembler and gate do
    with own_broker() as broker:
        return asyncio.run(measure(broker, pairs=pairs, episodes=episodes))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
