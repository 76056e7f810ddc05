"""First decisions, bearer tokens, and the choice of replica."""

from __future__ import annotations

from collections import Counter

import pytest

from schemas import bearer
from schemas.affinity import replica_of
from schemas.enums import Role, WorkerStatus
from schemas.errors import RejectedError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.gate_decision import GateDecision
from schemas.records.worker_state import WorkerState
from schemas.rules.decisions import Decisions


def _decision(group: str, writer: str = "g") -> GateDecision:
    return GateDecision(
        run_id=RunId("r"), group_id=GroupId(group), at_us=0, writer_id=WorkerId(writer)
    )


def test_the_first_decision_of_a_group_is_the_decision_whoever_wrote_it() -> None:
    decisions = Decisions()
    answers = [
        decisions.take(0, _decision("a", "g1")),
        decisions.take(1, _decision("a", "g2")),
        decisions.take(2, _decision("b")),
        decisions.take(0, _decision("a", "g1")),
    ]
    assert answers == [True, False, True, True]
    assert decisions.offset_of(GroupId("a")) == 0
    assert decisions.superseded == 1
    decisions.forget(GroupId("a"))
    assert decisions.offset_of(GroupId("a")) is None


def test_a_bearer_token_says_episode_and_attempt() -> None:
    token = bearer.issue(b"secret", EpisodeId("run.12.3"), 2)
    assert bearer.read(b"secret", token) == ("run.12.3", 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.replace("~2~", "~3~"),
        lambda t: t.replace("~2~", "~02~"),
        lambda t: t.replace("~2~", "~٢~"),
        lambda t: t.replace("run.12", "run.13"),
        lambda t: t[:-1],
        lambda t: t + "é",
        lambda _: "",
        lambda _: "~~",
    ],
)
def test_a_changed_token_is_refused(spoil: object) -> None:
    token = bearer.issue(b"secret", EpisodeId("run.12.3"), 2)
    assert callable(spoil)
    with pytest.raises(RejectedError):
        bearer.read(b"secret", spoil(token))


def test_a_token_of_another_run_is_refused() -> None:
    with pytest.raises(RejectedError):
        bearer.read(b"other", bearer.issue(b"secret", EpisodeId("run.12.3"), 2))


def _worker(name: str, status: WorkerStatus = WorkerStatus.READY) -> WorkerState:
    return WorkerState(
        run_id=RunId("r"),
        worker_id=WorkerId(name),
        role=Role.INFERENCE,
        incarnation="i",
        status=status,
        at_us=0,
        writer_id=WorkerId(name),
    )


WORKERS = [_worker(f"inference-{n}") for n in range(8)]
EPISODES = [EpisodeId(f"run.{n}.0") for n in range(10_000)]


def _owners(workers: list[WorkerState], episodes: list[EpisodeId]) -> dict[EpisodeId, str]:
    return {e: w.worker_id for e in episodes if (w := replica_of(e, workers)) is not None}


def test_episodes_are_spread_evenly() -> None:
    load = Counter(_owners(WORKERS, EPISODES).values())
    assert len(load) == 8
    assert max(load.values()) <= 1.25 * len(EPISODES) / 8


def test_a_worker_that_goes_takes_only_its_own_episodes_with_it() -> None:
    before, after = _owners(WORKERS, EPISODES[:2000]), _owners(WORKERS[1:], EPISODES[:2000])
    moved = [e for e in before if before[e] != after[e]]
    assert moved == [e for e in before if before[e] == "inference-0"]
    assert len(moved) <= 1.5 * 2000 / 8


def test_only_ready_inference_workers_are_chosen() -> None:
    gone = _worker("inference-0", WorkerStatus.DRAINING)
    other = _worker("inference-1")
    assert all(replica_of(e, [gone, other]) is other for e in EPISODES[:50])
    assert replica_of(EPISODES[0], [gone]) is None
    assert replica_of(EPISODES[0], []) is None
