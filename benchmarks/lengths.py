"""Whether recovery biases lengths: turns that are interrupted and go on, against turns that are
not, beside turns that start again from their prompt.

`run()` interrupts turns of the scripted engine at a hazard per token. One arm goes on after the
tokens that were committed, on another engine; one starts anew with a fresh draw; 5,000 lengths are
kept in each (requirements R35, F10). The gateway and the log are not measured: that a takeover
keeps what was committed is tested elsewhere.

`python -m benchmarks.lengths KILLED UNDISTURBED [runs=DIRECTORY]` does the same with what two runs
have trained, the first of them under `sluice chaos`, and prints JSON: both samples, Kolmogorov's
distance and p of each comparison, and `holds`. One episode of a group is taken, since the scripted
engine gives a prompt one length; for the same reason each sealed episode of one turn is also held
against the length that its prompt gives when nothing interrupts it (`exact`). Exits 0 only when the
comparisons hold with 5,000 lengths on each side and no length differs.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import row
from inference.engine import GenerateRequest
from inference.scripted_engine import ScriptedEngine, turn_length
from inference.settings import EngineKind, ScriptedSettings
from inference.tokenizer import ByteTokenizer
from infra.chaos.lengths import N_MIN, P_MIN, Distance, compare, judge, restart_weights, weighted
from infra.chaos.session import read_run
from infra.clock import MachineClock
from infra.run.bus import BusAddress, Doors
from infra.run.conductor import catch_up, open_history
from infra.run.folder import RunStart, find, read_start
from infra.run.history import quantiles
from infra.settings import RunSettings, read_resolved
from infra.standing import delivered
from schemas.enums import TokenKind
from schemas.errors import SettingsError
from schemas.packing import unpack_ids
from schemas.records.token_commit import TokenCommit
from schemas.records.trajectory import Trajectory
from schemas.topics import TOKENS, TRAJECTORIES, Topic

HAZARD = 0.01
"""Interruptions a token. Unit: 1/token."""
_TOKENS_MAX = 2_048
_LAW = ScriptedSettings(
    tokens_per_s=0.0, tick_ms=1, length_median_tokens=32.0, length_sigma=1.0, byte_tokenizer=True
)
"""Log-normal, sigma 1: p99/p50 is 10.2 (R12)."""


def _engine(clock: MachineClock) -> ScriptedEngine:
    return ScriptedEngine(_LAW, tokenizer=ByteTokenizer(), context_max=2 * _TOKENS_MAX, clock=clock)


class _Arms:
    """Samples turns; each prompt is used once, and a turn is a function of its prompt."""

    def __init__(self, engines: Sequence[ScriptedEngine], chance: random.Random) -> None:
        self._engines, self._chance = engines, chance
        self._asked = 0
        self.interrupted = 0

    def prompt(self) -> list[int]:
        """Return a prompt that no turn had before."""
        self._asked += 1
        return list(self._asked.to_bytes(4, "big"))

    async def whole(self) -> int:
        """Return the length of a turn that nobody disturbs."""
        return len(await self._sample(self.prompt(), [], stop_at=None))

    async def resumed(self, hazard: float) -> int:
        """Return the length of a turn that goes on after each interruption."""
        prompt, ids = self.prompt(), list[int]()
        while True:
            stop_at = self._next_interruption(hazard)
            new = await self._sample(prompt, ids, stop_at=stop_at)
            ids += new
            if (ids and ids[-1] == ByteTokenizer.END_ID) or len(ids) >= _TOKENS_MAX:
                return len(ids)

    async def restarted(self, hazard: float) -> int:
        """Return the length of the first turn that no interruption falls into."""
        while True:
            length, stop_at = await self.whole(), self._next_interruption(hazard)
            if length <= stop_at:
                return length
            self.interrupted += 1

    def _next_interruption(self, hazard: float) -> int:
        """Return how many tokens come before the next interruption: a geometric draw."""
        count = 0
        while self._chance.random() >= hazard and count < _TOKENS_MAX:
            count += 1
        return count

    async def _sample(
        self, prompt: Sequence[int], done: Sequence[int], *, stop_at: int | None
    ) -> list[int]:
        """Return the tokens until the end of the turn, or the first `stop_at`: what an engine
        sampled beyond them was not committed.
        """
        if stop_at == 0:
            self.interrupted += 1
            return []
        self._asked += 1
        engine = self._engines[self._asked % len(self._engines)]
        request = GenerateRequest(
            request_id=str(self._asked),
            prompt_ids=[*prompt, *done],
            tokens_max=_TOKENS_MAX - len(done),
            resumed_tokens=len(done),
        )
        ids: list[int] = []
        async for delta in engine.generate(request):
            ids += delta.token_ids
            if stop_at is not None and len(ids) > stop_at:
                await engine.abort(request.request_id)
                self.interrupted += 1
                return ids[:stop_at]
        return ids


async def _measure(count: int, hazard: float) -> tuple[Distance, Distance, Distance, str]:
    clock = MachineClock()
    engines = [_engine(clock), _engine(clock)]
    for engine in engines:
        await engine.start()
    arms = _Arms(engines, random.Random(17))
    try:
        whole = [await arms.whole() for _ in range(count)]
        resumed = [await arms.resumed(hazard) for _ in range(count)]
        interrupted = arms.interrupted
        kept = [await arms.restarted(hazard) for _ in range(count)]
    finally:
        for engine in engines:
            await engine.stop()
    fit = weighted(kept, whole, restart_weights(whole, hazard))
    conditions = (
        f"{count} turns an arm, lengths log-normal with median {_LAW.length_median_tokens:g} and "
        f"sigma {_LAW.length_sigma:g}, {hazard:g} interruptions a token, {interrupted} in the arm "
        f"that goes on; mean length {sum(whole) / count:.1f} undisturbed, "
        f"{sum(resumed) / count:.1f} resumed, {sum(kept) / count:.1f} restarted; seed 17"
    )
    return compare(resumed, whole), compare(kept, whole), fit, conditions


def run(*, count: int = N_MIN, hazard: float = HAZARD) -> list[dict[str, Any]]:
    """Measure: p-values are to stay above 0.01, the restarts' distance is to be seen."""
    resumed, restarted, fit, conditions = asyncio.run(_measure(count, hazard))
    named = (
        ("lengths_resumed_p", resumed.p, P_MIN, f"D {resumed.d:.4f}"),
        ("lengths_restart_fit_p", fit.p, P_MIN, f"against F10, D {fit.d:.4f}"),
        ("lengths_restart_distance", restarted.d, 0.1, f"p {restarted.p:.2g}"),
    )
    return [
        row(name, value, unit="ratio", goal=goal, conditions=f"{said}; {conditions}")
        for name, value, goal, said in named
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Sealed episodes of one turn against the lengths that their prompts give."""

    episodes: int
    mean: float
    """Unit: tokens."""
    differing: tuple[str, ...]
    """Episodes with another length than an engine writes that nothing interrupts."""

    def shown(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "episodes": self.episodes,
            "mean": self.mean,
            "differ": len(self.differing),
            "differing": self.differing[:20],
        }


@dataclass(slots=True)
class _Sealed:
    """Prompts and lengths of a run's episodes of one turn, as they are read."""

    run_id: str
    prompts: defaultdict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """By episode and position: what stands there first."""
    lengths: dict[str, int] = field(default_factory=dict)

    def take(self, record: TokenCommit | Trajectory) -> None:
        """Take one record; those of other runs are passed over."""
        if record.run_id != self.run_id:
            return
        episode = str(record.episode_id)
        if isinstance(record, Trajectory):
            if record.turns == 1:
                self.lengths.setdefault(episode, record.action_tokens)
        elif record.kind is TokenKind.PROMPT:
            self.prompts[episode].setdefault(record.start, record.token_ids)

    def held(self, law: ScriptedSettings, *, tokens_max: int) -> Exact:
        """Hold each length against the one that its prompt gives."""
        differing = [
            episode
            for episode, length in self.lengths.items()
            if length != turn_length(law, self._prompt(episode), tokens_max=tokens_max)
        ]
        mean = sum(self.lengths.values()) / max(1, len(self.lengths))
        return Exact(episodes=len(self.lengths), mean=mean, differing=tuple(differing))

    def _prompt(self, episode: str) -> Sequence[int]:
        return unpack_ids(b"".join(part for _, part in sorted(self.prompts[episode].items())))


async def exact(doors: Doors, start: RunStart, settings: RunSettings) -> Exact:
    """Hold every sealed episode of one turn against the length that its prompt gives.

    Raises SettingsError for a run whose lengths are no function of the prompt alone.
    """
    inference, streams = settings.inference, settings.task_source.streams
    tokens_max = streams[0].turn_tokens_max if len(streams) == 1 else None
    if inference.engine is not EngineKind.SCRIPTED or tokens_max is None:
        raise SettingsError(
            f"run {start.run_id} has the engine {inference.engine.value} and {len(streams)} "
            "streams; lengths are told of the scripted engine and one stream with turn_tokens_max",
            hint="run examples/lengths.toml",
        )
    topics: tuple[Topic[Any], ...] = (TOKENS, TRAJECTORIES)
    sealed = _Sealed(start.run_id)
    reader = doors.consumers.reader({topic: start.starts[topic.name] for topic in topics})
    try:
        async for message in delivered(
            reader, topics, clock=doors.clock, waiting_for="prompts and lengths"
        ):
            sealed.take(message.record)
    finally:
        await reader.close()
    return sealed.held(inference.scripted, tokens_max=tokens_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run has trained."""

    run_id: str
    lengths: list[int]
    """Action tokens of one episode of each group that a surviving step trained."""
    interruptions: int
    action_tokens: int
    exact: Exact

    def shown(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "run_id": self.run_id,
            "length_tokens": asdict(quantiles(self.lengths)),
            "interruptions": self.interruptions,
            "sampled_tokens": self.action_tokens,
            "exact": self.exact.shown(),
        }


async def trained(name: str, directory: Path) -> Trained:
    """Read what a run has trained from its topics."""
    folder = find(name, directory)
    start = read_start(folder)
    settings = read_resolved(folder.settings)
    doors = Doors(
        BusAddress(bootstrap=start.bootstrap, registry=start.registry, prefix=start.prefix),
        client="lengths",
    )
    try:
        history, reader = open_history(doors, start)
        try:
            await catch_up(doors, history, reader)
        finally:
            await reader.close()
        findings = (await read_run(doors, start.run_id, start.starts)).findings
        as_prompted = await exact(doors, start, settings)
    finally:
        await doors.close()
    members = [member for step in history.ordered_steps() for member in step.event.trained]
    first = {str(member.group_id): member.action_tokens for member in reversed(members)}
    return Trained(
        run_id=start.run_id,
        lengths=list(first.values()),
        interruptions=findings.interruptions,
        action_tokens=findings.action_tokens,
        exact=as_prompted,
    )


def held(killed: Trained, undisturbed: Trained) -> dict[str, Any]:
    """Hold one run against another; JSON values."""
    hazard = killed.interruptions / killed.action_tokens
    verdict = judge(killed.lengths, undisturbed.lengths, hazard=hazard, seed=17)
    return {
        "killed": killed.shown(),
        "undisturbed": undisturbed.shown(),
        **asdict(verdict),
        "holds": verdict.holds and not killed.exact.differing,
    }


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return the exit code."""
    if not arguments:
        print(json.dumps(run()))
        return 0
    given = dict(one.split("=", 1) for one in arguments if "=" in one)
    names = [one for one in arguments if "=" not in one]
    if len(names) != 2 or given.keys() - {"runs"}:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(given.get("runs", "runs"))
    both = [asyncio.run(trained(name, directory)) for name in names]
    told = held(*both)
    print(json.dumps(told, indent=2))
    return 0 if told["holds"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
