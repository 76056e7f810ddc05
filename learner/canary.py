"""The canary: a restored learner is tried on fixed tasks before it trains on (requirements R76).

Waits for: the trials being made, at most `canary_s`. What it returns stands in `Restored.canary`; a
difference refuses the start, so that no step, no version and no rollout rests on such weights.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import numpy as np

from learner.core.canary import Card, Surroundings, Trial, differences, largest
from learner.ranks import Ranks
from learner.settings import LearnerSettings
from schemas.errors import Boundary, SettingsError

Observe: TypeAlias = Callable[[], Surroundings]
"""Makes the facts and trials of this process; slow, and free to run a rubric."""
_TOLD_MAX = 6
_LOGIT_IDS = 32
"""The end of a prompt shows every weight as well as the whole does, at a bounded cost."""
_TRIALS, _LOGITS = "canary.json", "canary.npy"


class Canary:
    """The trials of one learner, and its word on them."""

    def __init__(self, settings: LearnerSettings, ranks: Ranks, observe: Observe | None) -> None:
        """observe: None when nobody tells of the surroundings; then nothing is tried."""
        self._settings, self._ranks, self._observe = settings, ranks, observe
        self._surroundings: Surroundings | None = None
        self._making: Future[Surroundings] | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """What must be the same when a checkpoint is restored; `prepare` comes before."""
        return self._surroundings.facts if self._surroundings is not None else {}

    def begin(self) -> None:
        """Start making the trials beside everything else."""
        if self._observe is None or self._making is not None:
            return
        self._making = Future()
        # A daemon: a rubric that hangs must not keep a learner alive that was refused for it.
        threading.Thread(target=self._make, name="canary", daemon=True).start()

    def _make(self) -> None:
        assert self._observe is not None, "only begun with something to observe"
        assert self._making is not None, "begin() made it"
        try:
            self._making.set_result(self._observe())
        except BaseException as error:  # noqa: BLE001  the thread's end is told to who waits for it
            self._making.set_exception(error)

    async def prepare(self) -> None:
        """Wait for the trials; raise SettingsError when they take longer than `canary_s`."""
        self.begin()
        if self._making is None or self._surroundings is not None:
            return
        try:
            async with asyncio.timeout(self._settings.canary_s):
                # Shielded: the thread goes on and may still answer.
                self._surroundings = await asyncio.shield(asyncio.wrap_future(self._making))
        except TimeoutError as error:
            raise SettingsError(
                f"the canary's tasks were not made within {self._settings.canary_s:g} s",
                boundary=Boundary.VERIFIER,
                hint="does a rubric or an environment hang? `learner.canary_s` bounds the wait, "
                "`learner.canary = false` does without",
            ) from error

    async def card(self) -> Card | None:
        """Return what the trials come to with the weights in memory; None when none are made."""
        told = self._surroundings
        if told is None or not told.trials or not self._settings.canary:
            return None
        prompts = [trial.prompt[-_LOGIT_IDS:] for trial in told.trials]
        logits_KV = await self._ranks.call(lambda engine: engine.logits(prompts))
        return Card(trials=told.trials, logits_KV=logits_KV)

    async def verify(self, saved: Card | None) -> str:
        """Return what Restored says; raise SettingsError when the weights or what surrounds them
        are not those of the saved card.
        """
        if not self._settings.canary:
            return "not run: learner.canary is off"
        found = await self.card()
        if found is None:
            return "not run: nobody told of tasks to try"
        if saved is None:
            raise SettingsError(
                "the checkpoint holds no canary, so nothing shows that it restores what was saved",
                boundary=Boundary.STORE,
                hint="`learner.canary = false` restores it untried",
            )
        wrong = differences(saved, found, tolerance=self._settings.canary_tolerance)
        if wrong:
            more = f"; and {len(wrong) - _TOLD_MAX} more" if len(wrong) > _TOLD_MAX else ""
            raise SettingsError(
                f"the canary failed: {'; '.join(wrong[:_TOLD_MAX])}{more}",
                boundary=Boundary.STORE,
                hint="bring back what is named, or name an older checkpoint in "
                "learner.restore_from; nothing was trained or published",
            )
        return (
            f"passed: {len(found.trials)} tasks, logits within {largest(saved, found):.3g} of "
            f"{self._settings.canary_tolerance:g}, rewards and tool protocol equal"
        )


def write_card(folder: Path, card: Card | None) -> None:
    """Put a card into a checkpoint's folder; nothing when there is none. Raises OSError."""
    if card is None:
        return
    (folder / _TRIALS).write_text(json.dumps([asdict(t) for t in card.trials], sort_keys=True))
    np.save(folder / _LOGITS, card.logits_KV, allow_pickle=False)


def read_card(folder: Path) -> Card | None:
    """Return the card of a checkpoint's folder, whose checksums were verified; None without one."""
    if not (folder / _TRIALS).is_file():
        return None
    trials = tuple(
        Trial(
            name=raw["name"],
            digests=raw["digests"],
            prompt=tuple(raw["prompt"]),
            protocol=raw["protocol"],
            rewards=tuple(raw["rewards"]),
        )
        for raw in json.loads((folder / _TRIALS).read_text())
    )
    return Card(trials=trials, logits_KV=np.load(folder / _LOGITS, allow_pickle=False))
