"""The learner: consumes gated trajectories, trains, publishes versions, keeps checkpoints.

Consumes: `gated`, `payloads`, `learner-steps`, `control`, `refreshes`, `workers`. Produces:
`learner-steps`, `policies`, `payloads` (rejected tokens), `dead-letters`, `metrics`. Waits for: a
full batch, at most `silence_s` between trajectories; after the budget for EndOfStream. Unblocked
by: the gate's records; the scheduler's EndOfStream; Stop.

Order of a step: files of the version, Step, PolicyVersion; then, when it is due, checkpoint files,
marker, Checkpointed. If the process dies on any line, its next start fences the old epoch, restores
the newest checkpoint and consumes again what only lost steps had trained.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from learner.bus import LearnerBus
from learner.canary import Canary, Observe
from learner.checkpoints import Checkpoints
from learner.core.consume import Chosen
from learner.core.loss_registry import bind
from learner.core.staleness import Bounds, LagRule
from learner.events import Made, append_closed, put_rejected, step_event
from learner.head import Head
from learner.intake import Intake
from learner.payloads import PayloadFetcher
from learner.phases import Phases
from learner.publisher import Publisher
from learner.ranks import Ranks
from learner.segments import Segments, sweep
from learner.settings import LearnerSettings
from learner.starting import Starting
from learner.stepper import Outcome, Refused, Stepper
from learner.version_store import Written
from producers.presence import Presence
from schemas.codec import Codec
from schemas.enums import LearnerEventKind, Role, WorkerStatus
from schemas.errors import TransientError
from schemas.ids import Version
from schemas.ports import Context
from schemas.records.parts import SkippedMember, StepRef
from schemas.topics import GATED

_LOG = logging.getLogger("sluice.learner")
_POLL_S = 0.25
_SKIPPED_PER_RECORD = 500


async def run(
    context: Context,
    settings: LearnerSettings,
    codec: Codec,
    observe: Observe | None = None,
    *,
    ranks: Ranks | None = None,
) -> None:
    """Train until the budget is reached and the run is closed, or until asked to stop.

    observe: makes what the canary and the checkpoints compare of the run around the learner.
    Raises SettingsError for settings or a checkpoint that do not fit, FencedError when a newer
    learner has started.
    """
    loss = bind(settings.loss.name, settings.loss.parameters)
    sweep(context.run_id)
    ranks = ranks or Ranks(settings, loss)
    trainer = Trainer(context, settings, codec, ranks, Canary(settings, ranks, observe))
    presence = Presence(context, Role.LEARNER, capacity=settings.batch)
    await presence.announce(WorkerStatus.STARTING)
    try:
        if await trainer.start():
            await presence.announce(WorkerStatus.READY, trainer.version)
            await trainer.serve()
    finally:
        await trainer.close()
        await presence.announce(WorkerStatus.STOPPED, trainer.version)


class Trainer:
    """See the module."""

    def __init__(
        self,
        context: Context,
        settings: LearnerSettings,
        codec: Codec,
        ranks: Ranks,
        canary: Canary,
    ) -> None:
        self._context, self._settings, self._codec = context, settings, codec
        self._ranks = ranks
        self._bus = LearnerBus(context, settings)
        self._checkpoints = Checkpoints(context, settings, self._bus, ranks, canary)
        self._publisher = Publisher(context, settings, self._bus, ranks)
        self._starting = Starting(
            context,
            settings,
            codec,
            bus=self._bus,
            ranks=ranks,
            checkpoints=self._checkpoints,
            publisher=self._publisher,
            canary=canary,
        )
        self._segments = Segments(context.run_id)
        self._phases = Phases("start", now_us=self._elapsed_us())
        self._fetcher = PayloadFetcher(context)
        self._stepper = Stepper(
            settings,
            ranks.loss,
            ranks,
            self._fetcher,
            self._segments,
            phases=self._phases,
            now_us=self._elapsed_us,
        )
        self._loss_name = ranks.loss.spec.name
        self._bounds = Bounds(
            lag_steps_max=settings.max_lag_steps,
            age_ms_max=int(1000 * settings.max_age_s),
            rule=LagRule(settings.lag_rule),
            decay=settings.lag_decay,
        )
        self._head = Head()
        self._checkpointed: int | None = None
        """Ordinal of the newest checkpoint; None before the first."""
        self._intake: Intake
        self._heard_ms = context.clock.monotonic_ms()

    @property
    def version(self) -> Version:
        """The version in memory."""
        return self._head.version

    async def start(self) -> bool:
        """Fence, restore and publish what is missing; return False when the run is closed."""
        begun = await self._starting.start()
        if begun is None:
            return False
        self._head, self._intake, self._checkpointed = begun.head, begun.intake, begun.checkpointed
        self._heard_ms = self._context.clock.monotonic_ms()
        return True

    async def serve(self) -> None:
        """Train until the run is over or a stop is asked for."""
        while True:
            await self._bus.observe()
            control = self._bus.control
            if self._context.stop.is_set() or control.is_stopped:
                await self._checkpoint_if_new()
                return
            if self._budget_is_reached():
                await self._checkpoint_if_new()
                if await self._close_run():
                    return
            elif control.is_paused:
                await self._checkpoint_if_new()
                await self._rest()
            else:
                await self._work()

    def _budget_is_reached(self) -> bool:
        budget = self._settings.steps
        return (budget > 0 and self._head.ordinal >= budget) or self._bus.control.is_draining

    async def _rest(self) -> None:
        self._phases.enter("paused", now_us=self._elapsed_us())
        self._heard_ms = self._context.clock.monotonic_ms()
        await asyncio.sleep(_POLL_S)

    async def _work(self) -> None:
        """Discard what went stale, then make a step if a batch waits, else read on."""
        consumption = self._intake.consumption
        now_us = self._context.clock.now_us()
        lineage = self._head.lineage()
        await self._skip(consumption.expire(now_us=now_us, lineage=lineage, bounds=self._bounds))
        chosen = consumption.choose(
            batch=self._settings.batch,
            whole_groups=self._settings.whole_groups,
            now_us=now_us,
            lineage=lineage,
            bounds=self._bounds,
        )
        if chosen:
            await self._step(chosen)
            return
        self._phases.enter("wait_batch", now_us=self._elapsed_us())
        if consumption.waiting >= self._settings.buffer_max:
            raise TransientError(
                f"{consumption.waiting} trajectories wait and none makes a batch of "
                f"{self._settings.batch}",
                hint="learner.buffer_max must exceed the batch",
            )
        arrived, skipped = await self._intake.poll(timeout_s=_POLL_S)
        await self._skip(skipped)
        self._listen(arrived)

    def _listen(self, arrived: int) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if arrived:
            self._heard_ms = now_ms
        elif now_ms - self._heard_ms > 1000 * self._settings.silence_s:
            waiting = self._intake.consumption.waiting
            raise TransientError(
                f"no trajectory came for {self._settings.silence_s:.0f} s; {waiting} wait, a batch "
                f"is {self._settings.batch}",
                hint="are inference, environments, verifier, assembler and gate running?",
            )

    async def _skip(self, skipped: Sequence[SkippedMember]) -> None:
        for start in range(0, len(skipped), _SKIPPED_PER_RECORD):
            part = tuple(skipped[start : start + _SKIPPED_PER_RECORD])
            _LOG.info("skipped %d trajectories: %s", len(part), {m.reason.value for m in part})
            await self._bus.append(
                self._bus.event(
                    LearnerEventKind.SKIPPED,
                    number=self.version.number,
                    ordinal=self._head.ordinal,
                    skipped=part,
                )
            )

    async def _step(self, chosen: Sequence[Chosen]) -> None:
        waiting = self._bus.deadline("payloads", budget_s=self._settings.fetch_s)
        payloads, refused = await self._stepper.load(chosen, deadline=waiting)
        if refused:
            await self._refuse(refused)
            return
        outcome = await self._stepper.step(chosen, payloads, ordinal=self._head.ordinal + 1)
        self._intake.consumption.settle(one.waiting.episode_id for one in chosen)
        await self._publish(outcome)
        self._heard_ms = self._context.clock.monotonic_ms()
        if self._head.ordinal % self._settings.checkpoint_every == 0 or self._budget_is_reached():
            await self._checkpoint_if_new()

    async def _refuse(self, refused: Sequence[Refused]) -> None:
        """Skip trajectories whose payload cannot be trained; the others wait on."""
        skipped = []
        for one in refused:
            waiting = one.chosen.waiting
            await self._intake.dead_letter(
                waiting.partition, waiting.offset, waiting.gated, one.refusal
            )
            skipped.append(
                self._intake.consumption.discard(waiting, one.refusal.reason, one.chosen.staleness)
            )
        await self._skip(skipped)

    async def _publish(self, outcome: Outcome) -> None:
        """Files, Step, PolicyVersion, in this order."""
        parent = self.version
        version = Version(self._bus.epoch, parent.number + 1)
        ordinal = self._head.ordinal + 1
        written: Written | None = None
        self._phases.enter("export", now_us=self._elapsed_us())
        budget = self._settings.steps
        if ordinal % self._settings.publish_every == 0 or ordinal == budget:
            written = await self._publisher.export(version)
        self._phases.enter("record", now_us=self._elapsed_us())
        offset = await self._append_step(outcome, version, ordinal, parent, written)
        stepped_us = 1000 * (self._bus.log.stepped_ms(version) or 0)
        self._head.advance(version, ordinal, written.digest if written else "", stepped_us)
        self._checkpoints.chain.append(
            StepRef(epoch=version.epoch, number=version.number, ordinal=ordinal, offset=offset)
        )
        self._phases.enter("publish", now_us=self._elapsed_us())
        if written is not None:
            await self._publisher.announce(version, ordinal, parent, written)
        await asyncio.to_thread(
            self._publisher.collect, checkpointed=self._checkpoints.versions_kept()
        )
        self._phases.enter("other", now_us=self._elapsed_us())

    async def _append_step(
        self,
        outcome: Outcome,
        version: Version,
        ordinal: int,
        parent: Version,
        written: Written | None,
    ) -> int:
        consumption = self._intake.consumption
        made = Made(
            version=version,
            ordinal=ordinal,
            parent=parent,
            digest=written.digest if written else "",
        )
        lists = await put_rejected(self._bus, outcome)
        phases_us = self._phases.take(now_us=self._elapsed_us())
        event = step_event(
            self._bus,
            outcome,
            made,
            consumption,
            self._loss_name,
            lists,
            phases_us,
            peak_per_s=1e12 * self._settings.peak_tflops * self._settings.ranks,
        )
        _LOG.info(
            "update %d: version %s, reward %.3f, loss %.4f, gradient norm %.3f",
            ordinal,
            version,
            event.metrics["reward_mean_reward"],
            outcome.loss,
            outcome.gradient_norm,
        )
        return await self._bus.append(event)

    async def _checkpoint_if_new(self) -> None:
        if self._checkpointed == self._head.ordinal or not self._head.ordinal:
            return
        self._phases.enter("checkpoint", now_us=self._elapsed_us())
        name = await self._checkpoints.take(
            version=self.version,
            ordinal=self._head.ordinal,
            consumption=self._intake.consumption,
            judged_by=self._intake.judged_by,
            policy_digest=self._head.digest,
        )
        self._checkpointed = self._head.ordinal
        self._phases.enter("other", now_us=self._elapsed_us())
        _LOG.info("checkpoint %s covers update %d", name, self._head.ordinal)

    async def _close_run(self) -> bool:
        """Close the run when its stream has ended; return False while it is still open."""
        end = self._bus.control.end
        if end is None:
            _, skipped = await self._intake.poll(timeout_s=_POLL_S)
            await self._skip(skipped)
            return False
        ends = {one.partition: one.offset for one in end.ends if one.topic == GATED.name}
        waiting = self._bus.deadline("the end of gated", budget_s=self._settings.start_s)
        await self._skip(await self._intake.read_to(ends, deadline=waiting))
        await append_closed(
            self._bus,
            end,
            waiting=self._intake.consumption.waiting_episodes(),
            version=self.version,
            ordinal=self._head.ordinal,
            digest=self._head.digest,
        )
        return True

    async def close(self) -> None:
        """Release what is held."""
        self._segments.release()
        if hasattr(self, "_intake"):
            await self._intake.close()
        await self._fetcher.close()
        await self._bus.close()
        await self._ranks.close()

    def _elapsed_us(self) -> int:
        """Return a time for phases; a wall clock that is set back would take time out of them."""
        return 1000 * self._context.clock.monotonic_ms()
