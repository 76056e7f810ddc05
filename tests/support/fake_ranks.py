"""Ranks without DeepSpeed: a few numbers as weights, moved by what was trained, in order.

`tests/support/engine_suite.py` is the suite that this and the real engine both pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from learner.core.loss_registry import bind
from learner.engine import RankResult, TokenResult
from learner.rank import execute
from learner.settings import LearnerSettings
from learner.work import Work

T = TypeVar("T")
WIDTH = 8
_RATE = 1e-3


class FakeEngine:
    """One rank whose weights are eight numbers."""

    rank = 0

    def __init__(self, after_load: Callable[[NDArray[np.float64]], None] | None = None) -> None:
        self._after_load = after_load
        self.weights = np.linspace(-1.0, 1.0, WIDTH)
        self.moments = np.zeros(WIDTH)

    def train(
        self, micro_batches: Sequence[partial[Any]], *, ordinal: int, action_tokens: float
    ) -> RankResult:
        """Move the weights by a sum that depends on every token and on the weights."""
        gradient = np.zeros(WIDTH)
        result = RankResult(learning_rate=_RATE)
        for load in micro_batches:
            members = [member for row in load() for member in row]
            for member in members:
                at = np.flatnonzero(member.mask)
                np.add.at(gradient, member.ids[at] % WIDTH, member.advantage / action_tokens)
                result.loss_sum -= member.advantage * float(member.logprobs[at].sum())
                result.tokens.append(_tokens(member.index, at, member.logprobs[at]))
        self.moments = 0.9 * self.moments + gradient + 1e-6 * self.weights * ordinal
        self.weights = self.weights + _RATE * self.moments
        result.gradient_norm = float(np.linalg.norm(gradient))
        return result

    def logits(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return eight logits that depend on every weight and on every id."""
        rows = [np.roll(self.weights, sum(prompt) % WIDTH) * len(prompt) for prompt in prompts]
        return np.array(rows, dtype=np.float32)

    def export(self, folder: Path) -> None:
        """Write the weights."""
        (folder / "model.safetensors").write_bytes(self.weights.tobytes())

    def save(self, folder: Path) -> None:
        """Write weights and moments."""
        folder.mkdir(parents=True)
        np.save(folder / "state.npy", np.stack([self.weights, self.moments]))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self.weights, self.moments = np.load(folder / "state.npy")
        if self._after_load is not None:
            self._after_load(self.weights)

    def reset_optimiser(self) -> None:
        """Forget the moments."""
        self.moments = np.zeros(WIDTH)


def _tokens(index: int, at: NDArray[np.int64], logprobs: NDArray[np.float32]) -> TokenResult:
    none, all_of_them = np.zeros(at.size, dtype=np.bool_), np.ones(at.size, dtype=np.bool_)
    return TokenResult(
        member_N=np.full(at.size, index, dtype=np.int64),
        at_N=at,
        logp_N=logprobs,
        behaviour_N=logprobs,
        entropy_N=np.ones(at.size, dtype=np.float32),
        ratio_N=np.ones(at.size, dtype=np.float32),
        kept_N=all_of_them,
        low_N=none,
        high_N=none,
        coefficient_N=np.ones(at.size, dtype=np.float32),
    )


class FakeRanks:
    """One rank in this process; see `learner.ranks.Ranks`."""

    def __init__(
        self,
        settings: LearnerSettings,
        *,
        after_load: Callable[[NDArray[np.float64]], None] | None = None,
    ) -> None:
        """after_load: may spoil the weights that a checkpoint gave back."""
        self.loss = bind(settings.loss.name, settings.loss.parameters)
        self._after_load = after_load
        self._engine: FakeEngine | None = None

    async def load(self) -> None:
        """Import nothing."""

    async def start(self) -> None:
        """Build the engine."""
        self._engine = FakeEngine(self._after_load)

    @property
    def engine(self) -> FakeEngine:
        """The engine; `start` first."""
        assert self._engine is not None, "start() first"
        return self._engine

    async def call(self, function: Callable[[Any], T]) -> T:
        """Run a function on the engine."""
        return function(self.engine)

    async def do(self, work: Work) -> list[RankResult]:
        """Do a piece of work."""
        return [execute(self.engine, work)]  # type: ignore[arg-type]  # has what execute uses

    async def close(self) -> None:
        """Hold nothing."""
