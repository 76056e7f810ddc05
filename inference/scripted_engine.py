"""A scripted engine: seeded tokens that mean nothing, with set speed, lengths and faults.

It is for tests and load and says so in its name; nothing it writes is a policy's. A turn is a
function of the seed and of all ids before it, so that a resumed turn goes on identically; a
log-prob encodes the version it was sampled under.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

from inference.engine import EngineDelta, EngineSpan, GenerateRequest, SwapReport
from inference.settings import Fault, ScriptedSettings
from inference.tokenizer import Tokenizer
from schemas.enums import FinishReason
from schemas.errors import Boundary, TransientError
from schemas.ids import Version
from schemas.packing import pack_ids
from schemas.ports import Clock

_STEP_MAX = 64
_EPOCHS = 4096
_UNIT = 1024.0
_MASK = 0xFFFFFFFFFFFFFFFF


def logprob_of(version: Version) -> float:
    """Return the log-prob that encodes a version exactly in float32. Unit: nats."""
    return -(version.epoch * _EPOCHS + version.number + 1) / _UNIT


def version_of(logprob: float) -> Version:
    """Return the version that a log-prob of the scripted engine encodes."""
    epoch, number = divmod(round(-logprob * _UNIT) - 1, _EPOCHS)
    return Version(epoch, number)


def _mix(value: int) -> int:
    """Return 64 well mixed bits. Source: splitmix64 (Steele, Lea, Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _drawn_length(settings: ScriptedSettings, drawn: int) -> int:
    """Return the length of a turn before its stop token, by the law of the settings."""
    uniform = ((drawn >> 11) + 0.5) / (1 << 53)
    law = math.exp(settings.length_sigma * NormalDist().inv_cdf(uniform))
    return max(1, round(settings.length_median_tokens * law))


def _drawn(settings: ScriptedSettings, prompt_ids: Sequence[int]) -> int:
    """Return the bits that make up the whole turn after a history."""
    return _mix(zlib.crc32(pack_ids(prompt_ids)) ^ _mix(settings.seed))


def turn_length(settings: ScriptedSettings, prompt_ids: Sequence[int], *, tokens_max: int) -> int:
    """Return how many tokens a turn has that nothing interrupts, its stop token included, where
    the settings name no replies. Unit: tokens.
    """
    length = _drawn_length(settings, _drawn(settings, prompt_ids))
    return tokens_max if length >= tokens_max else length + 1


@dataclass(slots=True, eq=False)
class _Turn:
    """One request being written."""

    request: GenerateRequest
    text: list[int]
    """All ids of the turn, those sampled before included; a stop id is the last one."""
    started_s: float
    fault: Fault
    given: int = 0
    """Ids handed out by this request."""
    spans: list[EngineSpan] = field(default_factory=list)
    queue: asyncio.Queue[EngineDelta | None] = field(
        default_factory=lambda: asyncio.Queue(maxsize=100_000)
    )


class ScriptedEngine:
    """Implements `inference.engine.Engine` without a model."""

    def __init__(
        self,
        settings: ScriptedSettings,
        *,
        tokenizer: Tokenizer,
        context_max: int,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._context_max = context_max
        self._alphabet = [i for c in settings.alphabet for i in tokenizer.encode(c)]
        self._replies = [tokenizer.encode(text) for text in settings.replies]
        self._stop_id = tokenizer.stop_ids[0]
        self._version = Version(0, 0)
        self._turns: dict[str, _Turn] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._paused = False
        self._alive = False
        self._wake = asyncio.Event()
        self.requests = 0
        """Requests taken since it was made."""
        self.ceiling: int | None = None
        """Tokens that a request is given before it stands still; for tests."""
        self.on_request: Callable[[GenerateRequest], None] | None = None
        """Called with each request taken; for tests."""
        self.decoded: Counter[int] = Counter()
        """How often the id after a history (its hash) was decoded; for tests of resumption."""

    @property
    def version(self) -> Version:
        """The version of the next token."""
        return self._version

    @property
    def context_max(self) -> int:
        """Tokens that fit together."""
        return self._context_max

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._alive

    async def start(self) -> None:
        """Take requests under version 0/0."""
        self._version = Version(0, 0)
        self._alive, self._paused = True, False
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def generate(self, request: GenerateRequest) -> AsyncIterator[EngineDelta]:
        """Yield the scripted tokens of a request."""
        self._must_live()
        turn = self._begin(request)
        self._turns[request.request_id] = turn
        self._wake.set()
        try:
            while True:
                delta = await turn.queue.get()
                if delta is None:
                    raise TransientError(
                        "the scripted engine died", boundary=Boundary.ENGINE, hint="start it again"
                    )
                yield delta
                if delta.finished:
                    return
        finally:
            self._turns.pop(request.request_id, None)

    async def swap(
        self,
        folder: Path,  # noqa: ARG002  there is nothing to load
        version: Version,
        drained: Callable[[], Awaitable[None]],
    ) -> SwapReport:
        """Pretend to load: pause, drain, wait `load_ms`, go on under the new version."""
        self._must_live()
        began_ms = self._clock.monotonic_ms()
        self._paused = True
        try:
            while any(not turn.queue.empty() for turn in self._turns.values()):
                await asyncio.sleep(0)
            await drained()
            load_ms = self._clock.monotonic_ms()
            await asyncio.sleep(self._settings.load_ms / 1000)
            self._must_live()
            self._version = version
            ended_ms = self._clock.monotonic_ms()
        finally:
            self._paused = False
            self._wake.set()
        return SwapReport(
            pause_us=(ended_ms - began_ms) * 1000, load_us=(ended_ms - load_ms) * 1000
        )

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:  # noqa: ARG002  every text scores alike
        """Return the version's log-prob for every id."""
        return [logprob_of(self._version)] * len(ids)

    async def abort(self, request_id: str) -> None:
        """End a request early."""
        turn = self._turns.pop(request_id, None)
        if turn is not None:
            turn.queue.put_nowait(self._last(turn, FinishReason.ABORT))

    async def stop(self) -> None:
        """Take no more requests; those in flight end with an error."""
        self._die()

    def kill(self) -> None:
        """Die as a crashed process does."""
        self._die()

    def _die(self) -> None:
        self._alive = False
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for turn in self._turns.values():
            turn.queue.put_nowait(None)
        self._turns.clear()

    def _must_live(self) -> None:
        if not self._alive:
            raise TransientError(
                "the scripted engine is not running", boundary=Boundary.ENGINE, hint="start it"
            )

    def _begin(self, request: GenerateRequest) -> _Turn:
        self.requests += 1
        if self.on_request is not None:
            self.on_request(request)
        faulty = (self.requests - 1) % self._settings.fault_every_requests == 0
        start = len(request.prompt_ids) - request.resumed_tokens
        drawn = _drawn(self._settings, request.prompt_ids[:start])
        done = list(request.prompt_ids[start:])
        return _Turn(
            request=request,
            text=self._text(drawn, done, request.tokens_max + len(done)),
            started_s=self._clock.monotonic_ms() / 1000,
            fault=self._settings.fault if faulty else Fault.NONE,
        )

    def _text(self, drawn: int, done: list[int], longest: int) -> list[int]:
        """Write the whole turn that `drawn` makes up; ids sampled before are as they are."""
        if self._replies:
            ids = [*self._replies[drawn % len(self._replies)], self._stop_id]
            return [*done, *ids[len(done) :]][:longest]
        length = _drawn_length(self._settings, drawn)
        # Drawn one after the other, so that a shorter text is the beginning of a longer one.
        drawn_ids = random.Random(drawn).choices(self._alphabet, k=min(length, longest))
        ids = [*done, *drawn_ids[len(done) :]]
        return ids if len(ids) >= longest else [*ids, self._stop_id]

    async def _tick(self) -> None:
        """Hand out what is due, to all requests in one pass."""
        pause_s = self._settings.tick_ms / 1000
        while True:
            if not self._turns or self._paused:
                self._wake.clear()
                await self._wake.wait()
            now_s = self._clock.monotonic_ms() / 1000
            for turn in tuple(self._turns.values()):
                if self._paused or not self._alive:
                    break
                self._write(turn, now_s)
            is_paced = self._settings.tokens_per_s or self.ceiling is not None
            await asyncio.sleep(pause_s if is_paced else 0)

    def _write(self, turn: _Turn, now_s: float) -> None:
        resumed = turn.request.resumed_tokens
        whole = len(turn.text) - resumed
        rate = self._settings.tokens_per_s
        due = whole if not rate else min(whole, int((now_s - turn.started_s) * rate) + 1)
        if self.ceiling is not None:
            due = min(due, self.ceiling)
        while turn.given < due:
            until = min(due, turn.given + _STEP_MAX)
            ids = tuple(turn.text[resumed + turn.given : resumed + until])
            if turn.fault is Fault.DEATH and turn.given <= self._settings.fault_at_token < until:
                self._die()
                return
            turn.spans.append((self._version, turn.given, until))
            delta = EngineDelta(
                token_ids=ids,
                logprobs=self._logprobs(turn, until - turn.given),
                version=self._version,
                prefilled_tokens=len(turn.request.prompt_ids),
            )
            self._count(turn, until)
            turn.given = until
            turn.queue.put_nowait(self._ended(turn, delta) if turn.given == whole else delta)
        if turn.given == whole:
            self._turns.pop(turn.request.request_id, None)

    def _count(self, turn: _Turn, until: int) -> None:
        if not self._settings.count_decoded:
            return
        base = len(turn.request.prompt_ids) - turn.request.resumed_tokens
        history = [*turn.request.prompt_ids[:base], *turn.text]
        for end in range(
            base + turn.request.resumed_tokens + turn.given,
            base + turn.request.resumed_tokens + until,
        ):
            self.decoded[zlib.crc32(pack_ids(history[:end]))] += 1

    def _ended(self, turn: _Turn, delta: EngineDelta) -> EngineDelta:
        stopped = delta.token_ids[-1] == self._stop_id
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        last = self._last(turn, reason)
        return EngineDelta(
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            version=delta.version,
            finished=True,
            finish_reason=reason,
            spans=last.spans,
            prefilled_tokens=delta.prefilled_tokens,
        )

    def _last(self, turn: _Turn, reason: FinishReason) -> EngineDelta:
        spans = tuple(turn.spans)
        if turn.fault is Fault.WRONG_VERSION:
            spans = tuple((Version(v.epoch, v.number + 1), a, b) for v, a, b in spans)
        return EngineDelta(
            token_ids=(),
            logprobs=(),
            version=self._version,
            finished=True,
            finish_reason=reason,
            spans=spans,
        )

    def _logprobs(self, turn: _Turn, count: int) -> tuple[float, ...]:
        values = [logprob_of(self._version)] * count
        at = self._settings.fault_at_token - turn.given
        if not 0 <= at < count:
            return tuple(values)
        match turn.fault:
            case Fault.NAN:
                values[at] = math.nan
            case Fault.POSITIVE:
                values[at] = 0.5
            case Fault.INFINITE:
                values[at] = math.inf
            case Fault.MISSING:
                del values[at]
            case Fault.WRONG_LENGTH:
                values.append(values[at])
            case Fault.NONE | Fault.DEATH | Fault.WRONG_VERSION:
                pass
        return tuple(values)
