"""Which learner records count, which steps survive, and whose trajectories they trained."""

from __future__ import annotations

from typing import Any

from schemas.enums import DropReason, LearnerEventKind
from schemas.ids import EpisodeId, RunId, Version, WorkerId
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import SkippedMember, StepRef, TrainedMember
from schemas.rules.lineage import START, LearnerLog

K = LearnerEventKind


def event(kind: LearnerEventKind, epoch: int, learner: str = "l", **fields: Any) -> LearnerEvent:
    """Return one learner record."""
    return LearnerEvent(
        run_id=RunId("r"),
        kind=kind,
        epoch=epoch,
        learner_id=WorkerId(learner),
        at_us=0,
        writer_id=WorkerId(learner),
        **fields,
    )


def step(epoch: int, number: int, *episodes: str, learner: str = "l") -> LearnerEvent:
    """Return a Step whose ordinal is its number."""
    members = tuple(
        TrainedMember(episode_id=EpisodeId(e), partition=0, offset=i)
        for i, e in enumerate(episodes)
    )
    return event(K.STEP, epoch, learner, number=number, ordinal=number, trained=members)


def checkpointed(epoch: int, number: int) -> LearnerEvent:
    """Return a Checkpointed."""
    return event(K.CHECKPOINTED, epoch, number=number, ordinal=number)


def skipped(epoch: int, episode: str) -> LearnerEvent:
    """Return a Skipped of one episode."""
    member = SkippedMember(
        episode_id=EpisodeId(episode), partition=0, offset=0, reason=DropReason.LAG
    )
    return event(K.SKIPPED, epoch, skipped=(member,))


def started(epoch: int, parent: tuple[int, int] = (0, 0), **fields: Any) -> list[LearnerEvent]:
    """Return the two records of a learner's start."""
    return [
        event(K.EPOCH_STARTED, epoch),
        event(K.RESTORED, epoch, parent_epoch=parent[0], parent_number=parent[1], **fields),
    ]


def _log(*events: LearnerEvent) -> tuple[LearnerLog, list[bool]]:
    log = LearnerLog()
    return log, [log.take(offset, 1000 + offset, e) for offset, e in enumerate(events)]


def test_steps_are_provisional_until_a_checkpoint_covers_them() -> None:
    log, counts = _log(*started(1), step(1, 1, "a", "b"), step(1, 2, "c"))
    assert all(counts)
    assert log.head == (Version(1, 2), 2)
    assert set(log.trained) == {"a", "b", "c"}
    assert not log.trained_surviving
    assert log.take(4, 0, checkpointed(1, 1))
    assert set(log.trained_surviving) == {"a", "b"}
    assert (log.surviving_number, log.surviving_ordinal, log.newest_ordinal) == (1, 1, 2)
    assert log.trained[EpisodeId("a")].offset == 2


def test_before_any_record_the_starting_weights_are_all_there_is() -> None:
    log = LearnerLog()
    assert log.head == (START, 0)
    assert log.is_ancestor(START)
    assert log.ordinal_of(START) == 0
    assert log.ordinal_of(Version(1, 1)) is None
    assert not log.is_ancestor(Version(1, 1))


def test_records_of_a_lower_epoch_are_void_and_of_two_equals_the_first_wins() -> None:
    _, counts = _log(
        *started(1),
        event(K.EPOCH_STARTED, 1, "other"),
        step(1, 1, "a", learner="other"),
        event(K.EPOCH_STARTED, 2),
        step(1, 1, "a"),
        event(K.EPOCH_STARTED, 1),
    )
    assert counts == [True, True, False, False, True, False, False]


def test_a_step_needs_a_restored_of_its_epoch_and_the_next_number() -> None:
    _, counts = _log(
        event(K.EPOCH_STARTED, 1),
        step(1, 1, "a"),
        started(1)[1],
        step(1, 2, "a"),
        step(1, 1, "a"),
        step(1, 1, "b"),
    )
    assert counts == [True, False, True, False, True, False]


def test_a_restore_cuts_off_what_its_checkpoint_does_not_cover() -> None:
    log, counts = _log(
        *started(1),
        step(1, 1, "a"),
        skipped(1, "x"),
        checkpointed(1, 1),
        skipped(1, "y"),
        step(1, 2, "b"),
        skipped(1, "z"),
        *started(2, (1, 1)),
        step(2, 2, "b"),
    )
    assert all(counts)
    assert log.head == (Version(2, 2), 2)
    assert {e: (r.epoch, r.number) for e, r in log.trained.items()} == {"a": (1, 1), "b": (2, 2)}
    assert set(log.skipped) == {"x"}
    assert log.lost == 1
    assert log.is_ancestor(Version(1, 1))
    assert not log.is_ancestor(Version(1, 2))
    assert log.ordinal_of(Version(1, 2)) == 2
    assert log.is_ancestor(Version(2, 2))


def test_a_restore_to_the_starting_weights_voids_everything() -> None:
    log, _ = _log(*started(1), skipped(1, "x"), step(1, 1, "a"), *started(2))
    assert not log.trained
    assert not log.skipped
    assert log.head == (START, 0)


def test_a_fence_without_a_restored_leaves_the_lineage() -> None:
    log, _ = _log(*started(1), step(1, 1, "a"), event(K.EPOCH_STARTED, 2))
    assert log.head == (Version(1, 1), 1)
    assert set(log.trained) == {"a"}


def test_a_restored_adopts_records_that_came_behind_the_fence() -> None:
    log, counts = _log(
        *started(1),
        step(1, 1, "a"),
        event(K.EPOCH_STARTED, 2),
        step(1, 2, "b"),
        checkpointed(1, 2),
        event(
            K.RESTORED,
            2,
            parent_epoch=1,
            parent_number=2,
            adopted=(
                StepRef(epoch=1, number=2, ordinal=2, offset=4),
                StepRef(epoch=1, number=2, ordinal=2, offset=5),
            ),
        ),
        step(2, 3, "c"),
    )
    assert counts == [True, True, True, True, False, False, True, True]
    assert set(log.trained_surviving) == {"a", "b"}
    assert log.steps[1].offset == 4
    assert log.head == (Version(2, 3), 3)
    assert [c.offset for c in log.checkpoints] == [5]


def test_a_restored_adopts_a_checkpoint_whose_records_are_missing() -> None:
    member = TrainedMember(episode_id=EpisodeId("b"), partition=0, offset=1)
    log, counts = _log(
        *started(1),
        step(1, 1, "a"),
        *started(
            2,
            (1, 2),
            adopted=(
                StepRef(epoch=1, number=2, ordinal=2),
                StepRef(epoch=1, number=2, ordinal=2),
            ),
            trained=(member,),
        ),
    )
    assert all(counts)
    assert set(log.trained_surviving) == {"a", "b"}
    assert log.surviving_number == 2


def test_a_step_behind_the_fence_is_adopted_with_what_it_trained() -> None:
    refs = (
        StepRef(epoch=1, number=1, ordinal=1, offset=3),
        StepRef(epoch=1, number=1, ordinal=1, offset=-1),
    )
    restored = event(K.RESTORED, 2, parent_epoch=1, parent_number=1, adopted=refs)
    log, _ = _log(*started(1), event(K.EPOCH_STARTED, 2), step(1, 1, "a"), restored)
    assert set(log.trained_surviving) == {"a"}
    assert log.steps[0].offset == 3


def test_a_restored_from_a_version_that_never_was_does_not_count() -> None:
    log, counts = _log(*started(1), step(1, 1, "a"), *started(2, (1, 7)))
    assert counts == [True, True, True, True, False]
    assert log.head == (Version(1, 1), 1)


def test_nothing_counts_after_closed() -> None:
    log, counts = _log(*started(1), event(K.CLOSED, 1), step(1, 1, "a"))
    assert counts == [True, True, True, False]
    assert log.closed is not None
