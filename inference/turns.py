"""Finds or begins the turn that a request asks for: joins one in flight, replays a finished one, or
plans a new one.

A generation is identified by (episode, branch, turn). Everything that can be refused is refused
before anything is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from inference.api import TurnRequest
from inference.core.history import History, Plan, Refusal, align_chat, align_ids
from inference.core.moment import Moment
from inference.engine_keeper import EngineKeeper
from inference.generation import Generation
from inference.refusals import Code, RefusedError
from inference.release import DurableTokens
from inference.rendering import Renderer
from inference.sessions import Session, Sessions
from inference.tokenizer import Tokenizer, tools_digest
from inference.turn import Answer, TurnSpec
from schemas.deadline import Deadline
from schemas.enums import CutReason, FinishReason
from schemas.ports import Clock

_SETTLE_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A turn to answer with: in flight, or in the log to its end."""

    turn: int
    branch: int
    generation: Generation | None = None
    recorded: tuple[DurableTokens, ...] = ()

    async def follow(self) -> AsyncIterator[DurableTokens]:
        """Yield the turn's durable tokens to its end; raise the RefusedError it failed with."""
        if self.generation is None:
            for piece in self.recorded:
                yield piece
            return
        async for piece in self.generation.follow():
            yield piece


class TurnPlanner:
    """Decides what a request adds to the log and what is sampled for it."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        keeper: EngineKeeper,
        renderer: Renderer,
        tokenizer: Tokenizer,
        clock: Clock,
        turn_tokens_max: int,
        queued_max: int,
    ) -> None:
        self._sessions = sessions
        self._keeper = keeper
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._clock = clock
        self._turn_tokens_max = turn_tokens_max
        self._queued_max = queued_max

    async def find(
        self, session: Session, request: TurnRequest, requested: Moment, deadline: Deadline
    ) -> Found:
        """Return the turn that the request names; raise RefusedError when it names none that may be
        sampled.
        """
        place = request.place
        branch = session.history.branch if place.branch is None else place.branch
        if place.may_fork and place.branch is None:
            branch += 1
        turn = place.turn if place.turn is not None else _next_turn(session)
        known = _known(session, branch, turn)
        if known is not None:
            return known
        if session.is_busy:
            raise RefusedError(
                Code.BUSY,
                f"turn {_current_turn(session)} of this episode is in flight",
                hint="one turn at a time: wait for its answer, or ask for the same turn to join it",
            )
        if session.stream.unsettled:
            await self._settled(session, deadline)
        plan = self._plan(session.history, request)
        after = _after(session.history, plan)
        self._must_fit(session, plan, turn, after.turn)
        digests = " ".join(
            (
                self._tokenizer.digest,
                self._tokenizer.template_digest,
                tools_digest(request.tools),
            )
        )
        session.apply(plan, turn=turn, digests=digests, result_offsets=request.place.result_offsets)
        spec = self._spec(session, request, turn, requested)
        generation = self._sessions.start(session, spec, deadline=deadline)
        return Found(turn=turn, branch=spec.branch, generation=generation)

    def answer(self, session: Session, found: Found, pieces: list[DurableTokens]) -> Answer:
        """Return where the finished turn stands, from its durable tokens alone."""
        first, last = pieces[0], pieces[-1]
        identity = session.stream.identity
        return Answer(
            attempt=identity.attempt,
            fence_number=identity.fence_number,
            position=last.offset,
            turn=found.turn,
            branch=found.branch,
            length=last.record.start + last.count,
            finish_reason=last.record.finish_reason,
            prompt_tokens=first.record.start,
            sampled_tokens=sum(piece.count for piece in pieces),
            reused_tokens=last.reused_tokens,
            versions=tuple({span.version: None for piece in pieces for span in piece.spans}),
        )

    def _plan(self, history: History, request: TurnRequest) -> Plan:
        may_fork = request.place.may_fork
        if request.messages is not None:
            plan = align_chat(
                history,
                request.messages,
                tools=request.tools,
                render=self._renderer,
                may_fork=may_fork,
            )
        elif request.token_ids is not None:
            self._must_be_known(request.token_ids)
            plan = align_ids(history, request.token_ids, may_fork=may_fork)
        else:
            plan = self._plan_text(history, request.prompt or "")
        if isinstance(plan, Refusal):
            raise RefusedError(
                Code.NOT_APPEND_ONLY,
                plan.message,
                hint='repeat the history as it was answered, or set "fork": true in sluice',
            )
        return plan

    def _plan_text(self, history: History, prompt: str) -> Plan | Refusal:
        sampled = [s.end for s in history.segments if s.is_finished]
        before = history.ids()[: sampled[-1]] if sampled else []
        text = self._renderer.decode(before, with_special=True)
        if not prompt.startswith(text):
            return Refusal(message="the prompt does not begin with the text so far")
        return align_ids(history, self._renderer.encode(prompt[len(text) :]))

    def _must_be_known(self, ids: tuple[int, ...]) -> None:
        if any(i >= self._tokenizer.vocabulary for i in ids):
            raise RefusedError(
                Code.BAD_REQUEST,
                f"token_ids must be below {self._tokenizer.vocabulary}",
                hint="they belong to another tokenizer",
            )

    def _must_fit(self, session: Session, plan: Plan, turn: int, next_turn: int) -> None:
        if turn != next_turn:
            raise RefusedError(
                Code.BAD_REQUEST,
                f"turn {turn} was asked for, and turn {next_turn} comes next",
                hint="turns are numbered from 0, one after the other",
            )
        if self._keeper.waiting >= self._queued_max:
            raise RefusedError(
                Code.OVERLOADED,
                f"{self._keeper.waiting} turns wait for a slot",
                hint="ask again later, or give this worker fewer episodes",
            )
        kept = session.history.length if plan.cut_start < 0 else plan.cut_start
        length, most = kept + len(plan.ids), self._keeper.context_max
        if length >= most:
            raise RefusedError(
                Code.PROMPT_TOO_LONG,
                f"the prompt has {length} tokens and the context holds {most}",
                hint="shorten it, or raise context_max of the inference worker",
            )

    def _spec(
        self, session: Session, request: TurnRequest, turn: int, requested: Moment
    ) -> TurnSpec:
        history = session.history
        tail = history.segments[-1]
        is_resumed = tail.is_action and not tail.is_finished
        start = tail.start if is_resumed else history.length
        resumed = session.turns.get((history.branch, turn), []) if is_resumed else []
        sampling = request.sampling
        return TurnSpec(
            turn=turn,
            branch=history.branch,
            start=start,
            prompt_ids=tuple(history.ids()[:start]),
            resumed=tuple(resumed),
            tokens_max=min(
                sampling.tokens_max or self._turn_tokens_max, self._keeper.context_max - start
            ),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_ids=self._tokenizer.stop_ids,
            requested=requested,
            planned_us=self._clock.monotonic_us(),
        )

    async def _settled(self, session: Session, deadline: Deadline) -> None:
        """Wait until the log has acknowledged what an earlier request left behind."""
        while session.stream.unsettled and session.stream.broken is None:
            if deadline.is_over(now_ms=self._clock.monotonic_ms()):
                raise RefusedError(
                    Code.DEADLINE,
                    f"{session.stream.unsettled} commits are not acknowledged",
                    hint="ask again",
                )
            await asyncio.sleep(_SETTLE_S)
        if session.stream.broken is not None:
            raise session.stream.broken


def _next_turn(session: Session) -> int:
    if session.is_busy and session.current is not None:
        return session.current.spec.turn
    return session.history.turn


def _current_turn(session: Session) -> int:
    return -1 if session.current is None else session.current.spec.turn


def _known(session: Session, branch: int, turn: int) -> Found | None:
    """Return a turn that is in flight or ended under this name."""
    current = session.current
    if current is not None and (current.spec.branch, current.spec.turn) == (branch, turn):
        if not current.is_over or current.failure is None:
            return Found(turn=turn, branch=branch, generation=current)
        return None
    recorded = session.turns.get((branch, turn))
    if recorded and recorded[-1].record.finish_reason is not FinishReason.NONE:
        return Found(turn=turn, branch=branch, recorded=tuple(recorded))
    return None


def _after(history: History, plan: Plan) -> History:
    if plan.cut_reason is CutReason.NONE:
        return history
    return history.cut(plan.cut_start, fork=plan.cut_reason is CutReason.FORK)
