"""The TITO gateway: tokens in, tokens out behind the OpenAI API; every token is in the log before
it is answered.

Consumes: HTTP of environments. Produces: tokens.v1 through the WAL writer. Waits for: a slot, the
engine, and the acknowledgement of every commit up to what it shows, all inside the request's
deadline. Unblocked by: the broker, the engine, or a refusal that names the next step. One turn at a
time per episode; a repeat joins or replays it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from aiohttp import web

from inference import replies
from inference.api import TurnRequest, body_of, caller_of, read_open, read_turn
from inference.core.moment import Moment
from inference.engine_keeper import EngineKeeper
from inference.refusals import Code, RefusedError, refence
from inference.release import DurableTokens, Release, text_of
from inference.sessions import Session, Sessions
from inference.tokenizer import Tokenizer
from inference.turn import Answer
from inference.turns import Found, TurnPlanner
from schemas.crash_points import CrashPoint, reach
from schemas.deadline import Deadline
from schemas.errors import SluiceError, TransientError
from schemas.ports import Clock

_BODY_BYTES_MAX = 64 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Budgets of the gateway."""

    open_ms: int
    request_ms: int
    model_name: str


class Gateway:
    """The routes; everything they decide is decided elsewhere."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        planner: TurnPlanner,
        keeper: EngineKeeper,
        tokenizer: Tokenizer,
        clock: Clock,
        secret: bytes,
        limits: GatewayLimits,
    ) -> None:
        self._sessions = sessions
        self._planner = planner
        self._keeper = keeper
        self._tokenizer = tokenizer
        self._clock = clock
        self._secret = secret
        self._limits = limits
        self.is_draining = False
        self.observe: Callable[[str, float, str], None] | None = None
        """Given what each answered turn waited for and cost here."""

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_refusals])
        app.router.add_post("/v1/sessions", self.open_session)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/tokens", self.tokens)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        return app

    async def open_session(self, request: web.Request) -> web.StreamResponse:
        """Fence an episode and return its accepted prefix."""
        self._must_take()
        opening = read_open(await body_of(request), caller_of(request, self._secret))
        session = await self._sessions.open(
            opening, deadline=self._deadline(self._limits.open_ms, "the fence of the session")
        )
        return _json(self._describe(session))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """OpenAI chat completions."""
        caller = caller_of(request, self._secret)
        return await self._turn(request, read_turn(await body_of(request), caller, kind="chat"))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """OpenAI completions: the prompt is the whole text so far."""
        caller = caller_of(request, self._secret)
        return await self._turn(request, read_turn(await body_of(request), caller, kind="text"))

    async def tokens(self, request: web.Request) -> web.StreamResponse:
        """Token ids in, token ids with log-probs and policy spans out."""
        caller = caller_of(request, self._secret)
        return await self._turn(request, read_turn(await body_of(request), caller, kind="ids"))

    async def models(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002  a handler
        """Name the one model that is served, with its version."""
        name = self._limits.model_name
        version = str(self._keeper.version)
        data = [{"id": name, "object": "model", "owned_by": "sluice", "policy_version": version}]
        return _json({"object": "list", "data": data})

    async def health(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002  a handler
        """Say what is served and how much is in flight."""
        state = {
            "serving": self._keeper.is_serving and not self.is_draining,
            "policy_version": str(self._keeper.version),
            "sessions": self._sessions.count,
            "turns_in_flight": self._sessions.busy,
            "engine_restarts": self._keeper.restarts,
            "engine_flags": self._keeper.flags,
        }
        return _json(state, status=200 if state["serving"] else 503)

    async def _turn(self, http: web.Request, request: TurnRequest) -> web.StreamResponse:
        requested = Moment(wall_us=self._clock.now_us(), monotonic_us=self._clock.monotonic_us())
        self._must_take()
        session = self._sessions.get(request.caller.episode_id)
        if session is None:
            named = request.place.fence_number or 0
            raise refence("no session is open here for this episode", highest=named)
        session.require(request.caller.attempt, request.place.fence_number)
        deadline = self._deadline(self._limits.request_ms, "a turn")
        found = await self._planner.find(session, request, requested, deadline)
        head = replies.Head(
            request_id=f"turn-{session.stream.identity.episode_id}-{found.branch}-{found.turn}",
            created_s=requested.wall_us // 1_000_000,
            model=self._limits.model_name,
            is_chat=request.messages is not None,
            with_tools=bool(request.tools),
        )
        if request.stream:
            return await self._stream(http, request, session, found, head)
        pieces = [piece async for piece in found.follow()]
        shown_us = self._clock.monotonic_us()
        answer = self._planner.answer(session, found, pieces)
        if request.token_ids is not None:
            body = replies.tokens_reply(head, pieces, answer)
        else:
            body = replies.whole(head, text_of(pieces, self._tokenizer), answer)
        response = _json(body)
        self._measure(requested, shown_us, found)
        return await _sent(http, response)

    async def _stream(
        self,
        http: web.Request,
        request: TurnRequest,
        session: Session,
        found: Found,
        head: replies.Head,
    ) -> web.StreamResponse:
        chunks, release = replies.ChunkWriter(head), Release(self._tokenizer)
        pieces: list[DurableTokens] = []
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        try:
            async for piece in found.follow():
                pieces.append(piece)
                if len(pieces) == 1:
                    # Only now: until the first token is durable a refusal still has its own status.
                    await response.prepare(http)
                    await response.write(chunks.first())
                event = chunks.more(release.show(piece))
                if event:
                    await response.write(event)
        except RefusedError as refusal:
            if not response.prepared:
                raise
            await response.write(replies.error_event(refusal.body()))
            await response.write_eof()
            return response
        tail = chunks.more(release.rest())
        answer: Answer = self._planner.answer(session, found, pieces)
        await response.write(tail + chunks.last(answer, with_usage=request.usage_in_stream))
        await response.write_eof()
        reach(CrashPoint.AFTER_EXPOSURE)
        return response

    def _measure(self, requested: Moment, durable_us: int, found: Found) -> None:
        """Say what durability and this gateway have added to a turn that was sampled for it."""
        generation = found.generation
        if self.observe is None or generation is None or generation.finished_us is None:
            return
        if generation.spec.requested is not requested:
            # It joined a turn that was under way: what came before sampling came before it, too.
            return
        self.observe("exposure_wait_us", float(durable_us - generation.finished_us), "us")
        before = generation.spec.planned_us - requested.monotonic_us
        after = self._clock.monotonic_us() - durable_us
        self.observe("gateway_overhead_us", float(before + after), "us")

    def _describe(self, session: Session) -> dict[str, object]:
        identity = session.stream.identity
        return {
            "attempt": identity.attempt,
            "fence_number": identity.fence_number,
            "position": session.stream.last_offset,
            "length": session.history.length,
            "branch": session.history.branch,
            "turns": [
                {
                    "turn": segment.turn,
                    "branch": segment.branch,
                    "kind": segment.kind.value,
                    "text": session.text_of(index, self._tokenizer),
                    "tokens": len(segment.ids),
                    "finished": segment.is_finished or not segment.is_action,
                    "finish_reason": segment.finish_reason.value,
                    "offset": segment.offset,
                    "result_offset": segment.result_offsets[-1] if segment.result_offsets else -1,
                    "result_offsets": list(segment.result_offsets),
                }
                for index, segment in enumerate(session.history.segments)
            ],
        }

    def _must_take(self) -> None:
        if self.is_draining:
            raise RefusedError(
                Code.ENGINE_FAILED,
                "this worker is stopping",
                hint="turn to another worker under a higher fence number",
            )

    def _deadline(self, budget_ms: int, waiting_for: str) -> Deadline:
        now_ms = self._clock.monotonic_ms()
        return Deadline.after(budget_ms, now_ms=now_ms, waiting_for=waiting_for)


async def _sent(http: web.Request, response: web.Response) -> web.Response:
    """Write an answer out; one whose client has gone is asked for again and replayed."""
    try:
        await response.prepare(http)
        await response.write_eof()
    except ConnectionError:
        return response
    reach(CrashPoint.AFTER_EXPOSURE)
    return response


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal in one shape; what we cannot name is ours and fails loudly."""
    try:
        return await handler(request)
    except RefusedError as error:
        refused, status = error, error.code.status
    except TransientError as error:
        refused, status = _refused(error), Code.ENGINE_FAILED.status
    except SluiceError as error:
        refused, status = _refused(error), 500
    return _json(refused.body(), status=status)


def _refused(error: SluiceError) -> RefusedError:
    return RefusedError(Code.ENGINE_FAILED, error.message, hint=error.hint)
