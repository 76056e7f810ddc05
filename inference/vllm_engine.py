"""The real engine: vLLM's AsyncLLM behind the `Engine` protocol.

Invariants: the version of a delta is the one vLLM attests for its step, since outputs are taken
from vLLM at once by one task per request and a change of weights starts only after all of them were
handed out; a load that failed leaves the engine dead, never half new; vLLM is imported in `start`,
in a thread, after its environment was set; its processes end with this one. Waits for: those
processes (start, swap, stop), each inside a budget of `VllmSettings`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from inference.engine import EngineDelta, EngineSpan, GenerateRequest, SwapReport
from inference.model_files import check_model_folder, check_same_tensors
from inference.number_format import with_dtype
from inference.settings import InferenceSettings
from inference.vllm_reaper import Reaper
from inference.vllm_start import check_memory, import_vllm, translated
from schemas.enums import FinishReason
from schemas.errors import Boundary, SettingsError, SluiceError, TransientError
from schemas.ids import Version

_LOG = logging.getLogger(__name__)
_STARTING = Version(0, 0)
_QUIET_ROUNDS = 3
_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class _Stream:
    """One request between vLLM and its reader."""

    __slots__ = ("failure", "last_seen", "queue", "task")

    def __init__(self) -> None:
        # Bounded by the request: each delta holds a token, the last one may hold none.
        self.queue: asyncio.Queue[EngineDelta | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.failure: SluiceError | None = None
        self.last_seen = False


class VllmEngine:
    """Implements `inference.engine.Engine` with one AsyncLLM and its processes."""

    def __init__(self, settings: InferenceSettings) -> None:
        self._settings = with_dtype(settings)
        self._folder = Path(settings.model_path).expanduser()
        self._llm: Any = None
        self._vllm: Any = None
        self._reaper: Reaper | None = None
        self._version = _STARTING
        self._whole = False
        """Whether the weights in the engine are of exactly one version."""
        self._streams: dict[str, _Stream] = {}
        self._swapping = asyncio.Lock()

    @property
    def version(self) -> Version:
        """The version that the next token is sampled under."""
        return self._version

    @property
    def context_max(self) -> int:
        """Prompt and sampled tokens that fit together."""
        return self._settings.context_max

    @property
    def alive(self) -> bool:
        """Whether vLLM's processes run and hold one whole version."""
        return self._llm is not None and self._whole and not self._llm.errored

    async def start(self) -> None:
        """Start vLLM's processes on the starting weights, version 0/0; some 50 s on two cores.

        Raises SettingsError when the model folder, the context or the memory will not do,
        TransientError when vLLM does not come up inside its budget.
        """
        if self._llm is not None:
            await self.stop()
        check_model_folder(self._folder)
        check_memory(self._settings)
        budget_s = self._settings.vllm.start_timeout_s
        try:
            async with asyncio.timeout(budget_s):
                # A thread, since imports and the wait for the processes would hold up the loop.
                self._llm = await self._bring_up()
                await self._llm.update_weight_version(str(_STARTING))
                # The first step sets up kernels for seconds; no request should pay for that.
                await self._score_with(self._llm, [0], [0])
        except TimeoutError as error:
            await self.stop()
            raise TransientError(
                f"vLLM was not ready within {budget_s:.0f} s",
                boundary=Boundary.ENGINE,
                hint="see its log; raise inference.vllm.start_timeout_s on a busy machine",
            ) from error
        except Exception as error:  # whatever vLLM's parts raise; `translated` is this door's table
            await self.stop()
            raise translated(error, "vLLM did not start") from error
        self._version, self._whole = _STARTING, True

    async def _bring_up(self) -> Any:
        self._vllm = await asyncio.to_thread(import_vllm, self._settings)
        self._reaper = Reaper()
        made = asyncio.ensure_future(asyncio.to_thread(self._vllm.make_engine, self._folder))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            # The thread cannot be stopped, but it gives up once its processes are gone.
            made.add_done_callback(_shut_late)
            await asyncio.shield(self._reap())
            raise

    async def generate(self, request: GenerateRequest) -> AsyncIterator[EngineDelta]:
        """Yield the tokens of a request; see the protocol."""
        self._must_live()
        self._must_fit(request)
        stream = _Stream()
        self._streams[request.request_id] = stream
        stream.task = asyncio.get_running_loop().create_task(
            self._pump(request, stream), name=f"vllm {request.request_id}"
        )
        try:
            while (delta := await stream.queue.get()) is not None:
                yield delta
                if delta.finished:
                    return
            raise stream.failure or self._death()
        finally:
            self._streams.pop(request.request_id, None)
            # Cancelling the task makes vLLM abort the request where it still runs.
            stream.task.cancel()

    async def swap(
        self, folder: Path, version: Version, drained: Callable[[], Awaitable[None]]
    ) -> SwapReport:
        """Change the weights in place; see the protocol and design section 5."""
        async with self._swapping:
            self._must_live()
            await asyncio.to_thread(check_same_tensors, self._folder, folder)
            began = time.monotonic()
            # From here until the new version is set, no failure may leave the engine sampling.
            self._whole = False
            try:
                load_us = await self._exchange(folder, version, drained)
            except TimeoutError as error:
                raise TransientError(
                    f"the change to {version} did not end inside its budget",
                    boundary=Boundary.ENGINE,
                    hint="the engine is fenced; start it again",
                ) from error
            except Exception as error:  # whatever a load raises fences the engine; translated
                raise translated(error, f"loading {version} from {folder} failed") from error
            return SwapReport(
                pause_us=round((time.monotonic() - began) * 1e6), load_us=round(load_us)
            )

    async def _exchange(
        self, folder: Path, version: Version, drained: Callable[[], Awaitable[None]]
    ) -> float:
        limits = self._settings.vllm
        async with asyncio.timeout(limits.drain_timeout_s):
            # Clearing the caches makes vLLM compute the kept requests again under the new weights.
            await self._llm.pause_generation(mode="keep", clear_cache=True)
            await self._hand_out()
            await drained()
        async with asyncio.timeout(limits.load_timeout_s):
            reports = await self._llm.collective_rpc("load_policy", args=(str(folder),))
            await self._llm.update_weight_version(str(version))
            self._version, self._whole = version, True
            await self._llm.resume_generation()
        return max(float(report["load_us"]) for report in reports)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each of `ids` after `prompt_ids` at temperature 1, nats."""
        self._must_live()
        try:
            return await self._score_with(self._llm, prompt_ids, ids)
        except Exception as error:  # whatever vLLM's parts raise; translated at this door
            raise translated(error, "scoring failed") from error

    async def _score_with(
        self, llm: Any, prompt_ids: Sequence[int], ids: Sequence[int]
    ) -> list[float]:
        whole, last = [*prompt_ids, *ids], None
        async for out in llm.generate(
            {"prompt_token_ids": whole}, self._vllm.scoring(), f"score-{time.monotonic_ns()}"
        ):
            last = out
        if last is None or last.prompt_logprobs is None:
            raise TransientError("vLLM gave no prompt log-probs", boundary=Boundary.ENGINE)
        rows = last.prompt_logprobs[len(prompt_ids) :]
        return [float(row[i].logprob) for row, i in zip(rows, ids, strict=True)]

    async def abort(self, request_id: str) -> None:
        """End a request early; its stream ends with reason abort."""
        if request_id in self._streams and self.alive:
            await self._llm.abort(request_id)

    async def stop(self) -> None:
        """End vLLM's processes; streams in flight end with TransientError."""
        llm, self._llm, self._whole = self._llm, None, False
        if llm is not None:
            try:
                await asyncio.to_thread(llm.shutdown, self._settings.vllm.stop_timeout_s)
            except (OSError, RuntimeError) as error:
                _LOG.warning("vLLM's shutdown: %s", error)
        await self._reap()
        for stream in tuple(self._streams.values()):
            self._fail(stream, self._death())

    async def _reap(self) -> None:
        """End what vLLM left behind: processes of a start or a shutdown that failed half-way."""
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            await asyncio.to_thread(reaper.close)

    async def _pump(self, request: GenerateRequest, stream: _Stream) -> None:
        """Take a request's outputs from vLLM the moment they come, and stamp them."""
        llm, prompt = self._llm, list(request.prompt_ids)
        try:
            async for out in llm.generate(
                {"prompt_token_ids": prompt}, self._vllm.sampling(request), request.request_id
            ):
                reused = out.num_cached_tokens or 0
                stream.queue.put_nowait(self._delta(out, len(prompt) - reused, reused))
                stream.last_seen = out.finished
            if not stream.last_seen:
                self._fail(stream, self._death())
        except asyncio.CancelledError:
            self._fail(stream, self._death())
            raise
        except Exception as error:  # noqa: BLE001  the reader gets it, translated
            self._fail(stream, translated(error, "the request failed"))

    def _delta(self, out: Any, prefilled: int, reused: int) -> EngineDelta:
        one = out.outputs[0]
        ids = tuple(one.token_ids)
        rows = one.logprobs or ()
        return EngineDelta(
            token_ids=ids,
            # A sampled id without its log-prob is caught by the gateway as a wrong count.
            logprobs=tuple(row[i].logprob for i, row in zip(ids, rows, strict=False) if i in row),
            version=self._version,
            finished=out.finished,
            finish_reason=_REASONS.get(one.finish_reason or "", FinishReason.ABORT)
            if out.finished
            else FinishReason.NONE,
            spans=_spans(one.weight_versions) if out.finished else None,
            prefilled_tokens=prefilled,
            reused_tokens=reused,
        )

    async def _hand_out(self) -> None:
        """Return once every output that vLLM has made is with its reader.

        vLLM answers the pause on the same socket as the outputs, so they have all arrived by now;
        what is left are hops inside this loop. A reader that does not read is not waited for: its
        deltas carry their version.
        """
        arrived = self._llm.engine_core.outputs_queue
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            waiting = arrived.qsize() or any(not s.queue.empty() for s in self._streams.values())
            quiet = 0 if arrived.qsize() else quiet + 1
            await asyncio.sleep(0.001 if waiting else 0)

    def _must_live(self) -> None:
        if not self.alive:
            raise self._death()

    def _must_fit(self, request: GenerateRequest) -> None:
        room = self.context_max - len(request.prompt_ids)
        if not request.prompt_ids or room < 1:
            raise SettingsError(
                f"a prompt of {len(request.prompt_ids)} tokens does not fit into a context of "
                f"{self.context_max}",
                boundary=Boundary.ENGINE,
                hint="shorten the prompt, or raise inference.context_max",
            )

    def _death(self) -> TransientError:
        return TransientError(
            "the vLLM engine is not running",
            boundary=Boundary.ENGINE,
            hint="its processes ended or its weights were fenced; it is started again",
        )

    def _fail(self, stream: _Stream, error: SluiceError) -> None:
        if stream.failure is None and not stream.last_seen:
            stream.failure = error
            stream.queue.put_nowait(None)


def _shut_late(made: asyncio.Future[Any]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().shutdown(0)


def _spans(attested: Any) -> tuple[EngineSpan, ...] | None:
    """Read vLLM's own account; None when it names something that is no policy version."""
    try:
        return tuple((Version.parse(s.version), s.start, s.end) for s in attested or ())
    except ValueError:
        return None
