"""What the scheduler does next, given the ledger and the time: abandon, lease, issue, pause, drain,
end (design section 9).

The commands of one round are written, acknowledged and read back before the next round, so that the
ledger alone is the state. Order within a round: what must be given up, then paused rollouts, then
those that wait, then new groups.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from schemas.enums import AbandonReason, Purpose, StopCause
from schemas.ids import WorkerId
from schemas.records.task import Task
from schemas.rules.episodes import UNKNOWN_TOOL
from stream_jobs.core.admission import capacity
from stream_jobs.core.ledger import LEASE_EXPIRED, WORKER_LOST, Ledger, Rollout
from stream_jobs.core.partial import Barrier, PartialRules
from stream_jobs.core.roster import Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueRules:
    """The numbers of `SchedulerSettings` that decide."""

    batch: int
    eta: int
    max_concurrent: int
    steps: int
    drain_ms: int
    group_deadline_ms: int
    retries_max: dict[str, int]
    """By failure class; a class that is not named here has none. Unit: times."""
    retry_delay_ms: int
    pause_iterations_max: int
    partial: PartialRules


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueGroup:
    """Write Issued for these members of a group."""

    task: Task
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveLease:
    """Write Leased (after Resumed when it was paused)."""

    rollout: Rollout
    task: Task
    worker_id: WorkerId
    incarnation: str
    """The process that runs under that id now: no other may take the lease."""
    attempt: int
    is_resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPause:
    """Write PauseRequested."""

    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Write Abandoned."""

    rollout: Rollout
    reason: AbandonReason
    detail: str


@dataclass(frozen=True, slots=True)
class BeginDraining:
    """Write Draining to `control`."""


@dataclass(frozen=True, slots=True)
class EndStream:
    """Write EndOfStream to `control`."""


Command: TypeAlias = IssueGroup | GiveLease | RequestPause | GiveUp | BeginDraining | EndStream


class Standing(StrEnum):
    """What the scheduler is doing, or what it waits for."""

    WORKING = "working"
    PAUSED = "paused"
    NO_WORKERS = "no_workers"
    NO_TASKS = "no_tasks"
    LAG_BOUND = "lag_bound"
    RESTORING = "restoring"
    RETRY_DELAY = "retry_delay"
    DRAINING = "draining"
    ENDED = "ended"

    @property
    def is_stalled(self) -> bool:
        """Whether nothing may be admitted and nothing runs, so that somebody else must act."""
        return self in (
            Standing.NO_WORKERS,
            Standing.NO_TASKS,
            Standing.LAG_BOUND,
            Standing.RESTORING,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The outcome of one look."""

    commands: tuple[Command, ...]
    standing: Standing
    reason: str
    """Human sentence."""
    leased: int
    waiting: int
    paused: int
    capacity: int
    """What F6 still allows after the commands. Unit: episodes."""


def decide(ledger: Ledger, rules: IssueRules, *, now_ms: int, wall_ms: int) -> Round:
    """Return the next commands. now_ms: monotonic; wall_ms: wall clock, compared with broker
    times.
    """
    look = _Look(ledger, rules, now_ms=now_ms, wall_ms=wall_ms)
    look.give_up()
    look.complete()
    if ledger.control.is_draining:
        look.end()
    elif any(ref.ordinal >= rules.steps for ref in ledger.learner.checkpoints):
        look.commands.append(BeginDraining())
    elif ledger.control.is_paused:
        look.pause()
    else:
        look.lease()
        look.issue()
        look.partial()
    return look.finish()


class _Look:
    def __init__(self, ledger: Ledger, rules: IssueRules, *, now_ms: int, wall_ms: int) -> None:
        self.ledger = ledger
        self.rules = rules
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.commands: list[Command] = []
        self.open = [r for r in ledger.rollouts() if not r.life.is_closed]
        self.leased = sum(r.is_leased for r in self.open)
        alive = ledger.roster.alive(now_ms=now_ms)
        self.alive = len(alive)
        taken = Counter(r.life.lease.worker_id for r in self.open if r.is_leased and r.life.lease)
        self.seats = Seats(alive, taken)
        self.barrier = Barrier(ledger, rules.partial)
        self.left = 0
        self.is_ended = False

    def give_up(self) -> None:
        kept: list[Rollout] = []
        for rollout in self.open:
            why = self._why_given_up(rollout)
            if why is None:
                kept.append(rollout)
            else:
                self.commands.append(GiveUp(rollout=rollout, reason=why[0], detail=why[1]))
        self.open = kept

    def _why_given_up(self, rollout: Rollout) -> tuple[AbandonReason, str] | None:
        if self.wall_ms - rollout.group.issued_ms >= self.rules.group_deadline_ms:
            return AbandonReason.GROUP_DEADLINE, "the group's deadline passed before a final Ended"
        if rollout.life.is_paused:
            most = self.rules.pause_iterations_max
            if self.ledger.learner.steps_since(rollout.paused_ms, most=most + 1) > most:
                return AbandonReason.PAUSE_EXPIRED, f"paused for more than {most} updates"
        if not rollout.is_waiting:
            return None
        for name, times in sorted(rollout.failures.items()):
            if times > self.rules.retries_max.get(name, 0):
                count = f"{name} {times} times in {rollout.life.attempt} attempts"
                return _reason_of(name), "; ".join((count, *rollout.evidence))
        return None

    def end(self) -> None:
        control = self.ledger.control
        assert control.draining_since_ms is not None
        is_over = self.wall_ms - control.draining_since_ms >= self.rules.drain_ms
        if is_over or not any(r.is_leased for r in self.open):
            self.commands += [
                GiveUp(
                    rollout=r, reason=AbandonReason.RUN_ENDED, detail="the run's budget is reached"
                )
                for r in self.open
            ]
            self.open = []
        if not self.ledger.groups and control.end_of_stream is None:
            self.commands.append(EndStream())
        self.is_ended = control.end_of_stream is not None

    def pause(self) -> None:
        self.commands += [
            RequestPause(rollout=r)
            for r in self.open
            if r.is_leased and not r.life.is_pause_requested
        ]

    def lease(self) -> None:
        # Paused ones have the oldest tokens, and each may expire; they come before all others.
        wanting = [r for r in self.open if r.life.is_paused and self.barrier.may_resume(r)]
        wanting += [r for r in self.open if r.is_waiting and self._ready_ms(r) <= self.now_ms]
        self._lease_each(wanting)

    def partial(self) -> None:
        """Pause what a released iteration leaves running; alone, it goes on."""
        if not self.rules.partial.is_on:
            return
        paused = [r for r in self.open if r.life.is_paused]
        if not (self.leased or self.commands):
            self._lease_each(paused)
        self.commands += [RequestPause(rollout=r) for r in self.barrier.to_pause(self.open)]

    def _lease_each(self, wanting: list[Rollout]) -> None:
        for rollout in wanting:
            task = self.ledger.tasks.get(rollout.group.ordinal)
            if task is None or self.leased >= self.rules.max_concurrent:
                continue
            seat = self.seats.take()
            if seat is None:
                return
            worker, incarnation = seat
            self.leased += 1
            self.commands.append(
                GiveLease(
                    rollout=rollout,
                    task=task,
                    worker_id=worker,
                    incarnation=incarnation,
                    attempt=rollout.life.attempt + 1,
                    is_resumed=rollout.life.is_paused,
                )
            )

    def _ready_ms(self, rollout: Rollout) -> int:
        retries = sum(
            times
            for name, times in rollout.failures.items()
            if name in (StopCause.ENVIRONMENT_ERROR, StopCause.INFRASTRUCTURE_ERROR)
        )
        if not retries:
            return 0
        doubled: int = self.rules.retry_delay_ms << min(retries - 1, 6)
        return rollout.ready_at_ms + doubled

    def complete(self) -> None:
        # A scheduler that died while it wrote a group left some members out, or their outcome was
        # unknown; the group counts whole already. Also while the run drains: a group that stays in
        # pieces is never settled, and the stream would not end.
        for group in self.ledger.groups.values():
            task = self.ledger.tasks.get(group.ordinal)
            if group.missing and task is not None:
                self.commands.append(IssueGroup(task=task, members=group.missing))

    def issue(self) -> None:
        leased_now = sum(isinstance(command, GiveLease) for command in self.commands)
        waiting = sum(r.is_waiting or r.life.is_paused for r in self.open) - leased_now
        running = self.leased + waiting
        held = self.ledger.held
        free = min(self.rules.max_concurrent - running, self.seats.free - waiting)
        for ordinal in self.ledger.offered():
            task = self.ledger.tasks[ordinal]
            is_train = task.purpose is Purpose.TRAIN
            self.left = self._capacity(running, held)
            allowed = self.left if is_train else self.rules.max_concurrent - running
            if free <= 0:
                break
            if allowed < task.group_size:
                continue
            self.commands.append(IssueGroup(task=task, members=tuple(range(task.group_size))))
            running += task.group_size
            free -= task.group_size
            held += task.group_size if is_train else 0
        self.left = self._capacity(running, held)

    def _capacity(self, running: int, held: int) -> int:
        if not self.ledger.learner.is_restored:
            # Which steps stay is not decided, so v is not known; and until a restored learner's
            # canary has passed, it may never train on what would be issued now (design section 10).
            return 0
        return capacity(
            max_concurrent=self.rules.max_concurrent,
            running=running,
            eta=self.rules.eta,
            version=self.ledger.version,
            batch=self.rules.batch,
            held=held,
        )

    def finish(self) -> Round:
        standing, reason = self._standing()
        return Round(
            commands=tuple(self.commands),
            standing=standing,
            reason=reason,
            leased=sum(r.is_leased for r in self.open),
            waiting=sum(r.is_waiting for r in self.open),
            paused=sum(r.life.is_paused for r in self.open),
            capacity=self.left,
        )

    def _standing(self) -> tuple[Standing, str]:
        ledger = self.ledger
        if self.is_ended:
            return Standing.ENDED, "waits for the learner's Closed"
        if ledger.control.is_draining:
            left = len(ledger.groups)
            return Standing.DRAINING, f"{left} groups are not settled"
        if self.commands or self.leased:
            return Standing.WORKING, f"{self.leased} episodes run"
        if ledger.control.is_paused:
            return Standing.PAUSED, "a Pause stands in control"
        if not self.alive:
            return Standing.NO_WORKERS, "no environment worker is ready"
        if any(r.is_waiting or r.life.is_paused for r in self.open):
            return Standing.RETRY_DELAY, "rollouts wait for their next try"
        if not any(True for _ in ledger.offered()):
            return Standing.NO_TASKS, "no task is offered"
        if not ledger.learner.is_restored:
            return Standing.RESTORING, (
                f"learner epoch {ledger.learner.epoch} has started and not said from which version "
                "it goes on"
            )
        return Standing.LAG_BOUND, (
            f"{ledger.held} episodes are accepted or open at ordinal {ledger.version}: the bound "
            f"of {(self.rules.eta + ledger.version + 1) * self.rules.batch} waits for a step"
        )


def _reason_of(failure: str) -> AbandonReason:
    """Return why an episode is given up whose budget for a failure class is spent."""
    if failure in (LEASE_EXPIRED, WORKER_LOST):
        return AbandonReason.POISONED_TASK
    if failure == UNKNOWN_TOOL:
        return AbandonReason.UNKNOWN_TOOL
    return AbandonReason.RETRIES_EXHAUSTED
