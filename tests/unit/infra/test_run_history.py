"""The accounts that progress, summary and report are drawn from."""

from __future__ import annotations

import math
from typing import Any

import pytest

from infra.audit.report import AuditReport
from infra.run.bus import counts_of
from infra.run.history import History, interval, quantiles
from infra.run.summary import quarters, summarise
from schemas.enums import ControlKind, EpisodeEventKind, LearnerEventKind, StopCause, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.ports import Delivered
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import TrainedMember
from schemas.records.token_commit import TokenCommit

RUN = RunId("run")
ME = WorkerId("w")


def delivered(record: Any, *, at_ms: int = 1_000) -> Delivered[Any]:
    return Delivered(topic="t", partition=0, offset=0, timestamp_ms=at_ms, key=None, record=record)


def step(
    ordinal: int, rewards: dict[str, float], *, epoch: int = 1, at_ms: int = 1_000
) -> Delivered[Any]:
    trained = tuple(
        TrainedMember(
            episode_id=EpisodeId(f"run.{i}.0"), group_id=GroupId(group), partition=0, offset=i,
            environment="arithmetic", reward=reward, kept_tokens=10, action_tokens=10,
            lag_steps=ordinal % 2,
        )
        for i, (group, reward) in enumerate(rewards.items())
    )  # fmt: skip
    event = LearnerEvent(
        run_id=RUN, kind=LearnerEventKind.STEP, epoch=epoch, learner_id=ME, number=ordinal,
        ordinal=ordinal, trained=trained, at_us=1, writer_id=ME,
    )  # fmt: skip
    return delivered(event, at_ms=at_ms)


def learner(kind: LearnerEventKind, *, epoch: int, ordinal: int = 0) -> Delivered[Any]:
    return delivered(
        LearnerEvent(
            run_id=RUN,
            kind=kind,
            epoch=epoch,
            learner_id=ME,
            ordinal=ordinal,
            at_us=1,
            writer_id=ME,
        )
    )


def test_quantiles_are_ranks_of_rows_and_leave_non_finite_values_out() -> None:
    found = quantiles([*range(1, 101), math.nan, math.inf])
    assert (found.p50, found.p95, found.p99, found.max, found.n) == (50, 95, 99, 100, 100)
    assert quantiles([]).p50 is None is quantiles([]).max


def test_the_interval_takes_groups_as_the_independent_units() -> None:
    whole = interval([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    assert (whole.mean, whole.low, whole.high) == (0.5, 0.5, 0.5)
    apart = interval([[0.0, 0.0], [1.0, 1.0]])
    assert apart.mean == 0.5
    assert apart.low is not None
    assert apart.low < 0.0


def test_steps_beyond_the_restored_checkpoint_are_forgotten() -> None:
    history = History(run_id=RUN)
    for message in (
        learner(LearnerEventKind.EPOCH_STARTED, epoch=1), step(1, {"a": 0.0}), step(2, {"b": 0.0}),
        learner(LearnerEventKind.EPOCH_STARTED, epoch=2), step(3, {"late": 1.0}, epoch=1),
        learner(LearnerEventKind.RESTORED, epoch=2, ordinal=1), step(2, {"c": 1.0}, epoch=2),
    ):  # fmt: skip
        history.take(message)
    assert [row.event.trained[0].group_id for row in history.ordered_steps()] == ["a", "c"]


def test_an_episode_of_another_run_is_not_counted() -> None:
    history = History(run_id=RUN)
    for run in ("run", "other"):
        history.take(
            delivered(
                EpisodeEvent(
                    run_id=RunId(run), episode_id=EpisodeId(f"{run}.0.0"), group_id=GroupId("g"),
                    kind=EpisodeEventKind.ISSUED, at_us=1, writer_id=ME,
                )
            )
        )  # fmt: skip
    assert history.issued == {"run.0.0"}


def test_a_retried_end_does_not_finish_an_episode() -> None:
    history = History(run_id=RUN)
    for cause in (StopCause.INFRASTRUCTURE_ERROR, StopCause.POLICY_STOP):
        history.take(
            delivered(
                EpisodeEvent(
                    run_id=RUN, episode_id=EpisodeId(f"run.0.{cause}"), group_id=GroupId("run.0.g"),
                    kind=EpisodeEventKind.ENDED, stop_cause=cause, at_us=1, writer_id=ME,
                )
            )
        )  # fmt: skip
    assert history.finished == {f"run.0.{StopCause.POLICY_STOP}"}


def test_the_summary_compares_the_first_quarter_with_the_last() -> None:
    history = History(run_id=RUN)
    history.take(learner(LearnerEventKind.EPOCH_STARTED, epoch=1))
    for ordinal in range(1, 9):
        history.take(step(ordinal, {f"g{ordinal}": float(ordinal > 4)}, at_ms=1_000 * ordinal))
    counts = {
        "issued": 8,
        "trained": 8,
        "dropped": {},
        "abandoned": {},
        "evaluated": 0,
        "pending": 0,
    }
    found = summarise(
        history, counts=counts, violations=0, settings={"run": {"name": "n", "seed": 1}}, restarts=0
    )
    assert found["reward_first_quarter"]["mean"] == 0.0
    assert found["reward_last_quarter"]["mean"] == 1.0
    assert found["effective_tokens_per_s"] == pytest.approx(80 / 7.0, abs=0.01)
    assert found["lag_steps"]["n"] == 8


def test_rates_are_of_the_wall_clock_from_the_start_to_the_last_update_or_token() -> None:
    start = ControlEvent(run_id=RUN, kind=ControlKind.START, at_us=1, writer_id=ME)
    token = TokenCommit(
        run_id=RUN, episode_id=EpisodeId("e"), group_id=GroupId("g"), attempt=1, fence_number=1,
        writer_id=ME, incarnation="i", producer_number=1, kind=TokenKind.FENCE, count=0, crc32c=0,
        at_us=1,
    )  # fmt: skip
    history = History(run_id=RUN)
    history.take(delivered(start, at_ms=1_000))
    history.take(learner(LearnerEventKind.EPOCH_STARTED, epoch=1))
    history.take(step(1, {"g": 1.0}, at_ms=5_000))
    counts = dict.fromkeys(("issued", "trained", "evaluated", "pending"), 1)
    settings = {"run": {"name": "n", "seed": 1}}

    def wall_s() -> float:
        made = summarise(
            history, counts=counts | {"dropped": {}, "abandoned": {}}, violations=0,
            settings=settings, restarts=0,
        )  # fmt: skip
        found: float = made["wall_s"]
        return found

    assert wall_s() == 4.0
    history.take(delivered(token, at_ms=9_000))
    history.take(learner(LearnerEventKind.CLOSED, epoch=1))
    assert wall_s() == 8.0


def test_a_quarter_of_few_steps_is_one_step() -> None:
    history = History(run_id=RUN)
    history.take(learner(LearnerEventKind.EPOCH_STARTED, epoch=1))
    history.take(step(1, {"a": 0.0}))
    first, last = quarters(history.ordered_steps())
    assert len(first) == len(last) == 1


def test_what_was_written_again_is_told_beside_what_counts() -> None:
    told = {"issued": 40, "commits superseded": 5, "superseded trajectories": 2, "steps": 7}
    audited = AuditReport(
        run_id=str(RUN), closed=False, counts=told, dropped={}, abandoned={}, tokens={}, pending={},
        checked={}, violations=(),
    )  # fmt: skip
    counts = counts_of(audited)
    assert (counts["issued"], counts["duplicates"]) == (40, {"trajectories": 2, "commits": 5})
