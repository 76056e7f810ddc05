"""Which leases this process runs: those addressed to it, each once.

A lease names a worker and the process under its name that it is for. Two processes live under one
name when one was taken for dead and replaced; only the one that is named may act. A lease may stand
twice in the log (a copied topic, a producer that tried again); an attempt that was seen before is
not begun again, also when its first run is long over (design sections 7 and 9).
"""

from __future__ import annotations

from collections import OrderedDict

from schemas.ids import EpisodeId, WorkerId
from schemas.records.episode_event import EpisodeEvent
from schemas.rules.episodes import is_for


class Attempts:
    """The highest attempt of each episode that was leased, to whomever, as far as was read."""

    __slots__ = ("_episodes_max", "_highest", "_incarnation", "_worker_id")

    def __init__(self, worker_id: WorkerId, incarnation: str, *, episodes_max: int) -> None:
        """Start before the first record; the episodes leased last are remembered."""
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._episodes_max = episodes_max
        self._highest: OrderedDict[EpisodeId, int] = OrderedDict()

    def take(self, leased: EpisodeEvent) -> bool:
        """Take the next Leased whose scheduler counts, in log order; return whether this process is
        to run it.
        """
        highest = self._highest.pop(leased.episode_id, 0)
        self._highest[leased.episode_id] = max(highest, leased.attempt)
        if len(self._highest) > self._episodes_max:
            self._highest.popitem(last=False)
        return leased.attempt > highest and self._is_ours(leased)

    def _is_ours(self, leased: EpisodeEvent) -> bool:
        return leased.worker_id == self._worker_id and is_for(leased.incarnation, self._incarnation)
