"""One partition of the gate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from schemas.enums import DropReason, EpisodeEventKind, GateOutcome, Purpose
from schemas.ids import EpisodeId, WorkerId
from schemas.records.gate_decision import GateDecision
from schemas.topics import EPISODES, GATE_DECISIONS
from stream_jobs.core.deciding import Writer, decision_on, gated_record
from stream_jobs.core.floors import Floors
from stream_jobs.core.gate import Arrived, GatePartition
from stream_jobs.core.staleness import Judged, judge
from stream_jobs.settings import GroupRule
from tests.support.fake_rollout import RUN
from tests.unit.stream_jobs.scheduling import author
from tests.unit.stream_jobs.trajectories import (
    BOUNDS,
    abandoned,
    arrived,
    issued,
    learner,
    registry,
    trajectory,
)

WRITER = Writer(run_id=RUN, worker_id=WorkerId("gate-0"), at_us=1_000_000)
BEGIN = Floors(offset=0, others={EPISODES.name: 0, GATE_DECISIONS.name: 0})


class Logs:
    """A gate's partition with the offsets of its topics."""

    def __init__(self, floors: Floors = BEGIN) -> None:
        self.gate = GatePartition(floors)
        self.episodes = floors.others[EPISODES.name]
        self.decisions = floors.others[GATE_DECISIONS.name]

    def episode(self, *events: object) -> None:
        for event in events:
            self.gate.take_episode(self.episodes, 1_000, event)  # type: ignore[arg-type]  # by kind
            self.episodes += 1

    def issue(self, ordinal: int, size: int = 2) -> None:
        if not self.episodes:
            self.episode(author(1).fence(at_us=1))
        self.episode(*(issued(ordinal, member, size=size) for member in range(size)))

    def decided(self, decision: GateDecision) -> None:
        self.gate.take_decision(self.decisions, decision)
        self.decisions += 1

    def decide(self, *, draining: bool = False) -> list[GateDecision]:
        made = [
            decision_on(
                group,
                judge=partial(_judge, draining=draining),
                rule=GroupRule.REPAIR,
                learner=learner(),
                is_draining=draining,
                writer=WRITER,
            )
            for group in self.gate.complete()
        ]
        for decision in made:
            self.decided(decision)
        return made

    def send(self) -> list[int]:
        sent = []
        for owed in self.gate.owed():
            sent.append(owed.arrived.offset)
            self.gate.sent(owed)
        return sent


def _judge(one: Arrived, *, draining: bool) -> Judged:
    if one.trajectory is None:
        return Judged(reason=DropReason.INVALID_RECORD)
    return judge(
        one.trajectory,
        timestamp_ms=one.timestamp_ms,
        now_ms=1_000,
        learner=learner(),
        registry=registry(0),
        bounds=BOUNDS,
        is_draining=draining,
    )


def test_a_group_is_decided_once_every_member_has_come() -> None:
    logs = Logs()
    logs.issue(0)
    logs.gate.take_trajectory(arrived(trajectory(0, 0, reward=0.0), 0))
    assert logs.decide() == []
    assert logs.gate.input_offset == 0
    logs.gate.take_trajectory(arrived(trajectory(0, 1), 1))
    (decision,) = logs.decide()
    assert [one.outcome for one in decision.members] == [GateOutcome.ADMIT] * 2
    assert (decision.group_mean, decision.group_deviation, decision.group_count) == (0.5, 0.5, 2)
    assert logs.send() == [0, 1]
    assert logs.gate.input_offset == 2
    assert logs.gate.open_groups == 0


def test_single_rollouts_are_ready_at_once_whatever_their_siblings_do() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    logs.issue(1, size=1)
    logs.gate.take_trajectory(arrived(trajectory(1, 0), 0))
    assert len(logs.decide()) == 1
    assert logs.send() == [0]


def test_an_abandoned_member_completes_its_group_and_is_listed() -> None:
    logs = Logs()
    logs.issue(0, size=3)
    for offset, member in enumerate((0, 2)):
        logs.gate.take_trajectory(arrived(trajectory(0, member), offset))
    assert logs.decide() == []
    logs.episode(abandoned(0, 1))
    (decision,) = logs.decide()
    assert decision.abandoned == ("run-1.0.1",)
    assert [one.repeat for one in decision.members] == [2, 1]


def test_a_group_whose_members_were_all_abandoned_is_decided_without_members() -> None:
    logs = Logs()
    logs.issue(0)
    logs.episode(abandoned(0, 0), abandoned(0, 1))
    (decision,) = logs.decide()
    assert decision.members == ()
    assert logs.gate.open_groups == 0


def test_half_valid_drops_the_valid_half_as_group_incomplete() -> None:
    logs = Logs()
    logs.issue(0)
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    logs.gate.take_trajectory(arrived(trajectory(0, 1, reward=None), 1))
    (decision,) = logs.decide()
    assert [one.reason for one in decision.members] == [
        DropReason.GROUP_INCOMPLETE,
        DropReason.NO_REWARD,
    ]
    assert decision.group_count == 1
    assert logs.send() == []
    assert logs.gate.input_offset == 2


def test_the_first_decision_in_the_log_is_followed_whoever_wrote_it() -> None:
    logs = Logs()
    logs.issue(0)
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    logs.gate.take_trajectory(arrived(trajectory(0, 1), 1))
    (group,) = logs.gate.complete()
    ours = decision_on(
        group, judge=partial(_judge, draining=False), rule=GroupRule.REPAIR,
        learner=learner(), is_draining=False, writer=WRITER,
    )  # fmt: skip
    members = (replace(ours.members[0], outcome=GateOutcome.DROP), ours.members[1])
    theirs = replace(ours, writer_id=WorkerId("gate-9"), members=members)
    logs.decided(theirs)
    logs.decided(ours)
    assert logs.send() == [1]


def test_a_decision_is_followed_also_when_its_trajectories_come_later() -> None:
    first = Logs()
    first.issue(0)
    first.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    first.gate.take_trajectory(arrived(trajectory(0, 1), 1))
    (decision,) = first.decide()

    second = Logs()
    second.decided(decision)
    second.issue(0)
    second.gate.place_strangers()
    second.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    assert second.send() == [0]
    assert second.gate.open_groups == 1
    second.gate.take_trajectory(arrived(trajectory(0, 1), 1))
    assert second.send() == [1]
    assert list(second.gate.complete()) == []


def test_copies_late_ones_and_strangers_are_superseded() -> None:
    logs = Logs()
    logs.issue(0)
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 1))
    logs.gate.take_trajectory(arrived(trajectory(7, 0), 2))
    logs.gate.take_trajectory(arrived(trajectory(0, 1), 3))
    logs.decide()
    assert logs.send() == [0, 3]
    logs.gate.take_trajectory(arrived(trajectory(0, 1), 4))
    assert logs.gate.superseded == 3
    assert logs.gate.input_offset == 5


def test_what_is_not_for_training_is_skipped() -> None:
    logs = Logs()
    event = replace(issued(0), purpose=Purpose.EVALUATE)
    logs.episode(author(1).fence(at_us=1), event)
    logs.gate.take_trajectory(arrived(trajectory(0, 0, purpose=Purpose.EVALUATE), 0))
    assert (logs.gate.skipped, logs.gate.open_groups, logs.gate.input_offset) == (1, 0, 1)


def test_a_trajectory_that_cannot_be_decoded_drops_its_member() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    bad = Arrived(offset=0, timestamp_ms=1_000, episode_id=EpisodeId("run-1.0.0"), trajectory=None)
    logs.gate.take_trajectory(bad)
    (decision,) = logs.decide()
    assert decision.members[0].reason is DropReason.INVALID_RECORD
    assert logs.gate.input_offset == 1


def test_after_draining_every_decision_is_run_ended() -> None:
    logs = Logs()
    logs.issue(0)
    for member in (0, 1):
        logs.gate.take_trajectory(arrived(trajectory(0, member), member))
    (decision,) = logs.decide(draining=True)
    assert decision.draining
    assert {one.reason for one in decision.members} == {DropReason.RUN_ENDED}


def test_an_unacknowledged_gated_record_holds_the_input_offset_and_the_floors() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    logs.issue(1, size=1)
    for ordinal in (0, 1):
        logs.gate.take_trajectory(arrived(trajectory(ordinal, 0), ordinal))
    logs.decide()
    first, second = logs.gate.owed()
    logs.gate.sent(second)
    assert logs.gate.input_offset == 0
    floors = logs.gate.floors()
    assert floors.others == {EPISODES.name: 1, GATE_DECISIONS.name: 0}
    logs.gate.sent(first)
    floors = logs.gate.floors()
    assert (floors.offset, floors.others) == (2, {EPISODES.name: 3, GATE_DECISIONS.name: 2})


def test_floors_agree_so_that_a_restart_repeats_gated_records_and_decides_nothing_again() -> None:
    logs = Logs()
    events = [author(1).fence(at_us=1)]
    events += [issued(ordinal, member) for ordinal in (0, 1) for member in (0, 1)]
    events.append(author(2).fence(at_us=1))
    logs.episode(*events)
    arrivals = [
        arrived(trajectory(0, 0), 0),
        arrived(trajectory(1, 0), 1),
        arrived(trajectory(1, 1), 2),
    ]
    for one in arrivals:
        logs.gate.take_trajectory(one)
    (decision,) = logs.decide()
    assert logs.send() == [1, 2]
    floors = logs.gate.floors()
    assert (floors.offset, floors.others) == (0, {EPISODES.name: 1, GATE_DECISIONS.name: 0})
    assert floors.fence == (1, author(1).scheduler_id)

    restarted = Logs(Floors.read(floors.to_floor(), starts={EPISODES.name: 0, GATE_DECISIONS.name: 0, "trajectories.v1": 0}, joined="trajectories.v1"))  # fmt: skip  # noqa: E501  one call
    restarted.decided(decision)
    restarted.episode(*events[1:])
    restarted.gate.place_strangers()
    for one in arrivals:
        restarted.gate.take_trajectory(one)
    assert list(restarted.gate.complete()) == []
    assert restarted.send() == [1, 2]
    restarted.gate.take_trajectory(arrived(trajectory(0, 1), 3))
    assert len(restarted.decide()) == 1


def _split_group() -> tuple[Logs, list[object], list[Arrived]]:
    """A group whose second member was issued anew behind a group that stays open."""
    logs = Logs()
    places = [(0, 0), (1, 0), (1, 1), (0, 1)]
    events: list[object] = [author(1).fence(at_us=1)]
    events += [issued(ordinal, member) for ordinal, member in places]
    logs.episode(*events)
    arrivals = [
        arrived(trajectory(ordinal, member), offset)
        for offset, (ordinal, member) in enumerate([(1, 0), (0, 0), (0, 1)])
    ]
    for one in arrivals:
        logs.gate.take_trajectory(one)
    return logs, events, arrivals


def test_a_restart_finds_the_decision_of_a_group_while_any_issued_of_it_is_above_the_floor() -> (
    None
):
    logs, events, arrivals = _split_group()
    decisions = logs.decide()
    assert logs.send() == [1, 2]

    for _ in range(2):
        floors = logs.gate.floors()
        assert floors.others == {EPISODES.name: 2, GATE_DECISIONS.name: 0}
        logs = Logs(floors)
        for decision in decisions[logs.decisions :]:
            logs.decided(decision)
        logs.episode(*events[logs.episodes :])
        logs.gate.place_strangers()
        for one in arrivals[floors.offset :]:
            logs.gate.take_trajectory(one)
        assert list(logs.gate.complete()) == []
        assert {one.decided.offset for one in logs.gate.owed()} == {0}
        assert logs.send() == [1, 2]


def test_floors_pass_a_group_in_pieces_once_its_last_issued_is_below_them() -> None:
    logs, _, _ = _split_group()
    logs.decide()
    logs.send()
    logs.gate.take_trajectory(arrived(trajectory(1, 1), 3))
    logs.decide()
    logs.send()
    floors = logs.gate.floors()
    assert (floors.offset, floors.others) == (4, {EPISODES.name: 5, GATE_DECISIONS.name: 2})


def test_a_decision_that_is_ahead_of_the_issued_waits_for_it_and_holds_the_floors() -> None:
    ahead, events, _ = _split_group()
    (decision,) = ahead.decide()
    dropped = tuple(replace(one, outcome=GateOutcome.DROP) for one in decision.members)
    behind = Logs()
    behind.episode(*events[:4])
    behind.decided(replace(decision, members=dropped))
    assert behind.gate.has_strangers
    assert behind.gate.floors().others == {EPISODES.name: 1, GATE_DECISIONS.name: 0}
    behind.episode(*events[4:])
    behind.gate.place_strangers()
    assert behind.gate.open_groups == 1
    assert behind.gate.floors().others == {EPISODES.name: 2, GATE_DECISIONS.name: 0}


def test_a_decision_on_a_group_that_is_not_issued_yet_holds_the_floor_of_decisions() -> None:
    ahead = Logs()
    ahead.issue(0, size=1)
    ahead.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    (decision,) = ahead.decide()
    behind = Logs()
    behind.decided(decision)
    assert behind.gate.floors().others == {EPISODES.name: 0, GATE_DECISIONS.name: 0}


def test_a_decision_on_a_group_below_the_floor_is_forgotten() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    (decision,) = logs.decide()
    fresh = Logs(Floors(offset=1, others={EPISODES.name: 2, GATE_DECISIONS.name: 0}))
    fresh.decided(decision)
    assert fresh.gate.has_strangers
    fresh.gate.place_strangers()
    assert not fresh.gate.has_strangers


def test_gated_carries_the_committed_input_offset_and_the_decisions_statistics() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 5, timestamp_ms=77))
    logs.decide()
    (owed,) = logs.gate.owed()
    record = gated_record(owed, committed=3, frame=b"frame", writer=WRITER)
    assert (record.input_offset, record.trajectory_offset, record.decision_offset) == (3, 5, 0)
    assert (record.trajectory_us, record.group_count, record.group_mean) == (77_000, 1, 1.0)


def test_an_abandoned_that_comes_after_the_final_ended_does_not_count() -> None:
    logs = Logs()
    logs.issue(0, size=1)
    lease = replace(
        issued(0), kind=EpisodeEventKind.LEASED, attempt=1, worker_id=WorkerId("environment-0")
    )
    from schemas.enums import StopCause
    from tests.support.fake_rollout import ended

    logs.episode(lease, ended(lease, cause=StopCause.POLICY_STOP), abandoned(0, 0))
    logs.gate.take_trajectory(arrived(trajectory(0, 0), 0))
    (decision,) = logs.decide()
    assert decision.members[0].outcome is GateOutcome.ADMIT
