"""The learner of a simulated run: the real cores and its real bus and intake, without weights.

Real: `LearnerBus` (fence, read back, fenced out), `Intake`, `Consumption`, `choose`, `compare` and
the staleness rules. Simulated: ranks, payloads and the disk. `SimLearner` mirrors the order of
effects of `learner.trainer.Trainer` (start, serve, _work, _step, _publish, _checkpoint_if_new,
_close_run) and of `learner.checkpoints.Checkpoints` (choose, take), which import torch; a pause
stands between any two effects, so that a kill may fall there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.bus import LearnerBus
from learner.core.consume import Chosen, Consumption
from learner.core.restore import Choice, Folder, Record, choose
from learner.core.run_state import compare
from learner.core.staleness import Bounds, Lineage
from learner.intake import Intake
from learner.settings import LearnerSettings
from producers.presence import Presence
from schemas.enums import LearnerEventKind, Role, WorkerStatus
from schemas.ids import Version
from schemas.ports import Context
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import LogEnd, SkippedMember, StepRef, TrainedMember
from schemas.records.policy_version import PolicyVersion
from schemas.topics import GATED
from tests.simulation.codec import SimCodec

START = Version(0, 0)
_POLL_S = 0.25


@dataclass(slots=True)
class Disk:
    """What outlives a learner: checkpoint folders by name, and who keeps them."""

    folders: dict[str, Folder] = field(default_factory=dict)
    """Marked folders."""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: set[Version] = field(default_factory=set)
    """Versions whose files stand."""


def digest_of(version: Version) -> str:
    """Return a digest that tells versions apart."""
    return hashlib.sha256(str(version).encode()).hexdigest()


def settings_of(*, batch: int, steps: int, every: int, max_lag: int) -> LearnerSettings:
    """Return a learner's settings without a model."""
    return LearnerSettings(
        model_path="none",
        versions_dir="none",
        checkpoints_dir="none",
        batch=batch,
        steps=steps,
        checkpoint_every=every,
        max_lag_steps=max_lag,
        send_s=8.0,
    )


class SimLearner:
    """See the module."""

    def __init__(
        self, context: Context, settings: LearnerSettings, codec: SimCodec, disk: Disk
    ) -> None:
        """Nothing is read yet."""
        self._context, self._settings, self._codec, self._disk = context, settings, codec, disk
        self._bus = LearnerBus(context, settings)
        self._bounds = Bounds(
            lag_steps_max=settings.max_lag_steps, age_ms_max=int(1000 * settings.max_age_s)
        )
        self.version, self._ordinal = START, 0
        self._digest = ""
        self._ordinals: dict[Version, int] = {START: 0}
        self._published_us: dict[Version, int] = {}
        self._checkpointed: int | None = None
        self._chain: list[StepRef] = []
        self._taken = 0
        self._kept: list[str] = []
        self._intake: Intake

    async def run(self) -> None:
        """Start, and train until the run is closed or a stop is asked for."""
        presence = Presence(self._context, Role.LEARNER)
        await presence.announce(WorkerStatus.STARTING)
        await self._bus.fence()
        if self._bus.log.closed is not None:
            return
        await self._restore(self._choose())
        await presence.announce(WorkerStatus.READY, self.version)
        while not await self._serve():
            pass

    def _choose(self) -> Choice:
        bus = self._bus
        records = [
            Record(
                name=bus.checkpoint_names.get(ref.offset, ""),
                ordinal=ref.ordinal,
                offset=ref.offset,
            )
            for ref in bus.log.checkpoints
            if ref.offset >= 0
        ]
        return choose(
            records=records,
            folders=tuple(self._disk.folders[name] for name in sorted(self._disk.folders)),
            restored_epoch=bus.restored_epoch,
            counting_offsets=frozenset(ref.offset for ref in bus.log.steps),
        )

    async def _restore(self, choice: Choice) -> None:
        starts = self._context.starts[GATED.name]
        consumption = Consumption(starts)
        restored: tuple[StepRef, ...] = ()
        if choice.folder is None:
            await self._announce_start()
        else:
            state = self._disk.states[choice.folder.name]
            self.version, self._ordinal = choice.folder.version, choice.folder.ordinal
            self._digest, self._checkpointed = state["digest"], self._ordinal
            self._kept = [choice.folder.name]
            consumption = Consumption.from_state(state["consumption"], starts)
            restored = (
                StepRef(
                    epoch=self.version.epoch,
                    number=self.version.number,
                    ordinal=self._ordinal,
                    offset=choice.record_offset,
                ),
            )
        self._intake = Intake(self._context, self._settings, self._codec, consumption, {})  # type: ignore[arg-type]  # frames by reference
        await asyncio.sleep(0.02)
        await self._append(
            LearnerEventKind.RESTORED,
            parent=self.version,
            digest=self._digest,
            adopted=choice.adopted,
            restored=restored,
            checkpoint_id=choice.folder.name if choice.folder else "",
        )
        if choice.folder is not None:
            await self._announce_start()
        for ref in self._bus.log.steps:
            self._ordinals[Version(ref.epoch, ref.number)] = ref.ordinal

    async def _announce_start(self) -> None:
        policies = await self._bus.policies()
        if START not in policies:
            await self._announce(START, 0, START)
        self._digest = self._digest or digest_of(START)
        if self.version not in policies and self.version != START:
            await self._announce(self.version, self._ordinal, START)

    async def _announce(self, version: Version, ordinal: int, parent: Version) -> None:
        await self._bus.publish(
            PolicyVersion(
                run_id=self._context.run_id,
                epoch=version.epoch,
                number=version.number,
                ordinal=ordinal,
                parent_epoch=parent.epoch,
                parent_number=parent.number,
                digest=digest_of(version),
                location="nowhere",
                at_us=self._context.clock.now_us(),
                writer_id=self._context.worker_id,
            )
        )

    async def _serve(self) -> bool:
        await self._bus.observe()
        control = self._bus.control
        if self._context.stop.is_set():
            await self._checkpoint_if_new()
            return True
        if self._ordinal >= self._settings.steps or control.is_draining:
            await self._checkpoint_if_new()
            return await self._close_run()
        await self._work()
        return False

    async def _work(self) -> None:
        consumption = self._intake.consumption
        now_us = self._context.clock.now_us()
        lineage = Lineage(
            ordinal=self._ordinal,
            ordinals=self._ordinals,
            published_us=self._published_us,
            now_published_us=0,
        )
        await self._skip(consumption.expire(now_us=now_us, lineage=lineage, bounds=self._bounds))
        chosen = consumption.choose(
            batch=self._settings.batch,
            whole_groups=True,
            now_us=now_us,
            lineage=lineage,
            bounds=self._bounds,
        )
        if chosen:
            await self._step(chosen)
            return
        _, skipped = await self._intake.poll(timeout_s=_POLL_S)
        await self._skip(skipped)

    async def _skip(self, skipped: Sequence[SkippedMember]) -> None:
        if skipped:
            await self._append(LearnerEventKind.SKIPPED, skipped=tuple(skipped))

    async def _step(self, chosen: Sequence[Chosen]) -> None:
        await asyncio.sleep(0.1)
        consumption = self._intake.consumption
        consumption.settle(one.waiting.episode_id for one in chosen)
        parent, version = self.version, Version(self._bus.epoch, self.version.number + 1)
        self._disk.versions.add(version)
        await asyncio.sleep(0.02)
        self.version, self._ordinal, self._digest = version, self._ordinal + 1, digest_of(version)
        offset = await self._append(
            LearnerEventKind.STEP,
            parent=parent,
            digest=self._digest,
            trained=tuple(_member(one) for one in chosen),
            repeats=consumption.take_repeats(),
            positions=_positions(consumption),
        )
        self._ordinals[version] = self._ordinal
        self._chain.append(
            StepRef(
                epoch=version.epoch, number=version.number, ordinal=self._ordinal, offset=offset
            )
        )
        await asyncio.sleep(0.02)
        await self._announce(version, self._ordinal, parent)
        if self._ordinal % self._settings.checkpoint_every == 0:
            await self._checkpoint_if_new()

    async def _append(
        self,
        kind: LearnerEventKind,
        *,
        parent: Version = START,
        digest: str = "",
        **values: Any,
    ) -> int:
        event: LearnerEvent = self._bus.event(
            kind,
            number=self.version.number,
            ordinal=self._ordinal,
            parent_epoch=parent.epoch,
            parent_number=parent.number,
            policy_digest=digest,
            **values,
        )
        return await self._bus.append(event)

    async def _checkpoint_if_new(self) -> None:
        if self._checkpointed == self._ordinal or not self._ordinal:
            return
        await self.take_checkpoint()
        self._checkpointed = self._ordinal

    async def take_checkpoint(self) -> None:
        """Files and marker, record, and what is older goes: each may be the last effect."""
        self._taken += 1
        name = f"{self._bus.epoch}-{self.version.number}-{self._context.incarnation}-{self._taken}"
        await self.keep_files(name)
        await self.record(name)
        self._kept = [*self._kept, name][-self._settings.checkpoints_kept :]
        for other in [one for one in self._disk.folders if one not in self._kept]:
            del self._disk.folders[other]

    async def keep_files(self, name: str) -> None:
        """Write a checkpoint folder; it is there at once when its marker is."""
        state = {"consumption": self._intake.consumption.to_state(), "digest": self._digest}
        await asyncio.sleep(0.05)
        self._disk.states[name] = state
        self._disk.folders[name] = Folder(
            name=name,
            epoch=self._bus.epoch,
            version=self.version,
            ordinal=self._ordinal,
            chain=tuple(self._chain),
        )
        await asyncio.sleep(0.05)

    async def record(self, name: str) -> None:
        """Append Checkpointed."""
        await self._append(
            LearnerEventKind.CHECKPOINTED,
            parent=self.version,
            digest=self._digest,
            checkpoint_id=name,
            positions=_positions(self._intake.consumption),
        )

    async def _close_run(self) -> bool:
        end = self._bus.control.end
        if end is None:
            _, skipped = await self._intake.poll(timeout_s=_POLL_S)
            await self._skip(skipped)
            return False
        ends = {one.partition: one.offset for one in end.ends if one.topic == GATED.name}
        waiting = self._bus.deadline("the end of gated")
        await self._skip(await self._intake.read_to(ends, deadline=waiting))
        log = self._bus.log
        compared = compare(
            end,
            trained=log.trained.keys(),
            skipped=log.skipped.keys(),
            waiting=self._intake.consumption.waiting_episodes(),
        )
        await self._append(LearnerEventKind.CLOSED, digest=self._digest, counts=compared.counts)
        return True


def _positions(consumption: Consumption) -> tuple[LogEnd, ...]:
    return tuple(
        LogEnd(topic=GATED.name, partition=partition, offset=offset)
        for partition, offset in sorted(consumption.positions().items())
    )


def _member(one: Chosen) -> TrainedMember:
    waiting, trajectory = one.waiting, one.waiting.trajectory
    return TrainedMember(
        episode_id=waiting.episode_id,
        group_id=waiting.gated.group_id,
        partition=waiting.partition,
        offset=waiting.offset,
        trajectory_offset=waiting.gated.trajectory_offset,
        environment=trajectory.environment,
        lag_steps=one.staleness.lag_steps,
        age_ms=one.staleness.age_ms,
        action_tokens=trajectory.action_tokens,
        kept_tokens=trajectory.action_tokens,
        reward=float(trajectory.reward or 0.0),
        repeat=waiting.gated.repeat,
    )
