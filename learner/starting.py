"""The start of a learner: fence, choose and load a checkpoint, try it, and say so with Restored.

Order: EpochStarted, read to it, load, canary, Restored, then whatever version record is missing. If
the process dies on any of these lines, the next start does the same again under a higher epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from learner.bus import LearnerBus
from learner.canary import Canary
from learner.checkpoints import Checkpoints
from learner.core.consume import Consumption
from learner.core.restore import Choice
from learner.events import Made, restored_event
from learner.head import Head
from learner.intake import Intake
from learner.publisher import Publisher
from learner.ranks import Ranks
from learner.settings import LearnerSettings
from learner.version_store import Written
from schemas.codec import Codec
from schemas.errors import Boundary, SettingsError
from schemas.ids import Version
from schemas.ports import Context
from schemas.records.parts import StepRef
from schemas.records.policy_version import PolicyVersion
from schemas.rules.lineage import START
from schemas.topics import GATED

_LOG = logging.getLogger("sluice.learner")
Policies: TypeAlias = Mapping[Version, tuple[int, PolicyVersion]]
"""Versions announced so far, each with its broker time in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A learner that may train."""

    head: Head
    intake: Intake
    checkpointed: int | None
    """Ordinal of the newest checkpoint; None before the first. Unit: updates."""


class Starting:
    """See the module."""

    def __init__(
        self,
        context: Context,
        settings: LearnerSettings,
        codec: Codec,
        *,
        bus: LearnerBus,
        ranks: Ranks,
        checkpoints: Checkpoints,
        publisher: Publisher,
        canary: Canary,
    ) -> None:
        self._context, self._settings, self._codec = context, settings, codec
        self._bus, self._ranks = bus, ranks
        self._checkpoints, self._publisher, self._canary = checkpoints, publisher, canary

    async def start(self) -> Begun | None:
        """Fence, restore and publish what is missing; return None when the run is closed."""
        # Before the canary's thread, which opens a tokenizer of the same library.
        await self._ranks.load()
        building = asyncio.create_task(self._ranks.start(), name="engine")
        self._canary.begin()
        try:
            await self._bus.fence()
            if self._bus.log.closed is not None:
                _LOG.info("the run is closed; nothing is left to do")
                return None
            choice = self._checkpoints.choose()
            if choice.folder is None:
                begun = await self._from_the_start(choice, building)
            else:
                begun = await self._from_checkpoint(choice, building)
        finally:
            if not building.done():
                await asyncio.wait({building})
        _LOG.info("epoch %d starts from version %s", self._bus.epoch, begun.head.version)
        return begun

    async def _from_the_start(self, choice: Choice, building: asyncio.Task[None]) -> Begun:
        head = Head()
        policies = await self._bus.policies()
        if START in policies:
            # The engine has read the model's folder, not the version's.
            await asyncio.to_thread(self._publisher.must_be_the_start, policies[START][1].manifest)
        await self._announce(head, policies)
        intake = self._read(Consumption(self._context.starts[GATED.name]), {})
        await building
        await self._canary.prepare()
        await self._append_restored(choice, head, intake, canary="")
        return Begun(head=head, intake=intake, checkpointed=None)

    async def _from_checkpoint(self, choice: Choice, building: asyncio.Task[None]) -> Begun:
        folder = choice.folder
        assert folder is not None, "called with a checkpoint"
        await self._canary.prepare()
        state = self._checkpoints.state(choice)
        head = Head(folder.version, folder.ordinal, str(state["policy_digest"]))
        policies = await self._bus.policies()
        _must_be_announced_alike(head, policies)
        await building
        await self._checkpoints.load(folder.name)
        passed = await self._canary.verify(self._checkpoints.card(folder.name))
        self._checkpoints.keep(folder.name)
        consumption = Consumption.from_state(state["consumption"], self._context.starts[GATED.name])
        consumption.restore_counters(state["staleness"])
        intake = self._read(consumption, state["judged_by"])
        await self._append_restored(choice, head, intake, canary=passed)
        await self._announce(head, policies)
        head.descend(self._bus.log.steps)
        for ref in self._bus.log.steps:
            version = Version(ref.epoch, ref.number)
            head.publish(version, 1000 * (self._bus.log.stepped_ms(version) or 0))
        return Begun(head=head, intake=intake, checkpointed=head.ordinal)

    def _read(self, consumption: Consumption, judged_by: Mapping[str, str]) -> Intake:
        return Intake(self._context, self._settings, self._codec, consumption, judged_by)

    async def _append_restored(
        self, choice: Choice, head: Head, intake: Intake, *, canary: str
    ) -> None:
        made = Made(
            version=head.version, ordinal=head.ordinal, parent=head.version, digest=head.digest
        )
        event = restored_event(self._bus, choice, made, intake.consumption, canary)
        if event.detail:
            _LOG.warning("%s", event.detail)
        await self._bus.append(event)

    async def _announce(self, head: Head, policies: Policies) -> None:
        """Publish the starting weights unless they are, and the version in memory if its record is
        missing.
        """
        if START not in policies:
            written = await asyncio.to_thread(self._publisher.start)
            await self._publisher.announce(START, 0, START, written)
            head.publish(START, self._context.clock.now_us())
            digest = written.digest
        else:
            timestamp_ms, policy = policies[START]
            head.publish(START, 1000 * timestamp_ms)
            digest = policy.digest
        if head.version == START:
            head.digest = digest
        elif head.version not in policies and head.digest:
            written = await asyncio.to_thread(self._publisher.store.read, head.version)
            _must_be_whole(head, written)
            parent = _parent_of(head.ordinal, self._bus.log.steps)
            await self._publisher.announce(head.version, head.ordinal, parent, written)


def _parent_of(ordinal: int, steps: Sequence[StepRef]) -> Version:
    before = (Version(ref.epoch, ref.number) for ref in steps if ref.ordinal == ordinal - 1)
    return next(before, START)


def _must_be_announced_alike(head: Head, policies: Policies) -> None:
    """Refuse a checkpoint whose version was announced under another digest."""
    known = policies.get(head.version)
    if known is not None and head.digest and known[1].digest != head.digest:
        raise SettingsError(
            f"version {head.version} was announced with digest {known[1].digest[:12]}..., the "
            f"checkpoint names {head.digest[:12]}...",
            boundary=Boundary.STORE,
            hint="the checkpoint was changed; name another one in learner.restore_from",
        )


def _must_be_whole(head: Head, written: Written) -> None:
    """Refuse to announce a folder under a digest that its Step does not name."""
    if written.digest != head.digest:
        raise SettingsError(
            f"version {head.version} in {written.location} has digest {written.digest[:12]}..., "
            f"its Step names {head.digest[:12]}...",
            boundary=Boundary.STORE,
            hint="bring the folder back, or name an older checkpoint in learner.restore_from",
        )
