"""Which environment workers there are, and how many more episodes each takes.

A worker that was not renewed for `gone_ms` is gone. Another incarnation under the same id is
another process: what the first one ran is lost to it. An older process that goes on announcing
itself under the name says nothing, as long as the younger one is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.enums import Role, WorkerStatus
from schemas.ids import WorkerId
from schemas.records.worker_state import WorkerState
from schemas.rules.workers import is_successor


@dataclass(slots=True, kw_only=True)
class _Seen:
    state: WorkerState
    at_ms: int


class Roster:
    """The workers of one role after the records taken so far."""

    __slots__ = ("_gone_ms", "_role", "_seen")

    def __init__(self, role: Role, *, gone_ms: int) -> None:
        """Watch a role; `gone_ms` without renewal makes a worker count as gone. Unit: ms."""
        self._role = role
        self._gone_ms = gone_ms
        self._seen: dict[WorkerId, _Seen] = {}

    def take(self, state: WorkerState, *, seen_ms: int) -> None:
        """Take a worker's state; `seen_ms` is the monotonic time at which it was true. Unit: ms."""
        if state.role is not self._role:
            return
        known = self._seen.get(state.worker_id)
        is_older = known is not None and is_successor(known.state, state)
        if is_older and not self.is_gone(state.worker_id, now_ms=seen_ms):
            return
        self._seen[state.worker_id] = _Seen(state=state, at_ms=seen_ms)

    def alive(self, *, now_ms: int) -> Mapping[WorkerId, WorkerState]:
        """Return the workers that take work now."""
        return {
            worker: seen.state
            for worker, seen in self._seen.items()
            if seen.state.status is WorkerStatus.READY and now_ms - seen.at_ms < self._gone_ms
        }

    def incarnation(self, worker: WorkerId) -> str:
        """Return the incarnation of a worker that counts; empty when it was never seen."""
        seen = self._seen.get(worker)
        return seen.state.incarnation if seen else ""

    def is_gone(self, worker: WorkerId, *, now_ms: int) -> bool:
        """Whether a worker that was seen has stopped, failed, or was not renewed in time."""
        seen = self._seen.get(worker)
        if seen is None:
            return False
        ended = seen.state.status in (WorkerStatus.STOPPED, WorkerStatus.FAILED)
        return ended or now_ms - seen.at_ms >= self._gone_ms


class Seats:
    """Free places by worker while one round of leases is given out: the emptiest worker first, ties
    by id.
    """

    __slots__ = ("_free", "_incarnations")

    def __init__(
        self, alive: Mapping[WorkerId, WorkerState], taken: Mapping[WorkerId, int]
    ) -> None:
        """Count the free places. Unit: episodes."""
        self._free = {
            worker: state.capacity - taken.get(worker, 0) for worker, state in alive.items()
        }
        self._incarnations = {worker: state.incarnation for worker, state in alive.items()}

    @property
    def free(self) -> int:
        """Places left in all. Unit: episodes."""
        return sum(max(0, free) for free in self._free.values())

    def take(self) -> tuple[WorkerId, str] | None:
        """Take a place and return its worker and incarnation, or None when there is none."""
        worker = min(self._free, key=lambda worker: (-self._free[worker], worker), default=None)
        if worker is None or self._free[worker] <= 0:
            return None
        self._free[worker] -= 1
        return worker, self._incarnations[worker]
