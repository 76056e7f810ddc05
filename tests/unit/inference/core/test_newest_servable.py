"""Which published version may be served: the newest that a counting Step or ordinal 0 names."""

from __future__ import annotations

from inference.core.refresh import Target, newest_servable
from schemas.enums import LearnerEventKind
from schemas.ids import RunId, Version, WorkerId
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import StepRef
from schemas.rules.lineage import LearnerLog

START, FIRST, SECOND = Version(0, 0), Version(1, 1), Version(1, 2)


def learner_event(kind: LearnerEventKind, epoch: int, **more: object) -> LearnerEvent:
    return LearnerEvent(
        run_id=RunId("run"),
        kind=kind,
        epoch=epoch,
        learner_id=WorkerId(f"learner-{epoch}"),
        at_us=1,
        writer_id=WorkerId(f"learner-{epoch}"),
        **more,  # type: ignore[arg-type]  # a test names only what it needs
    )


def log_of(*events: LearnerEvent) -> LearnerLog:
    log = LearnerLog()
    for offset, event in enumerate(events):
        log.take(offset, offset, event)
    return log


FENCE = learner_event(LearnerEventKind.EPOCH_STARTED, 1)
RESTORED = learner_event(LearnerEventKind.RESTORED, 1)
STEP_1 = learner_event(LearnerEventKind.STEP, 1, number=1, ordinal=1)
STEP_2 = learner_event(LearnerEventKind.STEP, 1, number=2, ordinal=2)


def test_a_version_is_servable_once_it_is_published_and_its_step_counts() -> None:
    log = log_of(FENCE, RESTORED, STEP_1, STEP_2)
    assert newest_servable(log, {}) is None
    digests = {START: "0", FIRST: "1"}
    target = newest_servable(log, digests)
    assert target == Target(version=FIRST, digest="1")
    target = newest_servable(log, digests | {SECOND: "2"})
    assert target == Target(version=SECOND, digest="2")


def test_a_fenced_learner_s_publication_is_never_servable() -> None:
    fence = learner_event(LearnerEventKind.EPOCH_STARTED, 2)
    log = log_of(FENCE, RESTORED, STEP_1, fence, STEP_2)
    assert newest_servable(log, {START: "0", SECOND: "2"}) == Target(version=START, digest="0")


def test_after_a_restore_the_steps_that_it_cut_off_are_not_servable() -> None:
    fence = learner_event(LearnerEventKind.EPOCH_STARTED, 2)
    restored = learner_event(
        LearnerEventKind.RESTORED,
        2,
        parent_epoch=1,
        parent_number=1,
        adopted=(StepRef(epoch=1, number=1, ordinal=1, offset=2),),
    )
    log = log_of(FENCE, RESTORED, STEP_1, STEP_2, fence, restored)
    digests = {START: "0", FIRST: "1", SECOND: "2"}
    assert newest_servable(log, digests) == Target(version=FIRST, digest="1")
