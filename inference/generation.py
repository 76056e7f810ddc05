"""One turn being sampled: engine deltas in, commits out, durable tokens to whoever follows.

Decoding never waits for the log. A turn is over when its last commit is durable; until then
followers see only what the log holds. Whatever the engine does wrong takes the whole call back (a
Cut) and keeps it as a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from inference.core import commit_cutter as cutting
from inference.core.commit_cutter import Cut, CutterLimits, CutterState
from inference.core.pace import Pace
from inference.core.request_life import (
    Discard,
    Drain,
    Event,
    Finish,
    Request,
    Resume,
    Run,
    Suspend,
    Suspension,
    step,
)  # fmt: skip
from inference.core.spans import mismatch
from inference.engine import EngineDelta, GenerateRequest
from inference.engine_keeper import EngineKeeper
from inference.refusals import Code, RefusedError
from inference.release import DurableTokens
from inference.turn import Quarantine, TurnSpec
from inference.wal_stream import Draft, EpisodeStream
from schemas.crash_points import CrashPoint, reach
from schemas.deadline import Deadline
from schemas.enums import CutReason, FinishReason, TokenKind
from schemas.errors import SettingsError, TransientError
from schemas.ids import Version
from schemas.packing import Span, Timing, bad_logprob
from schemas.ports import Clock

_LOG = logging.getLogger(__name__)
_ENGINE_TRIES = 5


class Generation:
    """The sampled tokens of one turn, followed by any number of requests."""

    def __init__(
        self,
        spec: TurnSpec,
        *,
        stream: EpisodeStream,
        keeper: EngineKeeper,
        clock: Clock,
        limits: CutterLimits,
        deadline: Deadline,
        request_ids: Callable[[], str],
    ) -> None:
        self.spec = spec
        self.durable: list[DurableTokens] = list(spec.resumed)
        """What may be shown, in order."""
        self.finish_reason = FinishReason.NONE
        self.failure: RefusedError | None = None
        self.quarantine: Quarantine | None = None
        self.life = Request()
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.first_token_us = 0
        """When the first token came, as a time stamp; 0 before. Unit: us."""
        self.pace = Pace()
        self.finished_us: int | None = None
        """When the engine had sampled the last token. Unit: us, monotonic."""
        self.stream = stream
        self._keeper = keeper
        self._clock = clock
        self._limits = limits
        self._deadline = deadline
        self._request_ids = request_ids
        self._cutter = CutterState()
        self._timer: asyncio.TimerHandle | None = None
        self._sampled = [i for piece in spec.resumed for i in piece.ids]
        self._appended = len(self._sampled)
        self._bell = asyncio.Event()
        self._request_id = ""
        self._request_base = 0
        self._stamped: list[tuple[Version, int, int]] = []
        self._last_seen = False
        self._suspended: RefusedError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the turn is durable to its end, or has failed."""
        return self.failure is not None or self._last_seen

    @property
    def sampled(self) -> tuple[int, ...]:
        """All sampled ids of the turn so far, durable or not; never shown."""
        return tuple(self._sampled)

    async def follow(self) -> AsyncIterator[DurableTokens]:
        """Yield the turn's tokens as they become durable; raise the RefusedError it failed with."""
        seen = 0
        while True:
            while seen < len(self.durable):
                yield self.durable[seen]
                seen += 1
            if self.failure is not None:
                raise self.failure
            if self._last_seen:
                return
            bell = self._bell
            await self._bounded(bell)

    async def _bounded(self, bell: asyncio.Event) -> None:
        left_ms = self._deadline.left_ms(now_ms=self._clock.monotonic_ms())
        try:
            # A little longer than the generation's own deadline, which then says what was waited
            # for.
            async with asyncio.timeout(left_ms / 1000 + 2.0):
                await bell.wait()
        except TimeoutError as error:
            raise RefusedError(
                Code.DEADLINE,
                f"gave up on {self._deadline.waiting_for}: {self.stream.unsettled} commits wait",
                hint="ask again; the turn goes on where the log stands",
            ) from error

    def fail(self, why: RefusedError) -> None:
        """End the turn without an answer; what is durable stays."""
        if self.is_over:
            return
        self.failure = why
        self._stop_timer()
        self._ring()

    async def interrupt(self) -> None:
        """Leave the engine now and go on once it may sample again."""
        if self._request_id:
            await self._keeper.abort(self._request_id)

    async def suspend(self, why: RefusedError) -> None:
        """Sample no more: the engine hands out what it has, that is committed,
        and the turn ends.
        """
        self._suspended = why
        if self._request_id:
            await self._keeper.abort(self._request_id)
        else:
            self.fail(why)

    async def run(self) -> None:
        """Sample the turn; returns when its last token is handed to the log, or it has failed."""
        self._keeper.flushes.add(self.flush)
        try:
            async with self._keeper.slot(self._deadline):
                await self._run()
        except RefusedError as refusal:
            self.flush_quietly()
            self.fail(refusal)
        except (TransientError, SettingsError) as error:
            self.flush_quietly()
            self.fail(RefusedError(Code.ENGINE_FAILED, error.message, hint=error.hint))
        finally:
            self._keeper.flushes.discard(self.flush)
            self._stop_timer()
            if self._request_id:
                await self._keeper.abort(self._request_id)

    async def _run(self) -> None:
        for attempt in range(_ENGINE_TRIES):
            if self._ended_by_resumption():
                return
            engine = await self._keeper.ready(self._deadline)
            if attempt:
                self._live(Resume(version=engine.version))
            self._live(Run())
            try:
                if await self._sample():
                    self._live(Finish())
                    return
            except RefusedError as refusal:
                self._live(Discard(reason=refusal.code.value))
                raise
            except TransientError as error:
                self._request_id = ""
                _LOG.warning("turn %d suspended: %s", self.spec.turn, error)
                self._keeper.doubt()
            self._live(Drain())
            self.flush()
            position = self.stream.last_offset
            suspension = Suspension(wal_position=position, kv_id=None, version=engine.version)
            self._live(Suspend(suspension=suspension))
            if self._suspended is not None:
                raise self._suspended
        raise RefusedError(
            Code.ENGINE_FAILED,
            f"the engine failed {_ENGINE_TRIES} times in one turn",
            hint="turn to another worker; what was committed stays",
        )

    def _ended_by_resumption(self) -> bool:
        """Finish a turn whose end was sampled but whose last commit never came to be."""
        if not self._sampled:
            return False
        if self._sampled[-1] in self.spec.stop_ids:
            reason = FinishReason.STOP
        elif len(self._sampled) >= self.spec.tokens_max:
            reason = FinishReason.LENGTH
        else:
            return False
        self._finish(reason, self._keeper.version)
        if self.life.phase.value == "queued":
            self._live(Run())
            self._live(Finish())
        return True

    async def _sample(self) -> bool:
        """Read one engine request to its end; False when it was aborted and the turn goes on."""
        spec = self.spec
        engine = await self._keeper.ready(self._deadline)
        self._request_id = self._request_ids()
        self._request_base, self._stamped = len(self._sampled), []
        request = GenerateRequest(
            request_id=self._request_id,
            prompt_ids=[*spec.prompt_ids, *self._sampled],
            tokens_max=spec.tokens_max - len(self._sampled),
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            stop_ids=spec.stop_ids,
            resumed_tokens=len(self._sampled),
        )
        left_s = self._deadline.left_ms(now_ms=self._clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(left_s):
                async for delta in engine.generate(request):
                    if self.failure is not None:
                        raise self.failure
                    self._take(delta)
                    if delta.finished:
                        self._request_id = ""
                        return self._end(delta)
        except TimeoutError as error:
            raise RefusedError(
                Code.DEADLINE,
                f"gave up on {self._deadline.waiting_for} after {len(self._sampled)} tokens",
                hint="ask again; the turn goes on where the log stands",
            ) from error
        raise TransientError("the engine's stream ended without a last delta")

    def _take(self, delta: EngineDelta) -> None:
        now_us = self._clock.monotonic_us()
        count = len(delta.token_ids)
        wrong = bad_logprob(delta.logprobs, count)
        if wrong is not None:
            self._quarantine(Code.INVALID_LOGPROB, wrong, delta)
        if not self.first_token_us and count:
            self.first_token_us = self.spec.requested.wall_at(now_us)
        self.pace.take(count, now_us=now_us)
        if not (self.prefilled_tokens or self.reused_tokens):
            # Of the first request that the engine gets: a later one of the same turn also holds
            # what was sampled by then, which is no prompt.
            self.prefilled_tokens = delta.prefilled_tokens
            self.reused_tokens = delta.reused_tokens
        base = len(self._sampled) - self._request_base
        self._stamped.append((delta.version, base, base + count))
        self._sampled.extend(delta.token_ids)
        reach(CrashPoint.AFTER_SAMPLE)
        self._cutter, cuts = cutting.add(
            self._cutter,
            limits=self._limits,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            version=delta.version,
            now_us=now_us,
            is_last=delta.finished,
        )
        self._commit(cuts)
        if not delta.finished:
            self._arm(now_us)

    def _end(self, delta: EngineDelta) -> bool:
        if delta.finish_reason is FinishReason.ABORT:
            return False
        wrong = mismatch(self._stamped, delta.spans)
        if wrong is not None:
            self._quarantine(Code.VERSION_MISMATCH, wrong, delta)
        self._finish(delta.finish_reason, delta.version)
        return True

    def _finish(self, reason: FinishReason, version: Version) -> None:
        now_us = self._clock.monotonic_us()
        self.finished_us = now_us
        self._cutter, cuts = cutting.finish(
            self._cutter, reason=reason, version=version, now_us=now_us
        )
        self.finish_reason = reason
        self._commit(cuts)

    def flush(self) -> None:
        """Commit what waits; called by the timer, at a swap and before the request leaves its
        engine.
        """
        self._stop_timer()
        self._cutter, cuts = cutting.flush(self._cutter)
        self._commit(cuts)

    def flush_quietly(self) -> None:
        """Commit what waits if the stream still may be written."""
        if self.stream.broken is None and self.quarantine is None:
            self.flush()

    def _commit(self, cuts: tuple[Cut, ...]) -> None:
        for cut in cuts:
            start = self.spec.start + self._appended
            end = start + len(cut.token_ids)
            self._appended += len(cut.token_ids)
            is_last = cut.finish_reason is not FinishReason.NONE
            last_token_us = self.spec.requested.wall_at(cut.last_token_us)
            self.stream.append(
                Draft(
                    kind=TokenKind.ACTION,
                    turn=self.spec.turn,
                    ids=cut.token_ids,
                    logprobs=cut.logprobs,
                    spans=(Span(start, end, cut.version),) if cut.token_ids else (),
                    sampling=self.spec.sampling,
                    finish_reason=cut.finish_reason,
                    timing=Timing(
                        requested_us=self.spec.requested.wall_us,
                        first_token_us=self.first_token_us or last_token_us,
                        last_token_us=last_token_us,
                        prefilled_tokens=self.prefilled_tokens,
                        reused_tokens=self.reused_tokens,
                    ),
                ),
                self._last_is_durable if is_last else self._is_durable,
            )

    def _is_durable(self, durable: DurableTokens) -> None:
        self.durable.append(durable)
        self.stream.expose()
        self._ring()

    def _last_is_durable(self, durable: DurableTokens) -> None:
        self._last_seen = True
        self._is_durable(durable)

    def _quarantine(self, code: Code, why: str, delta: EngineDelta) -> None:
        """Take the call's tokens back, keep them as evidence, and refuse the call."""
        self._stop_timer()
        self.quarantine = Quarantine(
            code=code,
            why=why,
            request_id=self._request_id,
            token_ids=(*self._sampled[self._request_base :], *delta.token_ids),
            logprobs=delta.logprobs,
            version=delta.version,
        )
        self._cutter = CutterState()
        if self.stream.length > self.spec.start:
            self.stream.cut(self.spec.start, CutReason.RESTART, turn=self.spec.turn)
        self._keeper.flag(code.value)
        raise RefusedError(
            code,
            f"the whole call is quarantined: {why}",
            hint="ask again; the turn starts anew, and the engine is flagged",
        )

    def _arm(self, now_us: int) -> None:
        due_us = self._cutter.due_us(self._limits)
        if due_us is not None and self._timer is None:
            delay_s = max(0.0, (due_us - now_us) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.failure is not None or self.stream.broken is not None:
            return
        now_us, due_us = self._clock.monotonic_us(), self._cutter.due_us(self._limits)
        if due_us is not None and due_us > now_us:
            # A full commit went out meanwhile; what waits now is younger than the timer.
            self._arm(now_us)
        else:
            self.flush()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def _live(self, event: Event) -> None:
        self.life = step(self.life, event)
