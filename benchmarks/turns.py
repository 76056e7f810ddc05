"""Turns of fresh episodes asked of an inference service's sessions, without HTTP."""

from __future__ import annotations

from benchmarks.broker import RUN
from inference.core.moment import Moment
from inference.generation import Generation
from inference.service import InferenceService
from inference.sessions import Session
from inference.turn import TurnSpec
from inference.wal_stream import Draft
from inference.wal_writer import OpenRequest
from schemas.deadline import Deadline
from schemas.enums import TokenKind
from schemas.ids import EpisodeId, episode_id
from schemas.ports import Context

_BUDGET_MS = 180_000


class Turns:
    """Opens sessions and starts one turn in each, as the gateway does after it has read a
    request.
    """

    def __init__(
        self,
        context: Context,
        service: InferenceService,
        prompt: tuple[int, ...],
        *,
        tokens_max: int,
    ) -> None:
        self._context = context
        self._service = service
        self._prompt = prompt
        self.tokens_max = tokens_max
        """Tokens of the turns to come. Unit: tokens."""
        self._ordinal = 0

    def next_block(self) -> int:
        """Return the ordinal of a block that was not there before."""
        self._ordinal += 1
        return self._ordinal

    def episode(self, member: int) -> EpisodeId:
        """Return an episode of the current block."""
        return episode_id(RUN, self._ordinal, member)

    async def open(self, member: int) -> Session:
        """Fence a fresh episode of the current block."""
        request = OpenRequest(
            episode_id=self.episode(member),
            attempt=1,
            fence_number=1,
            tokens_floor=-1,
            is_first=True,
        )
        return await self._service.sessions.open(request, deadline=self._deadline())

    def start(self, session: Session) -> Generation:
        """Append the prompt and start the turn."""
        clock = self._context.clock
        session.stream.append(Draft(kind=TokenKind.PROMPT, turn=0, ids=self._prompt), None)
        spec = TurnSpec(
            turn=0,
            branch=0,
            start=len(self._prompt),
            prompt_ids=self._prompt,
            resumed=(),
            tokens_max=self.tokens_max,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            stop_ids=(),
            requested=Moment(wall_us=clock.now_us(), monotonic_us=clock.monotonic_us()),
            planned_us=clock.monotonic_us(),
        )
        return self._service.sessions.start(session, spec, deadline=self._deadline())

    async def follow(self, turn: Generation) -> int:
        """Return the tokens of a turn once its last commit is durable."""
        return sum([len(piece.ids) async for piece in turn.follow()])

    def _deadline(self) -> Deadline:
        now_ms = self._context.clock.monotonic_ms()
        return Deadline.after(_BUDGET_MS, now_ms=now_ms, waiting_for="a block of the measurement")
