"""How the rules of scheduler, assembler, gate and learner are left out; see `mutants.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from inference.core.refresh import Target
from learner.core.consume import Consumption
from schemas.ids import Version
from schemas.ports import Acked
from schemas.rules.episodes import EpisodeLife
from schemas.rules.lineage import LearnerLog
from schemas.topics import EPISODES, GATE_DECISIONS, TOKENS
from stream_jobs.core.assembly import AssemblerPartition
from stream_jobs.core.floors import Floors
from stream_jobs.core.gate import GatePartition, OpenGroup
from stream_jobs.core.issue import _Look
from stream_jobs.gate import Gate
from stream_jobs.leadership import Leadership
from tests.simulation.learning import SimLearner, digest_of
from tests.simulation.loop import CURRENT


async def counts_from_zero(self: Any, partitions: int) -> Any:
    author = await _CLAIM(self, partitions)
    if author is not None:
        self._ledger.counts.issued_train = self._ledger.counts.released_train = 0
    return author


_CLAIM = Leadership.claim


def restored_once(self: Any) -> bool:
    """Wait for the run's first learner, and for none that starts again."""
    return bool(self._restored_epoch or not self.epoch)


async def follows_its_own(self: Any) -> None:
    before = dict.fromkeys(self.partitions, self._context.producer)
    made: list[Any] = []
    offer = self._context.producer.offer

    def keep(topic: Any, record: Any, **values: Any) -> Any:
        pending = offer(topic, record, **values)
        if topic is GATE_DECISIONS:
            made.append((record, pending))
        return pending

    with mock.patch.object(self._context.producer, "offer", keep):
        read, self._take = self._take, lambda _: None
        try:
            await _DECIDE(self)
        finally:
            self._take = read
    del before
    for record, pending in made:
        acked = pending.result()
        if isinstance(acked, Acked) and acked.partition in self.partitions:
            self.partitions[acked.partition].take_decision(acked.offset or 0, record)


_DECIDE = Gate._decide


def only_its_own(self: Any) -> Any:
    process = CURRENT.get()
    name = process.name if process is not None else ""
    return tuple(owed for owed in _OWED(self) if owed.decided.decision.writer_id == name)


_OWED = GatePartition.owed


def floors_at_the_end(self: Any) -> Floors:
    found = _FLOORS(self)
    return replace(found, others={**found.others, EPISODES.name: self._next[EPISODES.name]})


_FLOORS = GatePartition.floors


def forgets_by_the_first_issued(self: Any, offset: int, event: Any) -> OpenGroup | None:
    if event.group_id in self._finished:
        return None
    group = _ISSUE(self, offset, event)
    if group is not None:
        group.last_issued_offset = group.issued_offset
    return group


_ISSUE = GatePartition._issue


def decides_copies(self: Any, arrived: Any) -> None:
    trajectory = arrived.trajectory
    if trajectory is not None and trajectory.group_id in self._finished:
        self.next_offset = arrived.offset + 1
        del self._finished[trajectory.group_id]
        group = OpenGroup(
            group_id=trajectory.group_id,
            task_id=trajectory.task_id,
            ordinal=trajectory.ordinal,
            size=1,
            issued_offset=0,
            fence=self._fences.current,
        )
        group.lives[arrived.episode_id] = EpisodeLife()
        group.firsts[arrived.episode_id] = arrived
        self._groups[trajectory.group_id] = group
        return
    _TAKE_TRAJECTORY(self, arrived)


_TAKE_TRAJECTORY = GatePartition.take_trajectory


def names_it_early(self: Any, partition: int, owed: Any, writer: Any) -> Any:
    return replace(
        _GATED(self, partition, owed, writer), input_offset=self.partitions[partition].next_offset
    )


_GATED = Gate._gated


def no_w(self: Any, trajectory_offset: int) -> bool:
    return trajectory_offset in self.seen


def saves_the_head(self: Any) -> dict[str, Any]:
    saved = _TO_STATE(self)
    for key, state in self._partitions.items():
        saved[str(key)] |= {"floor": state.head_floor, "taken": sorted(state.seen)}
    return saved


_TO_STATE = Consumption.to_state


def forgets_taken(cls: Any, saved: Any, starts: Any) -> Any:
    """Restore positions and nothing of what was consumed above them."""
    bare = {key: {**values, "floor": 0, "taken": []} for key, values in saved.items()}
    return _FROM_STATE(cls, bare, starts)


_FROM_STATE: Any = Consumption.__dict__["from_state"].__func__


async def record_first(self: Any, name: str) -> None:
    await self.record(name)
    await _KEEP_FILES(self, name)


_KEEP_FILES = SimLearner.keep_files


async def announces_first(self: Any, kind: Any, **values: Any) -> int:
    if kind == "step":
        await self._announce(self.version, self._ordinal, values["parent"])
        await asyncio.sleep(0.05)
    return await _APPEND(self, kind, **values)


_APPEND = SimLearner._append


def any_epoch(self: Any, offset: int, at_ms: int, event: Any) -> bool:
    if event.kind != "epoch_started":
        event = replace(event, epoch=self.epoch, learner_id=self.learner_id)
    return _TAKE_LEARNER(self, offset, at_ms, event)


_TAKE_LEARNER = LearnerLog._take


def newest_announced(learner_log: Any, digests: Any) -> Target:  # noqa: ARG001  that is the mutant
    newest = max(digests, default=Version(0, 0))
    return Target(version=newest, digest=digests.get(newest, digest_of(newest)))


def ready_early(self: Any) -> Iterator[Any]:
    for assembly in self._ended.values():
        if not assembly.is_sealing:
            yield assembly


def tokens_at_the_end(self: Any) -> Floors:
    found = _ASSEMBLER_FLOORS(self)
    return replace(found, others={**found.others, TOKENS.name: self.next_tokens})


_ASSEMBLER_FLOORS = AssemblerPartition.floors


def completes_unless_draining(self: Any) -> None:
    """Complete groups only while new ones are issued, as `decide` once did: not when the run's
    budget is reached either, which is when Draining is written.
    """
    is_reached = any(ref.ordinal >= self.rules.steps for ref in self.ledger.learner.checkpoints)
    if not (is_reached or self.ledger.control.is_draining):
        _COMPLETE(self)


_COMPLETE = _Look.complete
