"""Which inference workers an environment knows."""

from __future__ import annotations

from dataclasses import replace

from environments.replicas import Replicas
from schemas.enums import Role, WorkerStatus
from schemas.ids import EpisodeId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.worker_state import WorkerState
from schemas.topics import WORKERS
from tests.support.memory_bus import MemoryBus

RUN = RunId("run-1")
OLD = WorkerState(
    run_id=RUN,
    worker_id=WorkerId("inference-0"),
    role=Role.INFERENCE,
    address="http://old",
    incarnation="z",
    status=WorkerStatus.READY,
    started_us=1,
    at_us=1,
    writer_id=WorkerId("inference-0"),
)
NEW = replace(OLD, address="http://new", incarnation="a", started_us=2)


def known(*states: WorkerState) -> Replicas:
    clock = MemoryBus(partitions=1).clock
    replicas = Replicas(RUN, clock, gone_ms=60_000, turn_away_ms=1_000)
    for offset, state in enumerate(states):
        replicas.take(
            Delivered(
                topic=WORKERS.name,
                partition=0,
                offset=offset,
                timestamp_ms=clock.now_us() // 1000,
                key=None,
                record=state,
            )
        )
    return replicas


def test_a_process_that_was_replaced_takes_no_requests_by_announcing_itself_again() -> None:
    replicas = known(OLD, NEW, OLD)
    assert replicas.pick(EpisodeId("run-1.0.0")) == NEW
    assert replicas.is_gone(OLD)
    assert not replicas.is_gone(NEW)


def test_once_the_younger_process_has_stopped_the_older_one_is_asked() -> None:
    replicas = known(OLD, NEW, replace(NEW, status=WorkerStatus.STOPPED), OLD)
    assert replicas.pick(EpisodeId("run-1.0.0")) == OLD
