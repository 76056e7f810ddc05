"""The settled cursor: which tasks nothing more can come of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learner.core.settled import Settled
from schemas.enums import EpisodeEventKind, GateOutcome, Purpose
from schemas.ids import EpisodeId, WorkerId, episode_id, group_id, task_id
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.parts import MemberDecision
from tests.support.gated_records import RUN, random_group, trajectory_of

SCHEDULER = WorkerId("scheduler-0")
WORKER = WorkerId("environment-0")


class Log:
    """Feeds records in log order, one partition."""

    def __init__(self) -> None:
        self.settled = Settled()
        self._offset = 0
        self._episode(EpisodeEventKind.SCHEDULER_FENCE, 0, 0)

    def _episode(self, kind: EpisodeEventKind, ordinal: int, member: int, **values: Any) -> None:
        self._offset += 1
        event = EpisodeEvent(
            run_id=RUN, kind=kind, ordinal=ordinal, member=member, group_size=2,
            episode_id=episode_id(RUN, ordinal, member), group_id=group_id(RUN, ordinal),
            task_id=task_id(RUN, ordinal), scheduler_epoch=1, scheduler_id=SCHEDULER, at_us=1,
            writer_id=SCHEDULER, **values,
        )  # fmt: skip
        self.settled.take_episode(0, self._offset, 0, event)

    def issue(self, ordinal: int, purpose: Purpose = Purpose.TRAIN) -> None:
        for member in (0, 1):
            self._episode(EpisodeEventKind.ISSUED, ordinal, member, purpose=purpose)

    def abandon(self, ordinal: int, member: int) -> None:
        self._episode(EpisodeEventKind.ABANDONED, ordinal, member)

    def pause(self, ordinal: int, member: int) -> None:
        self._episode(
            EpisodeEventKind.LEASED, ordinal, member, attempt=1, worker_id=WORKER, lease_ms=60_000
        )
        event = EpisodeEvent(
            run_id=RUN, kind=EpisodeEventKind.PAUSED, ordinal=ordinal, member=member, attempt=1,
            episode_id=episode_id(RUN, ordinal, member), group_id=group_id(RUN, ordinal),
            snapshot_id="snapshot-7", at_us=1, writer_id=WORKER,
        )  # fmt: skip
        self._offset += 1
        self.settled.take_episode(0, self._offset, 0, event)

    def decide(self, ordinal: int, *outcomes: GateOutcome) -> None:
        self.settled.take_decision(
            GateDecision(
                run_id=RUN, group_id=group_id(RUN, ordinal), ordinal=ordinal,
                members=tuple(
                    MemberDecision(
                        episode_id=episode_id(RUN, ordinal, member), outcome=outcome,
                        trajectory_offset=0,
                    )
                    for member, outcome in enumerate(outcomes)
                ),
                at_us=1, writer_id=WorkerId("gate-0"),
            )
        )  # fmt: skip


def of(*places: tuple[int, int]) -> set[EpisodeId]:
    return {episode_id(RUN, ordinal, member) for ordinal, member in places}


def test_a_group_is_settled_once_its_admitted_members_are_consumed() -> None:
    log = Log()
    log.issue(0)
    assert log.settled.cursor(set()) == -1
    log.decide(0, GateOutcome.ADMIT, GateOutcome.DROP)
    assert log.settled.cursor(set()) == -1
    assert log.settled.cursor(of((0, 0))) == 0


def test_the_cursor_is_contiguous_and_a_later_decision_changes_nothing() -> None:
    log = Log()
    for ordinal in range(4):
        log.issue(ordinal)
    log.decide(1, GateOutcome.DROP, GateOutcome.DROP)
    log.decide(2, GateOutcome.ADMIT, GateOutcome.ADMIT)
    log.decide(2, GateOutcome.DROP, GateOutcome.DROP)
    assert log.settled.cursor(of((2, 0))) == -1
    log.abandon(0, 0)
    log.abandon(0, 1)
    assert log.settled.cursor(of((2, 0))) == 1
    assert log.settled.cursor(of((2, 0), (2, 1))) == 2
    assert log.settled.issued_end == 4
    log.decide(1, GateOutcome.ADMIT, GateOutcome.ADMIT)
    assert log.settled.cursor(set()) == 2


def test_an_evaluated_episode_is_settled_by_its_trajectory_whichever_is_read_first() -> None:
    log = Log()
    rollouts = random_group(0, size=2)
    first, second = (trajectory_of(rollout, group_size=2) for rollout in rollouts)
    log.settled.take_trajectory(replace(first, purpose=Purpose.EVALUATE))
    log.issue(0, Purpose.EVALUATE)
    assert log.settled.cursor(set()) == -1
    log.settled.take_trajectory(replace(second, purpose=Purpose.EVALUATE))
    assert log.settled.cursor(set()) == 0


def test_a_trajectory_for_training_settles_nothing_by_itself() -> None:
    log = Log()
    log.issue(0)
    for rollout in random_group(0, size=2):
        log.settled.take_trajectory(trajectory_of(rollout, group_size=2))
    assert log.settled.cursor(set()) == -1


def test_paused_episodes_are_told_with_their_snapshot() -> None:
    log = Log()
    log.issue(0)
    log.pause(0, 1)
    (paused,) = log.settled.paused()
    assert paused == {
        "episode": episode_id(RUN, 0, 1), "ordinal": 0, "snapshot": "snapshot-7",
    }  # fmt: skip
