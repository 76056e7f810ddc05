"""Puts the parts of one worker together: tokenizer, engine, WAL writer, sessions and gateway, and
their drain.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from pathlib import Path
from typing import Protocol

from aiohttp import web

from inference.core.commit_cutter import CutterLimits
from inference.engine import Engine
from inference.engine_keeper import EngineKeeper
from inference.gateway import Gateway, GatewayLimits
from inference.generation import Generation
from inference.refusals import Code, RefusedError
from inference.rendering import Renderer, probe
from inference.scripted_engine import ScriptedEngine
from inference.sessions import Session, Sessions
from inference.settings import EngineKind, InferenceSettings
from inference.tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer, tools_digest
from inference.turns import TurnPlanner
from inference.wal_writer import WalWriter
from schemas.deadline import Deadline
from schemas.enums import FinishReason, Role
from schemas.errors import SettingsError
from schemas.ports import Context
from schemas.records.dead_letter import DeadLetter
from schemas.topics import DEAD_LETTERS, TOKENS

_LOG = logging.getLogger(__name__)
_SAMPLED_COMMITS = 16


class Observe(Protocol):
    """Takes a measurement: its name, which ends in the unit, value, unit and labels."""

    def __call__(self, name: str, value: float, unit: str, **labels: str) -> None: ...


class InferenceService:
    """Everything of one worker that serves requests; the worker adds the
    policy's life around it.
    """

    def __init__(
        self,
        context: Context,
        settings: InferenceSettings,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        observe: Observe,
    ) -> None:
        """Raises SettingsError when the chat template is not append-only."""
        probe(tokenizer)
        self._context = context
        self._settings = settings
        self._observe = observe
        self._commits = itertools.count()
        digests = " ".join((tokenizer.digest, tokenizer.template_digest, tools_digest(None)))
        self.writer = WalWriter(
            context,
            digests=digests,
            measure=self._commit_acknowledged,
        )
        self.keeper = EngineKeeper(engine, clock=context.clock, inflight_max=settings.inflight_max)
        self.sessions = Sessions(
            self.writer,
            self.keeper,
            clock=context.clock,
            limits=CutterLimits(
                commit_tokens=settings.commit_tokens,
                commit_interval_us=settings.commit_interval_ms * 1000,
            ),
            sessions_max=settings.sessions_max,
            on_over=self._turn_over,
        )
        planner = TurnPlanner(
            sessions=self.sessions,
            keeper=self.keeper,
            renderer=Renderer(tokenizer),
            tokenizer=tokenizer,
            clock=context.clock,
            turn_tokens_max=settings.turn_tokens_max,
            queued_max=settings.queued_max,
        )
        self.gateway = Gateway(
            sessions=self.sessions,
            planner=planner,
            keeper=self.keeper,
            tokenizer=tokenizer,
            clock=context.clock,
            secret=context.secret,
            limits=GatewayLimits(
                open_ms=round(settings.open_deadline_s * 1000),
                request_ms=round(settings.request_deadline_s * 1000),
                model_name=settings.model_name,
            ),
        )
        self.gateway.observe = observe
        self._runner: web.AppRunner | None = None
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def crashed(self) -> None:
        """Wait for a fault of ours in any turn, and raise it: the process must not go on."""
        await self._crash

    async def listen(self) -> str:
        """Serve the gateway; return its address as a URL. Raises SettingsError when the port is
        taken.
        """
        self._runner = web.AppRunner(
            self.gateway.app(), access_log=None, shutdown_timeout=self._settings.drain_s
        )
        await self._runner.setup()
        host, port = self._settings.listen_host, self._settings.listen_port
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"the gateway cannot listen on {host}:{port}: {error.strerror}",
                hint="choose another listen_port, or 0 for a free one",
            ) from error
        bound = self._runner.addresses[0][1]
        return f"http://{self._settings.advertise_host or host}:{bound}"

    async def drain(self) -> int:
        """Take nothing new, commit what was sampled, close; return how many
        commits stay unsettled.
        """
        self.gateway.is_draining = True
        now_ms = self._context.clock.monotonic_ms()
        deadline = Deadline.after(
            round(self._settings.drain_s * 1000), now_ms=now_ms, waiting_for="the drain"
        )
        await self.sessions.suspend(timeout_s=self._settings.drain_s / 2)
        self.keeper.hold("draining")
        left = await self.writer.close(deadline=deadline)
        await self.keeper.stop()
        if self._runner is not None:
            left_ms = deadline.left_ms(now_ms=self._context.clock.monotonic_ms())
            try:
                async with asyncio.timeout(left_ms / 1000 + 1.0):
                    await self._runner.cleanup()
            except TimeoutError:
                _LOG.warning("some connections were still open when the drain ended")
        return left

    def _commit_acknowledged(self, latency_us: int) -> None:
        # Every commit's own record carries its times; a sample is enough for the live view.
        if next(self._commits) % _SAMPLED_COMMITS == 0:
            self._observe("commit_latency_us", float(latency_us), "us")

    def _turn_over(self, session: Session, generation: Generation) -> None:
        task = session.task
        error = task.exception() if task is not None and not task.cancelled() else None
        if error is not None:
            generation.fail(
                RefusedError(Code.ENGINE_FAILED, f"a fault of the worker: {error}", hint="its log")
            )
            if not self._crash.done():
                self._crash.set_exception(error)
        elif generation.quarantine is not None:
            self._bury(session, generation)
        elif generation.finish_reason is not FinishReason.NONE:
            gap_us = generation.pace.inter_token_us
            if gap_us is not None:
                self._observe("inter_token_us", gap_us, "us")

    def _bury(self, session: Session, generation: Generation) -> None:
        """Keep a quarantined call as a dead letter, with the log-probs as they came."""
        kept = generation.quarantine
        assert kept is not None, "only quarantined calls are buried"
        identity = session.stream.identity
        evidence = {
            "episode_id": identity.episode_id,
            "attempt": identity.attempt,
            "fence_number": identity.fence_number,
            "branch": generation.spec.branch,
            "turn": generation.spec.turn,
            "start": generation.spec.start,
            "request_id": kept.request_id,
            "version": str(kept.version),
            "token_ids": list(kept.token_ids),
            # As text: JSON has no NaN, and a null would hide what was wrong.
            "last_logprobs": [repr(value) for value in kept.logprobs],
        }
        _LOG.error("quarantined %s of %s: %s", kept.request_id, identity.episode_id, kept.why)
        self._observe("quarantined_calls", 1.0, "calls", code=kept.code.value)
        self._context.producer.offer(
            DEAD_LETTERS,
            DeadLetter(
                run_id=self._context.run_id,
                origin_topic=TOKENS.name,
                origin_partition=identity.partition,
                origin_offset=session.stream.last_offset,
                origin_key=identity.episode_id.encode(),
                raw=json.dumps(evidence).encode(),
                error_class=kept.code.value,
                error=f"{kept.why}; the whole call was taken back",
                consumer=Role.INFERENCE.value,
                at_us=self._context.clock.now_us(),
                writer_id=self._context.worker_id,
            ),
        )


def make_tokenizer(settings: InferenceSettings) -> Tokenizer:
    """Return the tokenizer of the model folder; the scripted engine has bytes if it is told so, or
    has no folder.
    """
    if settings.engine is EngineKind.SCRIPTED and settings.scripted.byte_tokenizer:
        return ByteTokenizer()
    if settings.model_path:
        return ModelTokenizer(Path(settings.model_path).expanduser())
    if settings.engine is EngineKind.SCRIPTED:
        return ByteTokenizer()
    raise SettingsError(
        "inference.model_path is empty", hint="name the folder with the starting weights"
    )


def make_engine(settings: InferenceSettings, tokenizer: Tokenizer, context: Context) -> Engine:
    """Return the engine that the settings name, not yet started; vLLM is imported only when it is
    named.
    """
    match settings.engine:
        case EngineKind.SCRIPTED:
            return ScriptedEngine(
                settings.scripted,
                tokenizer=tokenizer,
                context_max=settings.context_max,
                clock=context.clock,
            )
        case EngineKind.VLLM:
            from inference.vllm_engine import VllmEngine

            return VllmEngine(settings)
