"""Which inference worker an episode belongs to: consistent hashing with virtual nodes (design
section 9, R96).

A pure function of the episode id and the ready workers, so every environment answers alike; a
worker that goes takes only its own episodes with it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from schemas.enums import Role, WorkerStatus
from schemas.ids import EpisodeId
from schemas.records.worker_state import WorkerState

# Enough points that the fullest of 8 workers stays within 1.25 times the mean over 10,000 episodes.
_POINTS = 512


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=64)
def _ring(worker_ids: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    points = sorted(
        (_hash(f"{worker_id}#{point}"), worker_id)
        for worker_id in worker_ids
        for point in range(_POINTS)
    )
    return tuple(at for at, _ in points), tuple(worker_id for _, worker_id in points)


def replica_of(episode_id: EpisodeId, workers: Sequence[WorkerState]) -> WorkerState | None:
    """Return the ready inference worker of an episode, or None when there is none.

    The next point at or after the episode's on the ring, `argmin ((u_r - h(id)) mod 1)`. Source:
    requirements F9.
    """
    ready = {
        worker.worker_id: worker
        for worker in workers
        if worker.role is Role.INFERENCE and worker.status is WorkerStatus.READY
    }
    if not ready:
        return None
    points, owners = _ring(tuple(sorted(ready)))
    at = bisect_left(points, _hash(episode_id))
    return next(w for name, w in ready.items() if name == owners[at % len(owners)])
