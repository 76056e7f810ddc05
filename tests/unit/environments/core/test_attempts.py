"""Which leases a process runs."""

from __future__ import annotations

from environments.core.attempts import Attempts
from schemas.enums import EpisodeEventKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.records.episode_event import EpisodeEvent

ME, OTHER = WorkerId("environment-0"), WorkerId("environment-1")


def leased(
    attempt: int = 1, *, episode: str = "r.0.0", worker: WorkerId = ME, incarnation: str = "new"
) -> EpisodeEvent:
    return EpisodeEvent(
        run_id=RunId("r"),
        episode_id=EpisodeId(episode),
        group_id=GroupId("r.0.g"),
        kind=EpisodeEventKind.LEASED,
        attempt=attempt,
        worker_id=worker,
        incarnation=incarnation,
        at_us=1,
        writer_id=WorkerId("scheduler-0"),
    )


def fresh(incarnation: str = "new", *, episodes_max: int = 10) -> Attempts:
    return Attempts(ME, incarnation, episodes_max=episodes_max)


def test_of_two_processes_under_one_name_only_the_one_that_is_named_runs_a_lease() -> None:
    old, new = fresh("old"), fresh("new")
    lease = leased(incarnation="new")
    assert (old.take(lease), new.take(lease)) == (False, True)
    assert not fresh().take(leased(worker=OTHER)), "the incarnation alone names nobody"


def test_a_lease_that_names_no_process_is_anybodys_of_that_name_as_before_the_field() -> None:
    assert fresh("old").take(leased(incarnation=""))
    assert fresh("new").take(leased(incarnation=""))


def test_a_lease_that_stands_twice_in_the_log_is_run_once() -> None:
    attempts = fresh()
    assert attempts.take(leased(2))
    assert not attempts.take(leased(2))
    assert not attempts.take(leased(1))
    assert attempts.take(leased(3))


def test_an_attempt_that_was_passed_over_or_went_to_another_is_not_taken_from_a_copy() -> None:
    attempts = fresh()
    assert not attempts.take(leased(1, incarnation="old"))
    assert not attempts.take(leased(2, worker=OTHER))
    assert not attempts.take(leased(2))


def test_the_episodes_leased_last_are_remembered_and_no_more() -> None:
    attempts = fresh(episodes_max=2)
    for episode in ("r.0.0", "r.1.0", "r.0.0", "r.2.0"):
        attempts.take(leased(1, episode=episode))
    assert not attempts.take(leased(1, episode="r.0.0"))
    assert attempts.take(leased(1, episode="r.1.0")), "the oldest was forgotten"
