"""One inference worker: an engine behind the gateway, its token WAL writer, and the policy it
follows.

Consumes: HTTP of environments; policies.v1, refreshes.v1, learner-steps.v1; tokens.v1 up to a
fence. Produces: tokens.v1, refreshes.v1, workers.v1, dead-letters.v1, metrics.v1. Waits for:
requests, the engine, acknowledgements, and before it is ready for its version to be in the
registry. Unblocked by: each of these inside its deadline, or the stop signal, on which it commits
what was sampled and ends.
"""

from __future__ import annotations

import asyncio
import logging

from inference.engine import Engine
from inference.policy_follower import PolicyFollower
from inference.service import InferenceService, make_engine, make_tokenizer
from inference.settings import EngineKind, InferenceSettings
from producers.metrics import Metrics
from producers.presence import Presence
from schemas.enums import Role, WorkerStatus
from schemas.ports import Context

_LOG = logging.getLogger(__name__)
_STATE_S = 0.25


async def run(
    context: Context, settings: InferenceSettings, *, engine: Engine | None = None
) -> None:
    """Serve until the stop signal; `engine` replaces the one that the settings name, for tests.

    Raises SettingsError when model, template or port are unusable, and what ends the engine for
    good.
    """
    tokenizer = make_tokenizer(settings)
    metrics = Metrics(context)
    service = InferenceService(
        context,
        settings,
        engine=engine or make_engine(settings, tokenizer, context),
        tokenizer=tokenizer,
        observe=metrics.observe,
    )
    address = await service.listen()
    presence = Presence(context, Role.INFERENCE, address, settings.inflight_max)
    await presence.announce(WorkerStatus.STARTING, detail="the engine is starting")
    try:
        failed = await _serve(context, settings, service, presence)
    finally:
        await presence.announce(WorkerStatus.DRAINING)
        left = await service.drain()
    detail = f"{left} commits unsettled" if left else str(failed or "")
    status = WorkerStatus.FAILED if failed else WorkerStatus.STOPPED
    await presence.announce(status, detail=detail)
    if failed is not None:
        raise failed


async def _serve(
    context: Context, settings: InferenceSettings, service: InferenceService, presence: Presence
) -> BaseException | None:
    """Start the engine and serve until the stop signal; return the error that ended it, if any."""
    starting = asyncio.create_task(service.keeper.start(), name="engine start")
    stop = asyncio.create_task(_stopped(context), name="stop signal")
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None
    if starting.exception() is not None:
        return starting.exception()
    keeper = service.keeper

    async def changed(detail: str) -> None:
        await presence.announce(WorkerStatus.READY, keeper.version, detail)

    follower = PolicyFollower(
        context,
        keeper,
        inflight=lambda: service.sessions.busy,
        interrupt=service.sessions.interrupt,
        on_change=changed,
        refresh_timeout_s=settings.refresh_timeout_s,
        checks_files=settings.engine is not EngineKind.SCRIPTED,
        probe_tolerance_nats=settings.probe_tolerance_nats,
    )
    return await _until_stopped(context, service, follower, presence)


async def _until_stopped(
    context: Context, service: InferenceService, follower: PolicyFollower, presence: Presence
) -> BaseException | None:
    """Run the worker's loops until the stop signal or the first that fails; return its error."""
    loops = [
        asyncio.create_task(service.keeper.watch(), name="engine watch"),
        asyncio.create_task(follower.run(), name="policy follower"),
        asyncio.create_task(_tell_state(service, presence, follower), name="worker state"),
        asyncio.create_task(service.crashed(), name="fault of ours"),
    ]
    stop = asyncio.create_task(_stopped(context), name="stop signal")
    done, _ = await asyncio.wait({*loops, stop}, return_when=asyncio.FIRST_COMPLETED)
    for task in (*loops, stop):
        task.cancel()
    await asyncio.gather(*loops, stop, return_exceptions=True)
    return next((t.exception() for t in done if not t.cancelled() and t.exception()), None)


async def _stopped(context: Context) -> None:
    await context.stop.wait()


async def _tell_state(
    service: InferenceService, presence: Presence, follower: PolicyFollower
) -> None:
    """Announce that the worker serves, once its version is in the registry: no token may name one
    that is not. Then announce what the engine was caught at and when it was restarted, as soon as
    that changes.
    """
    keeper = service.keeper
    if not follower.published.is_set():
        detail = f"waits for version {keeper.version} to be published"
        await presence.announce(WorkerStatus.STARTING, detail=detail)
        await follower.published.wait()
    await presence.announce(WorkerStatus.READY, keeper.version)
    _LOG.info("serving version %s", keeper.version)
    # The version is the follower's to tell, once it was probed; the engine's runs ahead of that.
    told = (dict(keeper.flags), keeper.restarts)
    while True:
        await asyncio.sleep(_STATE_S)
        now = (dict(keeper.flags), keeper.restarts)
        if now == told:
            continue
        told = now
        flags = ", ".join(f"{what} x{count}" for what, count in sorted(keeper.flags.items()))
        parts = [f"engine flagged: {flags}"] if flags else []
        parts += [f"engine restarted {keeper.restarts} times"] if keeper.restarts else []
        await presence.announce(WorkerStatus.READY, detail="; ".join(parts))
