"""The audit's own reading of `episodes` agrees with the shared rules on random logs."""

from __future__ import annotations

from random import Random

from infra.audit.lives import Lives
from schemas.enums import AbandonReason, EpisodeEventKind, StopCause
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.rules.episodes import EpisodeLife, SchedulerFences

K = EpisodeEventKind
_KINDS = [K.ISSUED, *[K.LEASED, K.ENDED] * 3, *list(K)[1:]]
_CAUSES = [
    StopCause.POLICY_STOP,
    StopCause.ENVIRONMENT_ERROR,
    StopCause.USER_CANCEL,
    StopCause.NONE,
]


def _random_log(random: Random) -> list[EpisodeEvent]:
    epoch, attempt = 1, 0
    log = [_event(random, K.SCHEDULER_FENCE, epoch, attempt)]
    for _ in range(random.randrange(5, 30)):
        kind = random.choice(_KINDS)
        epoch += kind is K.SCHEDULER_FENCE and random.random() < 0.5
        attempt += kind is K.LEASED and random.random() < 0.8
        log.append(_event(random, kind, epoch, attempt))
    return log


def _event(random: Random, kind: EpisodeEventKind, epoch: int, attempt: int) -> EpisodeEvent:
    if random.random() < 0.15:
        epoch, attempt = random.randrange(epoch + 1), random.randrange(attempt + 1)
    worker = WorkerId(f"e{attempt if random.random() < 0.9 else 0}")
    return EpisodeEvent(
        run_id=RunId("r"),
        episode_id=EpisodeId("" if kind is K.SCHEDULER_FENCE else f"r.0.{random.randrange(2)}"),
        group_id=GroupId("r.0.g"),
        kind=kind,
        attempt=attempt,
        scheduler_epoch=epoch,
        scheduler_id=WorkerId(f"s{epoch}" if random.random() < 0.95 else "s0"),
        worker_id=worker,
        stop_cause=random.choice(_CAUSES),
        abandon_reason=AbandonReason.USER_CANCEL,
        wal_position=random.randrange(100),
        at_us=0,
        writer_id=worker,
    )


def test_two_readings_of_one_log_agree() -> None:
    ended = abandoned = 0
    for seed in range(400):
        ours, fences = Lives(), SchedulerFences()
        theirs: dict[str, EpisodeLife] = {}
        for offset, event in enumerate(_random_log(Random(seed))):
            ours.take(
                Delivered(
                    topic="t", partition=0, offset=offset, timestamp_ms=0, key=None, record=event
                )
            )
            if fences.take(event) and event.kind is not K.SCHEDULER_FENCE:
                theirs.setdefault(event.episode_id, EpisodeLife()).take(offset, 0, event)
        issued = {episode: life for episode, life in theirs.items() if life.issued}
        assert ours.by_id.keys() == issued.keys(), seed
        for episode, life in issued.items():
            mine = ours.by_id[episode]
            final, gone = life.final_mark, life.abandoned_mark
            assert (mine.final.offset if mine.final else None) == (final.offset if final else None)
            assert (mine.abandoned is None) == (gone is None), seed
            assert mine.attempt == life.attempt, seed
            ended += final is not None
            abandoned += gone is not None
    assert min(ended, abandoned) > 10
