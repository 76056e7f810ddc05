"""Buffer age and policy lag as streams, on faust, while the run goes on.

Consumes: `trajectories`, `gate-decisions`, `learner-steps`, `policies`, from the run's Start, under
a group of this process start alone. Produces: MetricPoint on `metrics`; dead letters; WorkerState.
Waits for: the first assignment (`start_deadline_s`), records, the timer. Unblocked by: records, the
stop signal, or the watchdog, which ends the process with TransientError when the topics move on and
the reading does not: faust workers are known to go deaf while they stay alive.

Invariants: what is emitted is derived and never read back by a job; a redelivered record is left
out by its offset; only steps that were written since this process started are told as consumed, so
that a restart counts nothing twice (`trained_members` in the tables holds all of them).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.dead_letters import bury
from producers.metrics import Metrics
from producers.presence import Presence
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import Role, WorkerStatus
from schemas.errors import (
    Boundary,
    BusUnreachableError,
    InvariantError,
    PoisonRecordError,
    SluiceError,
    TransientError,
)
from schemas.ports import Context, Poisoned
from schemas.topics import GATE_DECISIONS, LEARNER_STEPS, POLICIES, TRAJECTORIES, Topic
from stream_jobs.core.lag_age import BufferWatch, Consumed, Spread
from stream_jobs.core.stillness import Stillness
from stream_jobs.reading import all_starts
from stream_jobs.sink_settings import LagAgeSettings

_LOG = logging.getLogger("sluice.lag_age")
_READ: tuple[Topic[Any], ...] = (POLICIES, LEARNER_STEPS, GATE_DECISIONS, TRAJECTORIES)
_STOP_S = 8.0
_TICK_S = 0.25
_CHECKS = 6


async def run(
    context: Context, settings: LagAgeSettings, *, codec: Codec, bootstrap: str, prefix: str
) -> None:
    """Emit samples until asked to stop; raise TransientError when the reading stands still."""
    job = LagAge(context, settings, codec)
    presence = Presence(context, Role.LAG_AGE)
    starts = await all_starts(context, _READ)
    job.read.update({(t.name, p): offset for t, at in starts.items() for p, offset in at.items()})
    group = f"{prefix}.lag-age.{context.run_id}.{context.incarnation}"
    await commit_starts(
        bootstrap, group, {t.full(prefix): at for t, at in starts.items()},
        limit_s=settings.start_deadline_s,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="sluice-lag-age-") as folder:
        app = make_app(settings, group=group, bootstrap=bootstrap, folder=folder)
        for topic in _READ:
            app.agent(_channel(app, topic, prefix), name=topic.name)(job.agent(topic))
        try:
            await _start(app, settings)
            await presence.announce(WorkerStatus.READY)
            await job.watch(app)
            await presence.announce(WorkerStatus.STOPPED)
        finally:
            await _stop(app)


def make_app(settings: LagAgeSettings, *, group: str, bootstrap: str, folder: str) -> faust.App:
    """Return a faust app that only reads: no tables, no web, no topics of its own."""
    return faust.App(
        group,
        broker=";".join(f"kafka://{one.strip()}" for one in bootstrap.split(",")),
        store="memory://",
        datadir=folder,
        autodiscover=False,
        processing_guarantee="at_least_once",
        broker_commit_interval=1.0,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.session_timeout_s / 4,
        broker_max_poll_interval=300.0,
        consumer_auto_offset_reset="earliest",
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        web_tables_enabled=False,
        web_bind="127.0.0.1",
        value_serializer="raw",
        key_serializer="raw",
    )


async def commit_starts(
    bootstrap: str, group: str, starts: Mapping[str, Mapping[int, int]], *, limit_s: float
) -> None:
    """Commit where a group begins, before any member joins it; else it would read every run.

    starts: full topic name to partition to offset. Raises BusUnreachableError past `limit_s`.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    offsets = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "")
        for topic, at in starts.items()
        for partition, offset in at.items()
    }
    try:
        async with asyncio.timeout(limit_s):
            await consumer.start()
            try:
                consumer.assign(list(offsets))
                await consumer.commit(offsets)
            finally:
                await consumer.stop()
    except (KafkaError, TimeoutError) as error:
        raise BusUnreachableError(
            f"the start offsets of group {group} cannot be committed: {error!r}",
            hint=f"is a broker at {bootstrap}?",
        ) from error


def _channel(app: faust.App, topic: Topic[Any], prefix: str) -> Any:
    return app.topic(topic.full(prefix), key_type=bytes, value_type=bytes, allow_empty=True)


async def _start(app: faust.App, settings: LagAgeSettings) -> None:
    try:
        async with asyncio.timeout(settings.start_deadline_s):
            await app.start()
            while not app.consumer.assignment() or app.rebalancing:
                await asyncio.sleep(_TICK_S)
    except TimeoutError as error:
        raise TransientError(
            f"no assignment within {settings.start_deadline_s:.0f} s", boundary=Boundary.BUS,
            hint="is the group's coordinator up?",
        ) from error  # fmt: skip


async def _stop(app: faust.App) -> None:
    try:
        async with asyncio.timeout(_STOP_S):
            await app.stop()
    except TimeoutError:
        _LOG.warning("faust did not stop within %.0f s; it ends with the process", _STOP_S)


@dataclass(slots=True)
class LagAge:
    """The job of one process: takes events, emits points."""

    context: Context
    settings: LagAgeSettings
    codec: Codec
    buffer: BufferWatch = field(default_factory=BufferWatch)
    read: dict[tuple[str, int], int] = field(default_factory=dict)
    """Next offset to take by topic and partition."""
    poisoned: int = 0
    _failure: SluiceError | None = None
    _started_ms: int = 0

    def agent(self, topic: Topic[Any]) -> Callable[[Any], AsyncIterator[None]]:
        """Return the agent's body for one topic."""

        async def body(stream: Any) -> AsyncIterator[None]:
            async for event in stream.events():
                try:
                    await self._take(topic, event.message)
                except SluiceError as error:
                    self._failure = error
                except Exception as error:  # noqa: BLE001  faust would acknowledge and go on
                    self._failure = InvariantError(f"{topic.name}: {error!r}")
                yield

        body.__name__ = body.__qualname__ = f"on_{topic.schema}"
        return body

    async def _take(self, topic: Topic[Any], message: Any) -> None:
        place = (topic.name, message.partition)
        if message.offset < self.read.get(place, 0) or self._failure is not None:
            return
        timestamp_ms = round(message.timestamp * 1000)
        raw = message.value or b""
        try:
            record = self.codec.decode(topic, raw)
        except PoisonRecordError as error:
            self.poisoned += 1
            await bury(
                self.context, _poisoned(topic, message, timestamp_ms, error), role=Role.LAG_AGE
            )
        else:
            if record.run_id == self.context.run_id:
                self._tell(self._decide(topic, message, timestamp_ms, record))
        self.read[place] = message.offset + 1

    def _decide(
        self, topic: Topic[Any], message: Any, timestamp_ms: int, record: Any
    ) -> Iterable[Consumed]:
        if topic is TRAJECTORIES:
            return self.buffer.take_trajectory(message.partition, timestamp_ms, record)
        if topic is LEARNER_STEPS:
            return self.buffer.take_learner_event(message.offset, timestamp_ms, record)
        if topic is GATE_DECISIONS:
            self.buffer.take_decision(message.partition, message.offset, record)
        else:
            self.buffer.take_policy(record)
        return ()

    def _tell(self, consumed: Iterable[Consumed]) -> None:
        observe = Metrics(self.context).observe
        for one in consumed:
            if one.at_ms < self._started_ms:
                continue
            # Both times are the broker's. The offset is no label: labels come from small sets.
            labels = {
                "environment": one.environment,
                "partition": str(one.partition),
                "clocks": "broker-broker",
            }
            observe("consumed_buffer_age_s", one.age_ms / 1000, "s", **labels)
            if one.lag_steps is not None:
                observe("consumed_policy_lag_steps", one.lag_steps, "updates", **labels)
            if one.lag_ms is not None:
                observe("consumed_policy_lag_s", one.lag_ms / 1000, "s", **labels)

    def _sample(self) -> None:
        sample = self.buffer.sample(now_ms=self.context.clock.now_us() // 1000)
        self._gauges("waiting_buffer_age", "s", sample.age_ms, scale=1000)
        self._gauges("waiting_policy_lag", "steps", sample.lag_steps, scale=1)
        observe = Metrics(self.context).observe
        observe("waiting_trajectories", sample.age_ms.n, "trajectories")
        observe("waiting_unknown_versions", sample.unknown_versions, "trajectories")

    def _gauges(self, name: str, unit: str, values: Spread, *, scale: float) -> None:
        if not values.n:
            return
        observe = Metrics(self.context).observe
        for level in ("p50", "p95", "p99", "max"):
            value = getattr(values, level) / scale
            # This host's clock against the broker's: clocks that disagree show here.
            observe(f"{name}_{level}_{unit}", value, unit, clocks="host-broker")

    async def watch(self, app: faust.App) -> None:
        """Emit samples and look after progress until asked to stop."""
        clock, settings = self.context.clock, self.settings
        self._started_ms = clock.now_us() // 1000
        still = Stillness(limit_ms=round(settings.stuck_s * 1000))
        check_ms = sample_ms = clock.monotonic_ms()
        while not self.context.stop.is_set():
            now_ms = clock.monotonic_ms()
            self._raise_failure(app)
            if now_ms >= sample_ms:
                sample_ms = now_ms + round(settings.emit_interval_s * 1000)
                self._sample()
            if now_ms >= check_ms:
                check_ms = now_ms + round(settings.stuck_s * 1000 / _CHECKS)
                await self._check(still)
            await self._rest(min(sample_ms, check_ms))

    async def _check(self, still: Stillness) -> None:
        ends: dict[tuple[str, int], int] = {}
        for topic in _READ:
            for partition, end in (await self.context.consumers.ends(topic)).items():
                ends[topic.name, partition] = end
        stuck = still.look(
            read={place: self.read.get(place, 0) for place in ends},
            ends=ends,
            now_ms=self.context.clock.monotonic_ms(),
        )
        if stuck:
            topic_name, partition = stuck[0]
            raise TransientError(
                f"{topic_name}/{partition} has records unread for {self.settings.stuck_s:.0f} s",
                boundary=Boundary.BUS,
                hint="the job is started again; a faust worker can go deaf while it lives",
            )

    def _raise_failure(self, app: faust.App) -> None:
        if self._failure is not None:
            raise self._failure
        if app.crashed:
            raise TransientError(f"faust crashed: {app.crash_reason!r}", boundary=Boundary.BUS)

    async def _rest(self, until_ms: int) -> None:
        left_s = (until_ms - self.context.clock.monotonic_ms()) / 1000
        deadline = Deadline.after(
            round(max(_TICK_S, min(left_s, 1.0)) * 1000),
            now_ms=self.context.clock.monotonic_ms(),
            waiting_for="the next sample",
        )
        try:
            async with asyncio.timeout(
                deadline.left_ms(now_ms=self.context.clock.monotonic_ms()) / 1000
            ):
                await self.context.stop.wait()
        except TimeoutError:
            return


def _poisoned(
    topic: Topic[Any], message: Any, timestamp_ms: int, error: PoisonRecordError
) -> Poisoned:
    return Poisoned(
        topic=topic.name,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=timestamp_ms,
        key=message.key,
        raw=message.value or b"",
        schema_id=None,
        error_class=type(error).__name__,
        error=str(error),
    )
