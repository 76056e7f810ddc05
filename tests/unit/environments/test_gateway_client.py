"""What an environment tells the gateway beside its request."""

from __future__ import annotations

import pytest
from aiohttp import web

from environments.core.episode_commands import AskGateway, OpenSession
from environments.gateway_client import GatewayClient, Refusal
from environments.lease_facts import Lease
from schemas.enums import EpisodeEventKind, Purpose, Role, WorkerStatus
from schemas.ids import RunId, TaskId, WorkerId, episode_id, group_id
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.records.worker_state import WorkerState
from schemas.tracing import attempt_span, trace_of_episode, traceparent, turn_span
from tests.support.clocks import RealClock
from tests.support.records import within

RUN = RunId("run-1")
EPISODE, GROUP = episode_id(RUN, 4, 1), group_id(RUN, 4)
LEASED = EpisodeEvent(
    run_id=RUN, episode_id=EPISODE, group_id=GROUP, kind=EpisodeEventKind.LEASED, attempt=2,
    at_us=1, writer_id=WorkerId("scheduler-0"),
)  # fmt: skip
LEASE = Lease(
    run_id=RUN, episode_id=EPISODE, group_id=GROUP, attempt=2, lease_ms=60_000, tokens_floor=0,
    tool_events_floor=0, task_frame=b"", partition=0, read_ms=0, age_ms=0, template=LEASED,
)  # fmt: skip
TASK = Task(
    run_id=RUN, task_id=TaskId("t"), group_id=GROUP, ordinal=4, purpose=Purpose.TRAIN,
    environment="counter", at_us=1, writer_id=WorkerId("task-source-0"),
)  # fmt: skip


@pytest.fixture
async def heard() -> tuple[list[str], WorkerState, web.AppRunner]:
    headers: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        headers.append(request.headers["traceparent"])
        return web.json_response({"error": {"code": "busy"}}, status=503)

    app = web.Application()
    app.router.add_post("/v1/{rest:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    worker = WorkerState(
        run_id=RUN, worker_id=WorkerId("inference-0"), role=Role.INFERENCE, incarnation="i",
        address=f"http://{host}:{port}", status=WorkerStatus.READY, at_us=1,
        writer_id=WorkerId("inference-0"),
    )  # fmt: skip
    return headers, worker, runner


async def test_a_request_names_the_span_that_the_log_will_tell_of_it(
    heard: tuple[list[str], WorkerState, web.AppRunner],
) -> None:
    headers, worker, runner = heard
    client = GatewayClient(clock=RealClock(), secret=b"secret", model="m", connect_timeout_s=5.0)
    try:
        opened = await client.open_session(
            worker, LEASE, OpenSession(fence_number=1, first=True), deadline=within(5_000),
            is_gone=lambda: False,
        )  # fmt: skip
        asked = await client.ask(
            worker, LEASE, TASK,
            AskGateway(turn=3, branch=1, fence_number=1, messages=(), tools=(), max_tokens=0,
                       result_offsets=()),
            deadline=within(5_000), is_gone=lambda: False,
        )  # fmt: skip
    finally:
        await client.close()
        await runner.cleanup()
    assert isinstance(opened, Refusal)
    assert isinstance(asked, Refusal)
    trace = trace_of_episode(EPISODE)
    assert headers == [
        traceparent(trace, attempt_span(trace, 2)),
        traceparent(trace, turn_span(trace, 2, 1, 3)),
    ]
