"""Decides which inference worker changes to which policy version, and when (design section 11).

Pure: records and ticks in, Prepare commands out. Only `Ticked` decides, so reading a whole log
first and deciding afterwards is the same as having watched it. Invariants: where two or more
workers run, a worker that serves is asked to change only while another one serves; a version is
prepared only as the newest that a counting Step or ordinal 0 names; a worker is asked for one
version at a time, and versions that were passed over are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from schemas.enums import RefreshEventKind
from schemas.ids import Version, WorkerId
from schemas.rules.lineage import LearnerLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshLimits:
    """Bounds of the rolling refresh."""

    at_once_max: int
    """Workers that change at the same time, at most. Unit: workers."""
    prepare_timeout_ms: int
    """How long a worker may take from Prepare to Serving. Unit: ms."""
    gone_after_ms: int
    """A worker not renewed for this long is gone. Unit: ms."""
    backoff_ms: int
    """Pause after the first failure; doubles with each. Unit: ms."""
    backoff_max_ms: int
    """Longest pause after a failure. Unit: ms."""
    tries_max: int
    """Failures of one worker with one version after which it is left alone. Unit: tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The version that every worker is to serve."""

    version: Version
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A Prepare without its answer yet."""

    version: Version
    deadline_ms: int | None = None
    """Monotonic time of giving up; None until the first tick after it was read. Unit: ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One inference worker as far as the log tells."""

    worker_id: WorkerId
    incarnation: str
    version: Version
    """What it serves."""
    seen_ms: int
    """When it was renewed last. Unit: ms."""
    started_us: int = 0
    """Start of its process, by its own clock. Unit: us."""
    is_ready: bool = True
    change: Change | None = None
    failures: int = 0
    """Failures in a row, over all versions. Unit: failures."""
    tried: Version | None = None
    tries: int = 0
    """Failures with the version `tried`. Unit: failures."""
    retry_ms: int | None = 0
    """Not asked again before this; None: to be set at the next tick. Unit: ms."""

    @property
    def is_serving(self) -> bool:
        """Whether it takes requests, as far as is known: a failed worker may be fenced."""
        return self.is_ready and self.change is None and not self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshState:
    """All workers and what they are to serve."""

    target: Target | None = None
    workers: Mapping[WorkerId, Worker] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker said how it is."""

    worker_id: WorkerId
    incarnation: str
    version: Version
    seen_ms: int
    """Monotonic time at which it said so. Unit: ms."""
    is_ready: bool
    is_over: bool = False
    """Whether it was its last word."""
    started_us: int = 0
    """Start of its process, by its own clock. Unit: us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChosen:
    """Another version is now the newest that may be served."""

    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A record of `refreshes`, the coordinator's own Prepare included."""

    worker_id: WorkerId
    incarnation: str
    kind: RefreshEventKind
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time to decide."""

    now_ms: int


Event: TypeAlias = WorkerSeen | TargetChosen | Reported | Ticked


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Ask a worker to change."""

    worker_id: WorkerId
    incarnation: str
    target: Target


class Trouble(StrEnum):
    """What went wrong with a worker."""

    TIMED_OUT = "timed_out"
    GAVE_UP = "gave_up"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Tell the operator."""

    worker_id: WorkerId
    trouble: Trouble
    version: Version


Command: TypeAlias = Prepare | Warn


def newest_servable(log: LearnerLog, digests: Mapping[Version, str]) -> Target | None:
    """Return the newest published version on the learner's lineage, or None before the first.

    digests: published versions; one that no counting Step names is passed over, so a fenced
    learner's last publication is never served.
    """
    for ref in reversed(log.steps):
        version = Version(ref.epoch, ref.number)
        if version in digests:
            return Target(version=version, digest=digests[version])
    start = Version(0, 0)
    return Target(version=start, digest=digests[start]) if start in digests else None


def step(
    state: RefreshState, event: Event, *, limits: RefreshLimits
) -> tuple[RefreshState, tuple[Command, ...]]:
    """Take one event; only a tick has commands."""
    match event:
        case WorkerSeen():
            return _put(
                state, event.worker_id, _seen(state.workers.get(event.worker_id), event)
            ), ()
        case TargetChosen(target=target):
            return replace(state, target=target), ()
        case Reported():
            return _reported(state, event), ()
        case Ticked(now_ms=now_ms):
            state, warnings = _expire(state, now_ms, limits)
            state, prepares = _start(state, now_ms, limits)
            return state, (*warnings, *prepares)


def behind(state: RefreshState) -> tuple[WorkerId, ...]:
    """Return the ready workers that do not serve the target."""
    if state.target is None:
        return ()
    wanted = state.target.version
    return tuple(w.worker_id for w in state.workers.values() if w.is_ready and w.version != wanted)


def _seen(known: Worker | None, event: WorkerSeen) -> Worker | None:
    if known is not None and known.incarnation != event.incarnation:
        # An older process's last word may arrive late, or it was replaced and goes on announcing
        # itself; it says nothing about the younger one, as long as that one is heard of.
        if (event.started_us, event.incarnation) < (known.started_us, known.incarnation):
            return known
        known = None
    if event.is_over:
        return None
    if known is None:
        return Worker(
            worker_id=event.worker_id,
            incarnation=event.incarnation,
            version=event.version,
            seen_ms=event.seen_ms,
            started_us=event.started_us,
            is_ready=event.is_ready,
        )
    seen = replace(
        known,
        seen_ms=max(known.seen_ms, event.seen_ms),
        version=event.version,
        is_ready=event.is_ready,
    )
    if seen.change is not None and seen.change.version == event.version:
        # Its Serving was lost, but what it serves says the same.
        return _done(seen, event.version)
    return seen


def _reported(state: RefreshState, event: Reported) -> RefreshState:
    worker = state.workers.get(event.worker_id)
    if worker is None or worker.incarnation != event.incarnation:
        return state
    match event.kind:
        case RefreshEventKind.PREPARE:
            if worker.change is None or worker.change.version != event.version:
                worker = replace(worker, change=Change(version=event.version))
        case RefreshEventKind.SERVING:
            worker = _done(worker, event.version)
        case RefreshEventKind.FAILED:
            if worker.change is not None and worker.change.version == event.version:
                worker = _failed(worker)
        case RefreshEventKind.LOADED | RefreshEventKind.UNKNOWN:
            pass
    return _put(state, event.worker_id, worker)


def _done(worker: Worker, version: Version) -> Worker:
    is_answer = worker.change is not None and worker.change.version == version
    return replace(
        worker,
        version=version,
        change=None if is_answer else worker.change,
        failures=0,
        tries=0,
        tried=None,
        retry_ms=0,
    )


def _failed(worker: Worker) -> Worker:
    assert worker.change is not None, "only a change fails"
    version = worker.change.version
    return replace(
        worker,
        change=None,
        failures=worker.failures + 1,
        tried=version,
        tries=worker.tries + 1 if worker.tried == version else 1,
        retry_ms=None,
    )


def _expire(
    state: RefreshState, now_ms: int, limits: RefreshLimits
) -> tuple[RefreshState, list[Command]]:
    """Forget workers that are gone, give up changes that take too long, set pauses."""
    warnings: list[Command] = []
    for worker in tuple(state.workers.values()):
        if now_ms - worker.seen_ms > limits.gone_after_ms:
            warnings.append(_warn(worker, Trouble.GONE, worker.version))
            state = _put(state, worker.worker_id, None)
            continue
        change = worker.change
        if change is not None and change.deadline_ms is None:
            deadline_ms = now_ms + limits.prepare_timeout_ms
            worker = replace(worker, change=replace(change, deadline_ms=deadline_ms))
        elif change is not None and change.deadline_ms is not None and now_ms >= change.deadline_ms:
            warnings.append(_warn(worker, Trouble.TIMED_OUT, change.version))
            worker = _failed(worker)
        if worker.retry_ms is None:
            pause_ms = limits.backoff_ms * 2 ** min(worker.failures - 1, 30)
            worker = replace(worker, retry_ms=now_ms + min(pause_ms, limits.backoff_max_ms))
            if worker.tries == limits.tries_max:
                assert worker.tried is not None, "tries count a version"
                warnings.append(_warn(worker, Trouble.GAVE_UP, worker.tried))
        state = _put(state, worker.worker_id, worker)
    return state, warnings


def _start(
    state: RefreshState, now_ms: int, limits: RefreshLimits
) -> tuple[RefreshState, list[Command]]:
    """Ask as many workers as may change now, those furthest behind first."""
    prepares: list[Command] = []
    target = state.target
    if target is None:
        return state, prepares
    for worker in sorted(state.workers.values(), key=lambda w: (w.version, w.worker_id)):
        if not _wants(worker, target.version, now_ms, limits):
            continue
        if not _may_leave(state, worker, target.version, limits):
            continue
        change = Change(version=target.version, deadline_ms=now_ms + limits.prepare_timeout_ms)
        state = _put(state, worker.worker_id, replace(worker, change=change))
        prepares.append(
            Prepare(worker_id=worker.worker_id, incarnation=worker.incarnation, target=target)
        )
    return state, prepares


def _wants(worker: Worker, wanted: Version, now_ms: int, limits: RefreshLimits) -> bool:
    return (
        worker.is_ready
        and worker.change is None
        and worker.version != wanted
        and not _is_left_alone(worker, wanted, limits)
        and worker.retry_ms is not None
        and now_ms >= worker.retry_ms
    )


def _may_leave(state: RefreshState, worker: Worker, wanted: Version, limits: RefreshLimits) -> bool:
    """Whether enough others serve while this worker changes."""
    live = [w for w in state.workers.values() if w.is_ready]
    if sum(w.change is not None for w in live) >= limits.at_once_max:
        return False
    others = [w for w in live if w.worker_id != worker.worker_id]
    if not worker.is_serving or any(w.is_serving for w in others):
        return True
    # It alone serves. It waits for the others, but not for one that will not be asked again.
    return all(_is_left_alone(w, wanted, limits) for w in others)


def _is_left_alone(worker: Worker, wanted: Version, limits: RefreshLimits) -> bool:
    return worker.tried == wanted and worker.tries >= limits.tries_max


def _warn(worker: Worker, trouble: Trouble, version: Version) -> Warn:
    return Warn(worker_id=worker.worker_id, trouble=trouble, version=version)


def _put(state: RefreshState, worker_id: WorkerId, worker: Worker | None) -> RefreshState:
    workers = dict(state.workers)
    if worker is None:
        workers.pop(worker_id, None)
    else:
        workers[worker_id] = worker
    return replace(state, workers=workers)
