"""The sessions of one gateway: at most one per episode, each under one fence, each with at most one
turn in flight.

A session is memory only: whatever it holds can be read back from the log, so an idle one may be
dropped at any time and its client is told to open it again (`refence`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from inference.core.commit_cutter import CutterLimits
from inference.core.history import History, Plan, Segment, rebuild
from inference.engine_keeper import EngineKeeper
from inference.generation import Generation
from inference.refusals import Code, RefusedError, refence
from inference.release import DurableTokens, text_of
from inference.tokenizer import Tokenizer
from inference.turn import TurnSpec
from inference.wal_stream import Draft, EpisodeStream
from inference.wal_writer import Opened, OpenRequest, WalWriter
from schemas.deadline import Deadline
from schemas.enums import CutReason, FinishReason, TokenKind
from schemas.ids import EpisodeId
from schemas.ports import Clock

_INPUT_TOKENS_MAX = 32_768
"""Input tokens of one commit: well under `commit_bytes_max`."""


class Session:
    """One episode under one fence."""

    def __init__(self, opened: Opened) -> None:
        self.stream: EpisodeStream = opened.stream
        self.history = History()
        self.turns: dict[tuple[int, int], list[DurableTokens]] = {}
        """Durable sampled tokens by (branch, turn)."""
        self.current: Generation | None = None
        self.task: asyncio.Task[None] | None = None
        self.used_ms = 0
        self.stream.on_broken = self._broken
        if opened.prefix is not None:
            wal, delivered = opened.prefix.wal, opened.prefix.delivered
            self.history = rebuild(wal.pieces, wal.branch)
            for piece in (*wal.siblings, *wal.pieces):
                if piece.kind is TokenKind.ACTION:
                    # A cut moves the end of a piece only, so its tokens are the commit's first
                    # ones.
                    tokens = DurableTokens(piece.commit, delivered[piece.offset], piece.count)
                    self.turns.setdefault((piece.branch, piece.turn), []).append(tokens)

    @property
    def is_busy(self) -> bool:
        """Whether a turn is in flight."""
        return self.current is not None and not self.current.is_over

    def require(self, attempt: int, fence_number: int | None) -> None:
        """Refuse a request that was not made under this session's fence."""
        identity = self.stream.identity
        if self.stream.broken is not None:
            raise self.stream.broken
        if attempt < identity.attempt or (
            attempt == identity.attempt
            and fence_number is not None
            and fence_number < identity.fence_number
        ):
            raise RefusedError(
                Code.FENCED,
                f"({attempt}, {fence_number}) is below the session's "
                f"({identity.attempt}, {identity.fence_number})",
                hint="a later opening of the session took over",
                fence_number=identity.fence_number,
                attempt=identity.attempt,
            )
        if attempt > identity.attempt or fence_number not in (None, identity.fence_number):
            raise refence(
                "no session is open here under that fence",
                highest=max(identity.fence_number, fence_number or 0),
            )

    def apply(
        self, plan: Plan, *, turn: int, digests: str, result_offsets: tuple[int, ...]
    ) -> None:
        """Bring the log and the history to where the turn's first token follows."""
        segments = list(self.history.segments)
        for index, messages in plan.adopted:
            segments[index] = replace(segments[index], messages=messages)
        self.history = replace(self.history, segments=tuple(segments))
        if plan.cut_reason is not CutReason.NONE:
            self.stream.cut(plan.cut_start, plan.cut_reason, turn=turn)
            is_fork = plan.cut_reason is CutReason.FORK
            self.history = self.history.cut(plan.cut_start, fork=is_fork)
            if not is_fork:
                self.turns.pop((self.history.branch, turn), None)
        for ids, result_offset in _parts(plan.ids, result_offsets):
            start = self.stream.length
            self.stream.append(
                Draft(
                    kind=plan.kind,
                    turn=turn,
                    ids=ids,
                    drift=plan.drift,
                    result_offset=result_offset,
                    digests=digests if plan.kind is TokenKind.PROMPT else "",
                )
            )
            self._extend(
                Segment(
                    is_action=False,
                    turn=turn,
                    branch=self.history.branch,
                    start=start,
                    ids=ids,
                    result_offsets=() if result_offset < 0 else (result_offset,),
                    messages=plan.messages,
                    kind=plan.kind,
                )
            )

    def text_of(self, index: int, tokenizer: Tokenizer) -> str:
        """Return the text of a segment: of sampled tokens, only what is durable."""
        segment = self.history.segments[index]
        if segment.is_action:
            return text_of(self.turns.get((segment.branch, segment.turn), ()), tokenizer)
        return tokenizer.decode(segment.ids)

    def begin(self, generation: Generation) -> None:
        """Let a turn run; its sampled tokens join the history when it is over."""
        self.current = generation
        task = asyncio.get_running_loop().create_task(generation.run())
        self.task = task
        task.add_done_callback(lambda _: self._ended(generation))

    def _ended(self, generation: Generation) -> None:
        spec = generation.spec
        if generation.quarantine is not None:
            self.turns.pop((spec.branch, spec.turn), None)
            self.history = self.history.cut(spec.start, fork=False)
            return
        resumed = sum(piece.count for piece in spec.resumed)
        ids = generation.sampled[resumed:]
        if ids or generation.finish_reason is not FinishReason.NONE:
            self._extend(
                Segment(
                    is_action=True,
                    turn=spec.turn,
                    branch=spec.branch,
                    start=spec.start + resumed,
                    ids=ids,
                    finish_reason=generation.finish_reason,
                )
            )
        self.turns[spec.branch, spec.turn] = generation.durable

    def _extend(self, segment: Segment) -> None:
        self.history = self.history.extended(segment)

    def _broken(self, why: RefusedError) -> None:
        if self.current is not None:
            self.current.fail(why)
        if self.task is not None and not self.task.done():
            self.task.cancel()


def _parts(
    ids: tuple[int, ...], result_offsets: tuple[int, ...]
) -> list[tuple[tuple[int, ...], int]]:
    """Split input ids into commits of bounded size, at least one for each Result that they show.

    Each commit names one Result; where a Result's text begins and ends in the ids does not matter
    to any reader.
    """
    if not ids:
        return []
    wanted = max(1, len(result_offsets), -(-len(ids) // _INPUT_TOKENS_MAX))
    size = max(1, len(ids) // wanted)
    bounds = [min(i * size, len(ids)) for i in range(wanted)] + [len(ids)]
    named = [*result_offsets, *[-1] * (wanted - len(result_offsets))]
    pieces = [(ids[a:b], r) for a, b, r in zip(bounds, bounds[1:], named, strict=False)]
    return [(part, result) for part, result in pieces if part or result >= 0]


class Sessions:
    """All sessions of one gateway, opened by fence and dropped when idle."""

    def __init__(
        self,
        writer: WalWriter,
        keeper: EngineKeeper,
        *,
        clock: Clock,
        limits: CutterLimits,
        sessions_max: int,
        on_over: Callable[[Session, Generation], None],
    ) -> None:
        self._writer = writer
        self._keeper = keeper
        self._clock = clock
        self._limits = limits
        self._sessions_max = sessions_max
        self._on_over = on_over
        self._open: OrderedDict[EpisodeId, Session] = OrderedDict()
        self._opening: dict[EpisodeId, tuple[OpenRequest, asyncio.Task[Session]]] = {}
        self._numbers = itertools.count()

    @property
    def count(self) -> int:
        """Sessions held."""
        return len(self._open)

    @property
    def busy(self) -> int:
        """Turns in flight."""
        return sum(session.is_busy for session in self._open.values())

    def get(self, episode: EpisodeId) -> Session | None:
        """Return an episode's session and mark it as used."""
        session = self._open.get(episode)
        if session is not None:
            self._open.move_to_end(episode)
        return session

    async def open(self, request: OpenRequest, *, deadline: Deadline) -> Session:
        """Open a session under a fence, or return the one that stands under exactly this fence.

        Raises RefusedError when a higher one stands here or in the log.
        """
        episode = request.episode_id
        known = self._open.get(episode)
        if known is not None and known.stream.broken is None:
            identity = known.stream.identity
            ours = (identity.attempt, identity.fence_number)
            if ours == (request.attempt, request.fence_number):
                return known
            if ours > (request.attempt, request.fence_number):
                known.require(request.attempt, request.fence_number)
        pending = self._opening.get(episode)
        if pending is not None:
            asked, task = pending
            if (asked.attempt, asked.fence_number) >= (request.attempt, request.fence_number):
                if asked.fence_number == request.fence_number and asked.attempt == request.attempt:
                    return await asyncio.shield(task)
                raise refence("a higher fence is being opened", highest=asked.fence_number)
            await asyncio.wait({task}, timeout=5.0)
        task = asyncio.get_running_loop().create_task(self._opened(request, deadline))
        self._opening[episode] = (request, task)
        task.add_done_callback(lambda done: self._forget_opening(episode, done))
        return await asyncio.shield(task)

    def start(self, session: Session, spec: TurnSpec, *, deadline: Deadline) -> Generation:
        """Let a session sample a turn."""
        generation = Generation(
            spec,
            stream=session.stream,
            keeper=self._keeper,
            clock=self._clock,
            limits=self._limits,
            deadline=deadline,
            request_ids=lambda: f"{session.stream.identity.episode_id}#{next(self._numbers)}",
        )
        session.begin(generation)
        assert session.task is not None, "begin makes the task"
        session.task.add_done_callback(lambda _: self._on_over(session, generation))
        return generation

    async def interrupt(self) -> None:
        """Let every turn in flight leave the engine; each goes on when the
        engine may sample again.
        """
        for session in tuple(self._open.values()):
            if session.current is not None and session.is_busy:
                await session.current.interrupt()

    async def suspend(self, *, timeout_s: float) -> None:
        """Sample no more, and commit what every turn in flight has sampled: the
        worker is stopping.
        """
        tasks: set[asyncio.Task[None]] = set()
        for session in tuple(self._open.values()):
            if session.current is None or session.task is None or session.task.done():
                continue
            number = session.stream.identity.fence_number
            await session.current.suspend(refence("the worker is stopping", highest=number))
            tasks.add(session.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()

    async def _opened(self, request: OpenRequest, deadline: Deadline) -> Session:
        known = self._open.pop(request.episode_id, None)
        if known is not None:
            known.stream.close(
                RefusedError(
                    Code.FENCED,
                    f"the session was opened anew under fence {request.fence_number}",
                    hint="use the answers under the higher number",
                    fence_number=request.fence_number,
                    attempt=request.attempt,
                )
            )
        opened = await self._writer.open(request, deadline=deadline)
        session = Session(opened)
        self._open[request.episode_id] = session
        self._make_room()
        return session

    def _forget_opening(self, episode: EpisodeId, task: asyncio.Task[Session]) -> None:
        pending = self._opening.get(episode)
        if pending is not None and pending[1] is task:
            del self._opening[episode]
        if not task.cancelled():
            # Read here so that a client that went away leaves no unread error behind.
            task.exception()

    def _make_room(self) -> None:
        while len(self._open) > self._sessions_max:
            idle = next((e for e, s in self._open.items() if not s.is_busy), None)
            if idle is None:
                return
            session = self._open.pop(idle)
            session.stream.close(
                refence(
                    "the session was idle and made room for others",
                    highest=session.stream.identity.fence_number,
                )
            )
