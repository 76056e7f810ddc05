"""What a learner writes, as far as readers of versions need it."""

from __future__ import annotations

from schemas.enums import LearnerEventKind
from schemas.ids import Version, WorkerId
from schemas.records.learner_event import LearnerEvent
from schemas.records.policy_version import PolicyVersion
from schemas.topics import LEARNER_STEPS, POLICIES
from tests.support.inference_stand import RUN
from tests.support.memory_bus import MemoryBus

LEARNER = WorkerId("learner-1")


def learn(bus: MemoryBus, kind: LearnerEventKind, number: int = 0, epoch: int = 1) -> None:
    """Append one event of the learner."""
    bus.append(
        LEARNER_STEPS,
        LearnerEvent(
            run_id=RUN,
            kind=kind,
            epoch=epoch,
            number=number,
            ordinal=number,
            learner_id=LEARNER,
            at_us=1,
            writer_id=LEARNER,
        ),
    )


def publish(bus: MemoryBus, version: Version) -> None:
    """Announce a version; its digest names it."""
    bus.append(
        POLICIES,
        PolicyVersion(
            run_id=RUN,
            epoch=version.epoch,
            number=version.number,
            ordinal=version.number,
            digest=f"digest of {version}",
            location="/nowhere",
            at_us=1,
            writer_id=LEARNER,
        ),
    )


def started(bus: MemoryBus) -> None:
    """Publish the starting weights and let the first epoch begin."""
    publish(bus, Version(0, 0))
    learn(bus, LearnerEventKind.EPOCH_STARTED)
    learn(bus, LearnerEventKind.RESTORED)
