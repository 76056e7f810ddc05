"""The inference workers as `workers` shows them, and which of them an episode asks.

The choice is `schemas.affinity.replica_of` over those that are ready and heard of; one that just
failed is passed over for a while as long as another serves.
"""

from __future__ import annotations

from schemas.affinity import replica_of
from schemas.enums import Role, WorkerStatus
from schemas.ids import EpisodeId, RunId, WorkerId
from schemas.ports import Clock, Delivered
from schemas.records.worker_state import WorkerState
from schemas.rules.workers import is_successor


class Replicas:
    """Latest state of each inference worker, with when it was last heard of."""

    def __init__(self, run_id: RunId, clock: Clock, *, gone_ms: int, turn_away_ms: int) -> None:
        self._run_id = run_id
        self._clock = clock
        self._gone_ms = gone_ms
        self._turn_away_ms = turn_away_ms
        self._states: dict[WorkerId, WorkerState] = {}
        self._heard_ms: dict[WorkerId, int] = {}
        self._avoided_ms: dict[tuple[WorkerId, str], int] = {}

    def take(self, message: Delivered[WorkerState]) -> None:
        """Take a record of `workers`; its age counts from the broker's stamp."""
        state = message.record
        if state.run_id != self._run_id or state.role is not Role.INFERENCE:
            return
        known = self._states.get(state.worker_id)
        if known is not None and is_successor(known, state) and not self.is_gone(known):
            # An older process under its name goes on announcing itself.
            return
        age_ms = max(0, self._clock.now_us() // 1000 - message.timestamp_ms)
        self._states[state.worker_id] = state
        self._heard_ms[state.worker_id] = self._clock.monotonic_ms() - age_ms

    def turn_away(self, worker: WorkerState) -> None:
        """Pass this incarnation of a worker over for a while."""
        now_ms = self._clock.monotonic_ms()
        self._avoided_ms = {key: at for key, at in self._avoided_ms.items() if at > now_ms}
        self._avoided_ms[worker.worker_id, worker.incarnation] = now_ms + self._turn_away_ms

    def is_gone(self, worker: WorkerState) -> bool:
        """Whether this incarnation serves no longer: silent, replaced, stopped or failed."""
        state = self._states.get(worker.worker_id)
        return (
            state is None
            or state.incarnation != worker.incarnation
            or state.status in (WorkerStatus.STOPPED, WorkerStatus.FAILED)
            or not self._is_fresh(state)
        )

    def _is_fresh(self, state: WorkerState) -> bool:
        return self._clock.monotonic_ms() - self._heard_ms[state.worker_id] < self._gone_ms

    @property
    def is_any_ready(self) -> bool:
        """Whether an inference worker is ready and heard of."""
        return any(
            state.status is WorkerStatus.READY and self._is_fresh(state)
            for state in self._states.values()
        )

    def pick(self, episode_id: EpisodeId) -> WorkerState | None:
        """Return the worker for an episode, or None while none is ready."""
        now_ms = self._clock.monotonic_ms()
        fresh = [state for state in self._states.values() if self._is_fresh(state)]
        welcome = [
            state
            for state in fresh
            if self._avoided_ms.get((state.worker_id, state.incarnation), 0) <= now_ms
        ]
        return replica_of(episode_id, welcome) or replica_of(episode_id, fresh)
