"""The audit's own lineage agrees with the shared rule on random learner logs."""

from __future__ import annotations

import dataclasses
from random import Random

from infra.audit.steps import Steps
from schemas.enums import DropReason, LearnerEventKind
from schemas.ids import EpisodeId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import SkippedMember, StepRef, TrainedMember
from schemas.rules.lineage import LearnerLog

K = LearnerEventKind


def _random_log(random: Random) -> list[LearnerEvent]:
    """Return a log of learners that start, step, checkpoint, are fenced and write too late."""
    log: list[LearnerEvent] = []
    heads = {1: 0}
    for offset in range(random.randrange(5, 40)):
        epoch = random.choice([max(heads), max(heads), max(heads), random.choice(list(heads))])
        kind = random.choice(
            [K.STEP, K.STEP, K.STEP, K.CHECKPOINTED, K.SKIPPED, K.EPOCH_STARTED, K.RESTORED]
        )
        base = LearnerEvent(
            run_id=RunId("r"),
            kind=kind,
            epoch=epoch,
            learner_id=WorkerId(f"l{epoch}"),
            at_us=0,
            writer_id=WorkerId("l"),
        )
        number = heads[epoch]
        match kind:
            case K.EPOCH_STARTED:
                heads[max(heads) + 1] = 0
                base = dataclasses.replace(
                    base, epoch=max(heads), learner_id=WorkerId(f"l{max(heads)}")
                )
            case K.STEP:
                heads[epoch] = number + 1
                member = TrainedMember(episode_id=EpisodeId(f"e{offset}"), partition=0, offset=0)
                base = dataclasses.replace(
                    base, number=number + 1, ordinal=number + 1, trained=(member,)
                )
            case K.CHECKPOINTED:
                base = dataclasses.replace(base, number=number, ordinal=number)
            case K.SKIPPED:
                skipped = SkippedMember(
                    episode_id=EpisodeId(f"e{offset}"), partition=0, offset=0, reason=DropReason.AGE
                )
                base = dataclasses.replace(base, skipped=(skipped,))
            case _:
                base = _restored(base, log, random, heads)
        log.append(base)
    return log


def _restored(
    base: LearnerEvent, log: list[LearnerEvent], random: Random, heads: dict[int, int]
) -> LearnerEvent:
    steps = [(offset, e) for offset, e in enumerate(log) if e.kind is K.STEP]
    if not steps:
        return base
    offset, step = random.choice(steps)
    heads[base.epoch] = step.number
    adopted = [
        StepRef(epoch=e.epoch, number=e.number, ordinal=e.ordinal, offset=o)
        for o, e in steps
        if e.epoch == step.epoch and e.number <= step.number and o <= offset
    ]
    if random.random() < 0.3:
        adopted.append(dataclasses.replace(adopted[-1], offset=-1))
    return dataclasses.replace(
        base,
        parent_epoch=step.epoch,
        parent_number=step.number,
        adopted=tuple(adopted if random.random() < 0.7 else ()),
    )


def test_two_readings_of_one_log_agree() -> None:
    for seed in range(150):
        ours, theirs = Steps(), LearnerLog()
        for offset, event in enumerate(_random_log(Random(seed))):
            theirs.take(offset, offset, event)
            ours.take(
                Delivered(
                    topic="t", partition=0, offset=offset, timestamp_ms=0, key=None, record=event
                )
            )
        assert [(s.version, s.offset) for s in ours.lineage] == [
            ((r.epoch, r.number), r.offset) for r in theirs.steps
        ], seed
        assert ours.covered == len(
            [r for r in theirs.steps if r.number <= theirs.surviving_number]
        ), seed
        assert ours.skips.keys() == theirs.skipped.keys(), seed
        trained = [m.episode_id for step in ours.lineage for m in step.members]
        assert sorted(trained) == sorted(theirs.trained), seed
