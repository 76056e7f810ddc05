"""The records that tell of a start, a step and an end: Restored, Step, Closed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from learner.bus import LearnerBus
from learner.checkpoints import positions_of
from learner.core.consume import Consumption
from learner.core.flops import utilisation
from learner.core.rejected import pack_rejected
from learner.core.restore import Choice
from learner.core.run_state import compare
from learner.stepper import Outcome
from schemas.enums import LearnerEventKind
from schemas.ids import EpisodeId, Version
from schemas.records.control_event import ControlEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, StepRef

_LOG = logging.getLogger("sluice.learner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The version that a step made."""

    version: Version
    ordinal: int
    parent: Version
    digest: str
    """Empty when the version was not written."""


def restored_event(
    bus: LearnerBus, choice: Choice, made: Made, consumption: Consumption, canary: str
) -> LearnerEvent:
    """Return the Restored of a choice; `made` is the version it starts from.

    What it cuts off is told by count and name, though anyone can work it out from the log.
    """
    lost = [ref for ref in bus.log.steps if ref.ordinal > made.ordinal]
    untrained = sum(ref.ordinal > made.ordinal for ref in bus.log.trained.values())
    detail = ""
    if lost:
        first, last = (Version(ref.epoch, ref.number) for ref in (lost[0], lost[-1]))
        detail = (
            f"rolled back {len(lost)} updates, versions {first} to {last}: {untrained} "
            "trajectories are consumed again"
        )
    restored: tuple[StepRef, ...] = ()
    if choice.folder is not None:
        restored = (
            StepRef(
                epoch=made.version.epoch,
                number=made.version.number,
                ordinal=made.ordinal,
                offset=choice.record_offset,
            ),
        )
    return bus.event(
        LearnerEventKind.RESTORED,
        number=made.version.number,
        ordinal=made.ordinal,
        parent_epoch=made.version.epoch,
        parent_number=made.version.number,
        policy_digest=made.digest,
        adopted=choice.adopted,
        restored=restored,
        checkpoint_id=choice.folder.name if choice.folder else "",
        positions=positions_of(consumption),
        canary=canary,
        counts={"rolled_back_updates": len(lost), "rolled_back_trajectories": untrained},
        detail=detail,
    )


async def put_rejected(bus: LearnerBus, outcome: Outcome) -> tuple[ChunkRef, ...]:
    """Write the step's rejected tokens into payloads and return where they stand."""
    told = outcome.account
    if not told.rejected:
        return ()
    first = told.members[0]
    return await bus.put_list(
        pack_rejected(told.rejected), episode=first.episode_id, group=first.group_id
    )


def step_event(
    bus: LearnerBus,
    outcome: Outcome,
    made: Made,
    consumption: Consumption,
    loss_name: str,
    lists: Sequence[ChunkRef],
    phases_us: Mapping[str, int],
    *,
    peak_per_s: float = 0.0,
) -> LearnerEvent:
    """Return the Step of an outcome; it takes the repeats counted since the last one.

    peak_per_s: what the hardware of all ranks could do, 0 when unknown. Unit: operations/s.
    """
    told = outcome.account
    metrics = dict(told.metrics) | {
        "gradient_norm": outcome.gradient_norm,
        "learning_rate_ratio": outcome.learning_rate,
        "computed_tokens": float(outcome.computed_tokens),
        "shared_memory_bytes": float(outcome.bytes_shared),
        "waiting_trajectories": float(consumption.waiting),
        "clock_skew_records": float(consumption.clock_skews),
        "arithmetic_operations": outcome.operations,
        "mfu_ratio": utilisation(
            outcome.operations, seconds=outcome.model_s, peak_per_s=peak_per_s
        ),
    }
    return bus.event(
        LearnerEventKind.STEP,
        number=made.version.number,
        ordinal=made.ordinal,
        parent_epoch=made.parent.epoch,
        parent_number=made.parent.number,
        policy_digest=made.digest,
        trained=told.members,
        repeats=consumption.take_repeats(),
        positions=positions_of(consumption),
        id_lists=tuple(lists),
        loss_name=loss_name,
        losses={loss_name: float(outcome.loss)},
        metrics=metrics,
        phases_us=dict(phases_us),
        action_tokens=told.action_tokens,
        kept_tokens=told.kept_tokens,
        rejected_low=told.rejected_low,
        rejected_high=told.rejected_high,
    )


async def append_closed(
    bus: LearnerBus,
    end: ControlEvent,
    *,
    waiting: Collection[EpisodeId],
    version: Version,
    ordinal: int,
    digest: str,
) -> None:
    """Compare the counts of EndOfStream with the log and write Closed.

    Raises InvariantError when the scheduler admitted another number than the learner saw.
    """
    log = bus.log
    compared = compare(end, trained=log.trained.keys(), skipped=log.skipped.keys(), waiting=waiting)
    await bus.append(
        bus.event(
            LearnerEventKind.CLOSED,
            number=version.number,
            ordinal=ordinal,
            policy_digest=digest,
            counts=compared.counts,
            detail=f"{len(compared.untrained)} admitted and untrained",
        )
    )
    _LOG.info("the run is closed: %s", dict(compared.counts))
