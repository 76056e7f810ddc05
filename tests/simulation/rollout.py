"""The rollout half of a simulated run: the real environment and inference workers, on an engine, a
task package and a network of the simulation.

Real: `environments.worker` with runner, turns, tool log and core; `inference.worker` with gateway,
sessions, WAL writer, turn planner, engine keeper and policy follower. Simulated: HTTP (the handler
of `Listening` mirrors `Gateway.open_session` and the error middleware), the engine, the task.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from environments.gateway_client import GatewayClient, Refusal, _away, _refusal
from environments.ports import (
    CallTools,
    Continue,
    Done,
    Message,
    Opening,
    Reply,
    Step,
    Tool,
    ToolCall,
    ToolOutput,
)
from environments.settings import EnvironmentSettings
from inference.api import Caller, read_open, read_turn
from inference.engine import EngineDelta, GenerateRequest, SwapReport
from inference.refusals import Code, RefusedError
from inference.service import InferenceService
from inference.settings import EngineKind, InferenceSettings
from schemas.bearer import read
from schemas.enums import FinishReason, StopCause
from schemas.errors import Boundary, SluiceError, TransientError
from schemas.ids import Version
from schemas.ports import Context
from schemas.records.task import Task
from tests.simulation.loop import CURRENT, Process

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

_END = 257
ENVIRONMENT = EnvironmentSettings(
    step_timeout_s=5.0,
    request_deadline_s=4.0,
    turn_deadline_s=60.0,
    send_deadline_s=8.0,
    read_deadline_s=8.0,
    turn_away_s=3.0,
    drain_s=2.0,
    verdict_deadline_s=20.0,
)
INFERENCE = InferenceSettings(
    engine=EngineKind.SCRIPTED,
    commit_tokens=3,
    commit_interval_ms=20,
    request_deadline_s=20.0,
    open_deadline_s=10.0,
    drain_s=2.0,
)


class SimEngine:
    """Samples letters; attests its version; can die and be started again. An `inference.Engine`."""

    def __init__(self, world: World, watch: Watch, chance: random.Random) -> None:
        """Not started."""
        self._world, self._watch, self._chance = world, watch, chance
        self._aborted: set[str] = set()
        self._open = asyncio.Event()
        self._starts = 0
        self.version = Version(0, 0)
        self.context_max = 4096
        self.alive = False

    async def start(self) -> None:
        """Take requests under the starting weights."""
        await asyncio.sleep(0.05)
        self._starts += 1
        self.version, self.alive = Version(0, 0), True
        self._open.set()

    async def stop(self) -> None:
        """Take no more."""
        self.die()

    def die(self) -> None:
        """End as a killed engine process does."""
        self.alive = False

    async def abort(self, request_id: str) -> None:
        """End a request early."""
        self._aborted.add(request_id)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Return finite log-probs."""
        return [-0.5] * len(ids)

    async def swap(
        self,
        folder: Path,  # noqa: ARG002  nothing is loaded
        version: Version,
        drained: Callable[[], Awaitable[None]],
    ) -> SwapReport:
        """Change the weights between two tokens."""
        self._open.clear()
        await asyncio.sleep(0.01)
        await drained()
        await asyncio.sleep(0.05)
        if not self.alive:
            raise TransientError("the engine died while loading", boundary=Boundary.ENGINE)
        self._watch.loaded(version)
        self.version = version
        self._open.set()
        return SwapReport(pause_us=60_000, load_us=50_000)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[EngineDelta]:
        """Yield one to seven letters and the end of the turn."""
        start, chance = self._starts, self._chance
        self._watch.decodes(request.request_id, len(request.prompt_ids))
        spans: list[tuple[Version, int, int]] = []
        left = max(1, chance.randint(1, 7) - request.resumed_tokens)
        made = 0
        while True:
            await asyncio.sleep(chance.choice((0.002, 0.01, 0.03, 0.3)))
            await self._open.wait()
            if not self.alive or self._starts != start:
                raise TransientError("the engine died", boundary=Boundary.ENGINE)
            is_aborted = request.request_id in self._aborted
            ids = (
                () if is_aborted else tuple(chance.randrange(97, 123) for _ in range(min(left, 2)))
            )
            left -= len(ids)
            is_last = is_aborted or left <= 0
            ids += (_END,) if is_last and not is_aborted else ()
            if ids:
                spans.append((self.version, made, made + len(ids)))
                made += len(ids)
            yield EngineDelta(
                token_ids=ids,
                logprobs=(-0.5,) * len(ids),
                version=self.version,
                finished=is_last,
                finish_reason=_reason(is_last, is_aborted),
                spans=tuple(spans) if is_last else None,
            )
            if is_last:
                return


def _reason(is_last: bool, is_aborted: bool) -> FinishReason:
    if is_aborted:
        return FinishReason.ABORT
    return FinishReason.STOP if is_last else FinishReason.NONE


class Listening:
    """One gateway on the network, and what it is answering."""

    def __init__(
        self, world: World, watch: Watch, process: Process, service: InferenceService
    ) -> None:
        """Answer until the process dies."""
        self._world, self._watch = world, watch
        self.process = process
        self._service = service
        self._answers: dict[asyncio.Future[Any], None] = {}
        process.died.append(self.cut)

    def cut(self) -> None:
        """Break the connections: callers see an error, the work goes on unless the process is
        dead.
        """
        for answer in self._answers:
            if not answer.done():
                answer.set_result(_away("reset", "the connection was cut"))
        self._answers.clear()

    def ask(self, path: str, token: str, body: dict[str, Any]) -> asyncio.Future[Any]:
        """Hand a request over; the answer comes, or the connection breaks."""
        answer: asyncio.Future[Any] = self._world.loop.create_future()
        self._answers[answer] = None
        context = self.process.context.copy()
        work = self._handle(path, token, body, answer)
        context.run(lambda: self._world.loop.create_task(work, context=context))
        return answer

    async def _handle(
        self, path: str, token: str, body: dict[str, Any], answer: asyncio.Future[Any]
    ) -> None:
        gateway = self._service.gateway
        episode, attempt = read(b"secret", token)
        caller = Caller(episode_id=episode, attempt=attempt)
        given: Any
        try:
            if path == "/v1/sessions":
                gateway._must_take()
                deadline = gateway._deadline(gateway._limits.open_ms, "the session")
                opening = read_open(body, caller)
                session = await self._service.sessions.open(opening, deadline=deadline)
                given = gateway._describe(session)
                self._watch.described(caller, given)
            else:
                response: Any = await gateway._turn(None, read_turn(body, caller, kind="chat"))  # type: ignore[arg-type]
                given = orjson.loads(response.body)
                self._watch.answered(caller, given["sluice"])
        except RefusedError as refused:
            given = _refusal(refused.code.status, refused.body())
        except SluiceError as error:
            given = _refusal(503, RefusedError(Code.ENGINE_FAILED, error.message).body())
        self._answers.pop(answer, None)
        if not answer.done():
            answer.set_result(given)


class SimGatewayClient(GatewayClient):
    """The real client on a network that may hand it the answer to a request it has given up, as if
    it were the answer to its next one.
    """

    def __init__(self, *, clock: Any, secret: bytes, model: str, connect_timeout_s: float) -> None:  # noqa: ARG002
        """Open nothing."""
        self._clock, self._secret, self._model = clock, secret, model
        self._late: dict[tuple[str, str], list[asyncio.Future[Any]]] = defaultdict(list)
        """Answers to come to requests that were given up, by path and token."""

    async def close(self) -> None:
        """Hold nothing."""

    async def _exchange(
        self,
        url: str,
        token: str,
        parent: str,  # noqa: ARG002  nothing is traced
        body: dict[str, Any],
    ) -> dict[str, Any] | Refusal:
        world = NOW[0]
        await asyncio.sleep(0.001 + 0.005 * world.chance.random())
        head, _, path = url.partition("/v1/")
        server = world.servers.get(head)
        if server is None or not server.process.is_alive:
            return _away("unreachable", url)
        asked = server.ask(f"/v1/{path}", token, body)
        late = self._late[path, token]
        try:
            if late:
                await asyncio.wait((asked, *late), return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait((asked,))
        except asyncio.CancelledError:
            late.append(asked)
            raise
        # A late answer is handed out once; what it stood in for is never heard.
        first = next((one for one in late if one.done()), asked)
        late.clear()
        given: dict[str, Any] | Refusal = first.result()
        await asyncio.sleep(0.001 + 0.005 * world.chance.random())
        return given


NOW: list[Any] = []
"""The world of the history that runs: one at a time."""


class SimPackage:
    """A task whose turns and calls follow from its ordinal."""

    def environment(self, task: Task) -> SimEnvironment:
        """Return a new episode."""
        return SimEnvironment(task)


class SimEnvironment:
    """Some turns, some of them with a call of a tool outside."""

    def __init__(self, task: Task) -> None:
        """Draw the plan; it is the same in every attempt."""
        chance = random.Random(task.seed)
        self._turns = chance.choice((1, 2, 3, 4))
        self._calls = [chance.random() < 0.7 for _ in range(self._turns)]
        kind = chance.choice(("counter", "counter", "ledger", "scratch"))
        self._tool = Tool(
            name=kind,
            description="",
            parameters={},
            idempotent=kind == "scratch",
            external=kind != "scratch",
            timeout_s=4.0,
            announced=False,
            asks_by_key=kind == "ledger",
        )
        self._turn = 0

    async def reset(self) -> Opening:
        """Begin."""
        await asyncio.sleep(0.01)
        return Opening(messages=(Message(role="user", content="go"),), tools=(self._tool,))

    async def act(self, reply: Reply) -> Step:  # noqa: ARG002  the plan decides
        """Call, go on or end."""
        await asyncio.sleep(0.005)
        turn, self._turn = self._turn, self._turn + 1
        if self._calls[turn]:
            return CallTools(calls=(ToolCall(id="c", name=self._tool.name, arguments="{}"),))
        return self._after()

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:  # noqa: ARG002
        """Go on after the call."""
        await asyncio.sleep(0.005)
        return self._after()

    def _after(self) -> Step:
        if self._turn >= self._turns:
            return Done(cause=StopCause.POLICY_STOP)
        return Continue(messages=(Message(role="user", content="on"),))

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:  # noqa: ARG002
        """Reach the outside; a kill may fall before or after its effect."""
        world: World = NOW[0]
        await asyncio.sleep(world.chance.choice((0.005, 0.05, 0.5)))
        world.watch.runs(key, attempt)
        output = world.outside.serve(key, attempt, is_idempotent=self._tool.idempotent)
        world.tell(f"tool {key} runs for attempt {attempt}")
        await asyncio.sleep(world.chance.choice((0.005, 0.05, 0.5)))
        return ToolOutput(output=output)

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:  # noqa: ARG002
        """Ask the outside."""
        world: World = NOW[0]
        await asyncio.sleep(0.02)
        output = world.outside.ask(key, attempt)
        return None if output is None else ToolOutput(output=output)

    async def close(self) -> None:
        """Hold nothing."""


def listen(service: InferenceService, world: World, watch: Watch) -> str:
    """Put a worker's gateway on the network and return its address."""
    process = CURRENT.get()
    assert process is not None
    address = f"sim://{process.incarnation}"
    world.servers[address] = Listening(world, watch, process, service)
    return address


async def serve_inference(context: Context, world: World, watch: Watch) -> None:
    """Run the real inference worker with a simulated engine."""
    from inference.worker import run

    engine = SimEngine(world, watch, random.Random(world.chance.random()))
    world.roles[context.worker_id].engine = engine
    await run(context, INFERENCE, engine=engine)


async def serve_environment(context: Context, world: World) -> None:
    """Run the real environment worker."""
    from environments.worker import run

    await run(context, ENVIRONMENT, codec=world.codec)  # type: ignore[arg-type]  # frames by reference
