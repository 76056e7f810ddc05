"""The tracer: reads what the run writes and sends spans to a collector.

Consumes: `episodes`, `tokens`, `tool-events`, `verdicts`, `trajectories`, `gate-decisions`,
`learner-steps`, `policies`, `refreshes`, from the run's Start or from where the file in the run's
folder says. Produces: spans, and nothing on the bus. Waits for: records, at most `interval_s`; the
collector, inside `retry_s`. Unblocked by: records, the collector's answer or the deadline, the stop
signal. What is given up is told once the ends that the topics had then are read.

Invariants: nothing of the run waits for it; while a batch is being sent nothing is read, so a slow
collector slows the reading and no queue grows; the file moves only behind spans that were sent or
given up, so that a kill repeats spans under the same ids and loses none; an episode that was given
up is told once everything is read that stood on the topics when that was known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.exporter import catalogue as of
from infra.exporter.instruments import Instruments
from infra.tracing.core.fold import READ, Place, TraceFold
from infra.tracing.core.spans import Span
from infra.tracing.place import Kept, read_place, write_place
from infra.tracing.settings import TracingSection
from schemas.deadline import Deadline
from schemas.errors import SettingsError, TransientError
from schemas.ids import EpisodeId
from schemas.ports import Context, Delivered, LogReader
from schemas.topics import LEARNER_STEPS
from stream_jobs.reading import all_starts

_LOG = logging.getLogger("sluice.tracer")
_POLL_MAX = 1_000
_KEEP_EVERY_MS = 5_000
_DRAIN_POLL_S = 0.2
_AGAIN_S = 5.0
_BEHIND_MS = 60_000


class Sender(Protocol):
    """Takes batches of spans."""

    async def send(self, spans: list[Span]) -> bool:
        """Return whether the batch was taken."""
        ...


async def run(
    context: Context, settings: TracingSection, *, instruments: Instruments, folder: Path
) -> None:
    """Send spans until asked to stop. folder: the run's own.

    Raises SettingsError when the run names no endpoint or OpenTelemetry is not installed.
    """
    if not settings.endpoint:
        raise SettingsError(
            "tracing.endpoint is empty, so there is nowhere to send spans",
            hint="set it before the run: --set tracing.endpoint=http://127.0.0.1:4318/v1/traces",
        )
    try:
        # Imported by the one role that needs it.
        from infra.tracing.otlp import Collector
    except ImportError as error:
        raise SettingsError(
            f"tracing.endpoint is set, but {error.name} is not installed",
            hint="install the extra `stream`, or run without an endpoint",
        ) from error
    collector = Collector(
        settings.endpoint,
        resource={"service.name": settings.service_name, "sluice.run_id": context.run_id},
        retry_s=settings.retry_s,
    )
    place = folder / "tracing.json"
    try:
        await persevere(
            context, instruments, lambda: Tracer(context, settings, collector, instruments, place)
        )
    finally:
        collector.close()


async def persevere(context: Context, instruments: Instruments, make: Callable[[], Tracer]) -> None:
    """Trace until asked to stop, whatever happens: a process that keeps dying would end the run.

    After trouble of the machine it begins anew where the place says; after anything else it does
    nothing more, and says so.
    """
    while not context.stop.is_set():
        try:
            await make().run()
        except TransientError as error:
            instruments.add(of.TRACES_TROUBLE, 1.0, "begun_anew")
            _LOG.warning("beginning anew in %.0f s: %s", _AGAIN_S, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await context.stop.wait()
        except Exception:  # noqa: BLE001  no fault of tracing may end a run
            instruments.add(of.TRACES_TROUBLE, 1.0, "stopped")
            _LOG.exception("no more spans are sent of this run; the run itself goes on")
            await context.stop.wait()


@dataclass(slots=True, kw_only=True)
class _Awaited:
    """Ripe episodes are told once all that stood on the topics when they were ripe was read."""

    ripe: frozenset[EpisodeId]
    ends: Mapping[Place, int]
    until: Deadline
    """When to say that it takes long. The ends stand still and reading goes on, so it ends."""


class Tracer:
    """The loop of one run."""

    def __init__(
        self,
        context: Context,
        settings: TracingSection,
        sender: Sender,
        instruments: Instruments,
        place: Path,
    ) -> None:
        self._context, self._settings = context, settings
        self._sender, self._instruments, self._place = sender, instruments, place
        self._waiting: deque[Span] = deque()
        self._fold: TraceFold
        self._reader: LogReader
        self._sent_ms = 0
        self._kept_ms = 0
        self._counted = (0, 0)
        self._awaited: _Awaited | None = None
        self._looked_ms = 0
        self._ending: Deadline | None = None
        self.poisoned = 0
        """Records that could not be decoded, which the sink buries, or told. Unit: records."""
        self.sent = 0
        self.given_up = 0
        """Spans that no collector took. Unit: spans."""

    @property
    def positions(self) -> Mapping[Place, int]:
        """The next offset to read of each (topic, partition)."""
        return self._reader.positions()

    async def run(self) -> None:
        """Read and send until asked to stop, then what stands on the topics, inside `drain_s`."""
        await self._open()
        try:
            while not self._context.stop.is_set():
                await self._look(self._settings.interval_s)
                await self._send(all_of_it=False)
            await self._drain()
        finally:
            await self._reader.close()
        _LOG.info("%d spans sent, %d given up", self.sent, self.given_up)

    async def _open(self) -> None:
        starts = await all_starts(self._context, READ)
        kept = read_place(self._place)
        judged_only: dict[tuple[str, int], int] = {}
        begin: dict[tuple[str, int], int] = {}
        for topic, partitions in starts.items():
            for partition, start in partitions.items():
                place = topic.name, partition
                floor = max(start, kept.floors.get(place, start))
                # What counts in the learner's log is known from its start only.
                begin[place] = start if topic is LEARNER_STEPS else floor
                judged_only |= {place: floor} if topic is LEARNER_STEPS else {}
        self._fold = TraceFold(
            self._context.run_id,
            open_max=self._settings.open_max,
            sample_ratio=self._settings.sample_ratio,
            fences=kept.fences,
            judged_only=judged_only,
        )
        self._reader = self._context.consumers.reader(
            {t: {p: begin[t.name, p] for p in partitions} for t, partitions in starts.items()}
        )
        self._sent_ms = self._kept_ms = self._looked_ms = self._now_ms()

    async def _look(self, timeout_s: float) -> int:
        """Take what is there unless too much waits; return how many records came."""
        if len(self._waiting) >= self._settings.queue_spans_max:
            return 0
        messages = await self._reader.poll(records_max=_POLL_MAX, timeout_s=timeout_s)
        for message in messages:
            if not isinstance(message, Delivered):
                self.poisoned += 1
            elif message.record.run_id == self._context.run_id:
                self._take(message)
        await self._catch_up()
        return len(messages)

    async def _catch_up(self) -> None:
        """Tell episodes about which nothing more is expected once what stood on the topics is read.

        That the topics hold nothing more for now does not say so: a broker answers for one
        partition after the other.
        """
        now_ms = self._now_ms()
        if (awaited := self._awaited) is None:
            is_due = now_ms - self._looked_ms >= self._settings.interval_s * 1000
            if not (is_due or self._ending) or not (ripe := self._fold.ripe()):
                return
            self._looked_ms = now_ms
            awaited = self._awaited = _Awaited(
                ripe=ripe, ends=await self._ends(), until=_behind(now_ms)
            )
        if self._has_read(awaited.ends):
            self._waiting.extend(self._fold.caught_up(awaited.ripe))
            self._awaited = None
        elif awaited.until.is_over(now_ms=now_ms):
            missing = sum(
                max(0, end - self.positions.get(place, end)) for place, end in awaited.ends.items()
            )
            _LOG.warning(
                "still waiting for %s: %d records are to be read before %d episodes are told",
                awaited.until.waiting_for, missing, len(awaited.ripe),
            )  # fmt: skip
            awaited.until = _behind(now_ms)

    async def _ends(self) -> dict[Place, int]:
        """Return the ends of all topics that are read, one after the other."""
        return {
            (topic.name, partition): end
            for topic in READ
            for partition, end in (await self._reader.ends(topic)).items()
        }

    def _has_read(self, ends: Mapping[Place, int]) -> bool:
        positions = self._reader.positions()
        return all(positions.get(place, end) >= end for place, end in ends.items())

    def _take(self, message: Delivered[Any]) -> None:
        try:
            self._waiting.extend(self._fold.take(message))
        except ValueError as error:
            # It decodes but names what cannot be, such as version -1/0: it costs its own spans.
            self.poisoned += 1
            _LOG.warning("%s/%d at %d: %s", message.topic, message.partition, message.offset, error)

    async def _send(self, *, all_of_it: bool) -> None:
        """Send full batches, and the rest when it has waited; then keep the place."""
        settings = self._settings
        due = all_of_it or self._now_ms() - self._sent_ms >= settings.interval_s * 1000
        while len(self._waiting) >= settings.batch_spans or (due and self._waiting):
            batch = [self._waiting[at] for at in range(self._next_batch())]
            taken = await self._unless_stopped(batch)
            if taken is None:
                return
            for _ in batch:
                self._waiting.popleft()
            self._count(len(batch), taken=taken)
            self._sent_ms = self._now_ms()
        if not self._waiting:
            self._keep(now=all_of_it)

    def _next_batch(self) -> int:
        return min(len(self._waiting), self._settings.batch_spans)

    async def _unless_stopped(self, batch: list[Span]) -> bool | None:
        """Send a batch; None when there is no answer by the end of what a stop leaves."""
        sending = asyncio.ensure_future(self._sender.send(batch))
        stopping = asyncio.ensure_future(self._context.stop.wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await asyncio.wait(
                    {sending}, timeout=self._end().left_ms(now_ms=self._now_ms()) / 1000
                )
            return sending.result() if sending.done() else None
        finally:
            sending.cancel()
            stopping.cancel()

    async def _drain(self) -> None:
        """Take and send what stands on the topics now, inside `drain_s`."""
        deadline = self._end()
        ends = await self._ends()
        while not deadline.is_over(now_ms=self._now_ms()):
            is_read = self._has_read(ends) and self._awaited is None and not self._fold.ripe()
            await self._send(all_of_it=True)
            if is_read and not self._waiting:
                return
            await self._look(min(_DRAIN_POLL_S, self._settings.interval_s))
        _LOG.warning(
            "gave up on %s; the next start sends the %d that wait, and what follows",
            deadline.waiting_for, len(self._waiting),
        )  # fmt: skip

    def _end(self) -> Deadline:
        """Return until when a process that was asked to stop may go on; it begins once."""
        if self._ending is None:
            self._ending = Deadline.after(
                round(self._settings.drain_s * 1000),
                now_ms=self._now_ms(),
                waiting_for="the last spans of the run",
            )
        return self._ending

    def _count(self, spans: int, *, taken: bool) -> None:
        if taken:
            self.sent += spans
        else:
            self.given_up += spans
            _LOG.warning(
                "%d spans given up: the collector at %s did not take them; is it up, and is "
                "tracing.endpoint its full address?", spans, self._settings.endpoint,
            )  # fmt: skip
        self._instruments.add(of.SPANS, float(spans), "sent" if taken else "given_up")

    def _keep(self, *, now: bool) -> None:
        """Keep the place; every span of what lies below it was sent or given up."""
        self._export()
        if not now and self._now_ms() - self._kept_ms < _KEEP_EVERY_MS:
            return
        self._kept_ms = self._now_ms()
        floors = self._fold.floors(self._reader.positions())
        try:
            write_place(self._place, Kept(floors=floors, fences=self._fold.fences()))
        except TransientError as error:
            # An older place only repeats spans, under the same ids.
            _LOG.warning("the place is not kept: %s", error)

    def _export(self) -> None:
        fold = self._fold
        evicted, late = fold.evicted - self._counted[0], fold.late - self._counted[1]
        self._counted = fold.evicted, fold.late
        self._instruments.add(of.TRACES_OPEN, fold.open_count)
        self._instruments.add(of.TRACES_EVICTED, evicted)
        self._instruments.add(of.TRACES_LATE, late)

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()


def _behind(now_ms: int) -> Deadline:
    return Deadline.after(_BEHIND_MS, now_ms=now_ms, waiting_for="the ends of the topics")
