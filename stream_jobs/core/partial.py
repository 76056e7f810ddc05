"""Partial rollout: when most episodes of an iteration are done, the rest is paused and goes on in
the next one (requirements R21, F12).

An iteration is a block of as many consecutive tasks as fill a batch; an episode that was paused
belongs to the iteration after the one it was paused in. Groups stay whole: what is paused is
awaited, for so many updates at most. Source: the Kimi K3 report, which publishes no share; ours is
a setting, and 1 turns it off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from schemas.enums import Purpose
from stream_jobs.core.admission import barrier
from stream_jobs.core.ledger import Group, Ledger, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRules:
    """The numbers of a partial rollout."""

    share: Decimal
    """Share of an iteration's episodes whose end releases it. Unit: ratio."""
    prompts: int
    """Tasks in an iteration. Unit: tasks."""
    completions: int
    """Rollouts of each. Unit: episodes."""

    @property
    def is_on(self) -> bool:
        """Whether anything is ever paused."""
        return self.share < 1

    @property
    def needed(self) -> int:
        """Episodes that release an iteration (F12)."""
        return barrier(self.share, prompts=self.prompts, completions=self.completions)

    def iteration_of(self, rollout: Rollout) -> int:
        """Return the iteration that an episode is part of now."""
        return rollout.group.ordinal // self.prompts + rollout.life.pauses


class Barrier:
    """Which iterations are released, at one look."""

    def __init__(self, ledger: Ledger, rules: PartialRules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._known: dict[int, bool] = {}

    def to_pause(self, rollouts: Iterable[Rollout]) -> list[Rollout]:
        """Return the running episodes whose iteration is released."""
        return [
            rollout
            for rollout in rollouts
            if rollout.is_leased
            and not rollout.life.is_pause_requested
            and rollout.group.purpose is Purpose.TRAIN
            and self._is_released(self._rules.iteration_of(rollout))
        ]

    def may_resume(self, rollout: Rollout) -> bool:
        """Whether a paused episode's next iteration has begun: the learner has taken a step."""
        learner = self._ledger.learner
        return not self._rules.is_on or learner.steps_since(rollout.paused_ms, most=1) > 0

    def _is_released(self, iteration: int) -> bool:
        if iteration not in self._known:
            self._known[iteration] = self._count(iteration) >= self._rules.needed
        return self._known[iteration]

    def _count(self, iteration: int) -> int:
        """Count the episodes of an iteration that are done; 0 while some were never leased."""
        rules, ledger = self._rules, self._ledger
        done = 0
        for ordinal in range(iteration * rules.prompts, (iteration + 1) * rules.prompts):
            group = ledger.groups.get(ordinal)
            if group is None:
                if ordinal not in ledger.closed:
                    return 0
                # Of a settled group only its ordinal is known; its size is the run's.
                done += rules.completions
            elif group.purpose is not Purpose.TRAIN:
                done += rules.completions
            elif not _is_begun(group):
                return 0
            else:
                done += sum(rollout.life.is_closed for rollout in group.members.values())
        return done


def _is_begun(group: Group) -> bool:
    begun = (r.life.attempt > 0 or r.life.is_closed for r in group.members.values())
    return not group.missing and all(begun)
