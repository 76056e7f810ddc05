"""The write door on a real Kafka.

Invariants:
- Every record ends as Acked, Rejected or Unknown; what is in flight when the producer dies, is
renewed
  or is closed is Unknown.
- One topic always goes through one librdkafka producer (a lane), so its records keep their order.
- Futures are touched on the event loop only; the poll thread hands acknowledgements over in
batches.
- A producer does not survive a fork: the child is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, libversion
from confluent_kafka import Producer as Client

from producers.core.backoff import wait_ms
from producers.core.classify import AUTHENTICATION, bus_hint, outcome_of, version_of
from producers.core.config import client_config
from producers.core.routing import check_partitions, key_of, oversize, partition_for
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.errors import (
    Boundary,
    BusUnreachableError,
    InvariantError,
    RejectedError,
    SettingsError,
    UnknownOutcomeError,
)
from schemas.ports import Acked, Acknowledgement, Clock, Rejected, Unknown
from schemas.topics import ALL, Record, Topic

R = TypeVar("R", bound=Record)
Future = asyncio.Future[Acknowledgement]

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_PROBE_S = 1.0
_PURGE_POLLS = 20
_DEAD_POLL_S = 0.05
_JOIN_S = 5.0
QUEUE_FULL = "queue full"


class KafkaProducer:
    """The write door of one process; see `schemas.ports.Producer`."""

    def __init__(self, settings: ProducerSettings, codec: Codec, clock: Clock) -> None:
        """Connect and learn the number of partitions of every topic.

        Blocks for at most `unreachable_ms`. Raises BusUnreachableError when no broker answers,
        SettingsError when topics are missing or differ in their partitions, or when the client
        library is too old.
        """
        _check_client_version(settings.client_version_min)
        self._settings = settings
        self._codec = codec
        self._clock = clock
        self._pid = os.getpid()
        self._names = {topic.name: topic.full(settings.prefix) for topic in ALL}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._retired: list[_Lane] = []
        self._number = 1
        self._is_closed = False
        self._partitions = self._learn_partitions()

    @property
    def number(self) -> int:
        """How often this process has opened a producer, from 1."""
        return self._number

    @property
    def queued(self) -> int:
        """Records handed over and not yet acknowledged."""
        return sum(len(lane.in_flight) for lane in self._lanes.values())

    @property
    def trouble(self) -> str:
        """What the client library last complained of since the last acknowledgement; else empty."""
        return "; ".join(lane.trouble for lane in self._lanes.values() if lane.trouble)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The latest statistics document of each librdkafka producer, as JSON text."""
        return tuple(lane.statistics for lane in self._lanes.values() if lane.statistics)

    def offer(self, topic: Topic[R], record: R, *, partition: int | None = None) -> Future:
        """Hand a record over without waiting; see `schemas.ports.Producer.offer`.

        Raises FieldTypeError for a value that the schema does not allow, InvariantError after a
        fork.
        """
        if os.getpid() != self._pid:
            raise InvariantError(
                "this producer was opened before a fork and does not live in the child",
                boundary=Boundary.BUS, hint="spawn the child, or open producers after the fork",
            )  # fmt: skip
        raw = self._codec.encode(topic, record)
        if (refusal := oversize(topic, len(raw))) is not None:
            return _refused(refusal)
        if self._is_closed:
            return _refused("the producer is closed")
        if partition is None:
            partition = partition_for(topic, record, self._partitions[topic.name])
        return self._lane(topic).offer(topic.name, partition, key_of(topic, record), raw)

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait; see `schemas.ports.Producer.send`."""
        tries = 0
        while True:
            pending = self.offer(topic, record, partition=partition)
            left_ms = deadline.left_ms(now_ms=self._clock.monotonic_ms())
            # Not awaited itself: when the caller is cancelled, the acknowledgement still comes.
            await asyncio.wait((pending,), timeout=left_ms / 1000)
            if not pending.done():
                raise UnknownOutcomeError(
                    f"gave up on {deadline.waiting_for}: no acknowledgement on {topic.name}",
                    boundary=Boundary.BUS, hint=self.trouble or "fence, then read up to the fence",
                )  # fmt: skip
            match pending.result():
                case Acked() as acked:
                    return acked
                case Rejected(reason) if reason.startswith(QUEUE_FULL) and left_ms > 0:
                    tries += 1
                    await asyncio.sleep(wait_ms(tries, left_ms=left_ms) / 1000)
                case Rejected(reason):
                    raise RejectedError(f"{topic.name}: {reason}", boundary=Boundary.BUS)
                case Unknown(reason):
                    raise UnknownOutcomeError(
                        f"{topic.name}: {reason}", boundary=Boundary.BUS,
                        hint=self.trouble or "fence, then read up to the fence",
                    )  # fmt: skip

    async def renew(self) -> None:
        """Discard every lane (in flight: Unknown); the next offer opens new ones."""
        self._retire("the producer was renewed")
        self._number += 1
        await asyncio.sleep(0)

    async def close(self, *, deadline: Deadline) -> int:
        """Wait for what is in flight inside the deadline; return how many records stay Unknown."""
        self._is_closed = True
        waiting = [future for lane in self._lanes.values() for future in lane.in_flight]
        left_ms = deadline.left_ms(now_ms=self._clock.monotonic_ms())
        if waiting:
            await asyncio.wait(waiting, timeout=left_ms / 1000)
        unknown = self._retire("the producer was closed")
        for lane in self._retired:
            await asyncio.to_thread(lane.join)
        self._retired.clear()
        return unknown

    def _retire(self, why: str) -> int:
        abandoned = sum(lane.retire(why) for lane in self._lanes.values())
        self._retired = [lane for lane in self._retired if lane.is_alive]
        self._retired += self._lanes.values()
        self._lanes = {}
        return abandoned

    def _lane(self, topic: Topic[Any]) -> _Lane:
        kind = (topic.compression.value, topic.linger_ms)
        lane = self._lanes.get(kind)
        if lane is None:
            config = client_config(
                self._settings,
                compression=kind[0],
                linger_ms=kind[1],
                host=socket.gethostname(),
                pid=self._pid,
            )
            lane = self._lanes[kind] = _Lane(config, self._names)
        return lane

    def _learn_partitions(self) -> Mapping[str, int]:
        lane = self._lane(ALL[0])
        until_ms = self._clock.monotonic_ms() + self._settings.unreachable_ms
        while True:
            try:
                listed = lane.client.list_topics(timeout=_PROBE_S).topics
                break
            except KafkaException as error:
                lost = self._clock.monotonic_ms() >= until_ms
                if lost or lane.trouble_name in AUTHENTICATION:
                    lane.retire("never connected")
                    name = lane.trouble_name or error.args[0].name()
                    raise BusUnreachableError(
                        f"no broker answers at {self._settings.bootstrap}: "
                        f"{lane.trouble or error.args[0].str()}",
                        hint=bus_hint(name),
                    ) from error
        found = {
            name: len(listed[full].partitions)
            for name, full in self._names.items()
            if full in listed and listed[full].error is None
        }
        try:
            check_partitions(found, prefix=self._settings.prefix)
        except SettingsError:
            lane.retire("topics differ")
            raise
        return found


class _Lane:
    """One librdkafka producer with its poll thread and what is in flight on it."""

    def __init__(self, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._names = names
        self.in_flight: set[Future] = set()
        self.trouble = ""
        self.trouble_name = ""
        self.statistics = ""
        self._dead = ""
        self._is_retired = False
        self._settled: list[tuple[Future, Acknowledgement]] = []
        self._acked_topics: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.client = Client(
            {**config, "error_cb": self._complained, "stats_cb": self._measured, "logger": _log}
        )
        self._thread = threading.Thread(target=self._run, name="kafka-producer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its poll thread still runs."""
        return self._thread.is_alive()

    def offer(self, topic: str, partition: int, key: bytes, raw: bytes) -> Future:
        """Produce; called on the event loop only."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: Future = loop.create_future()
        if self._dead:
            future.set_result(Rejected(f"the producer is dead: {self._dead}"))
            return future

        def delivered(error: KafkaError | None, message: Any) -> None:
            # Runs on the poll thread. The message is not kept: it holds the payload.
            if error is None:
                offset = message.offset()
                outcome: Acknowledgement = Acked(partition, offset if offset >= 0 else None)
                acked.add(topic)
            else:
                outcome = outcome_of(error.name(), error.str(), was_acked_before=topic in acked)
            self._settled.append((future, outcome))

        acked = self._acked_topics
        try:
            self.client.produce(self._names[topic], raw, key, partition, delivered)
        except BufferError:
            future.set_result(Rejected(f"{QUEUE_FULL}: {len(self.in_flight)} records wait"))
        except KafkaException as error:
            future.set_result(Rejected(error.args[0].str()))
        else:
            self.in_flight.add(future)
        return future

    def retire(self, why: str) -> int:
        """Give up what is in flight as Unknown; return how many. The poll thread ends by itself."""
        self._dead = self._dead or why
        self._is_retired = True
        return self._abandon(why)

    def join(self) -> None:
        """Wait for the poll thread; it is a daemon, so a slow one does not keep the process."""
        self._thread.join(timeout=_JOIN_S)

    def _abandon(self, why: str) -> int:
        abandoned = [future for future in self.in_flight if not future.done()]
        for future in abandoned:
            future.set_result(Unknown(why))
        self.in_flight.clear()
        return len(abandoned)

    def _run(self) -> None:
        while not self._is_retired:
            try:
                self.client.poll(_POLL_S)
            except KafkaException as error:
                self._die(_words(error.args[0]))
            self._hand_over()
        self._drain()

    def _drain(self) -> None:
        # What is queued must not be sent any more; what is on its way may still arrive.
        with contextlib.suppress(KafkaException):
            self.client.purge(blocking=False)
        for _ in range(_PURGE_POLLS):
            with contextlib.suppress(KafkaException):
                self.client.poll(0.05)
            if len(self.client) == 0:
                break
        self._settled.clear()

    def _die(self, why: str) -> None:
        if not self._dead:
            _log.error("the producer is dead: %s", why)
            self._dead = why
            self._on_loop(lambda: self._abandon(f"fatal error: {why}"))
        # The library raises the same error at every poll from now on.
        time.sleep(_DEAD_POLL_S)

    def _hand_over(self) -> None:
        if self._settled:
            settled, self._settled = self._settled, []
            self._on_loop(lambda: self._settle(settled))

    def _on_loop(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call)

    def _settle(self, settled: Sequence[tuple[Future, Acknowledgement]]) -> None:
        in_flight = self.in_flight
        for future, outcome in settled:
            in_flight.discard(future)
            if not future.done():
                future.set_result(outcome)
        if isinstance(settled[-1][1], Acked):
            self.trouble = self.trouble_name = ""

    def _complained(self, error: KafkaError) -> None:
        words = _words(error)
        name = words.partition(":")[0]
        if self.trouble_name in AUTHENTICATION:
            return
        if name != self.trouble_name:
            _log.warning("the Kafka client says %s", words)
        self.trouble_name = name
        self.trouble = words

    def _measured(self, statistics: str) -> None:
        self.statistics = statistics


def _words(error: KafkaError) -> str:
    # While a fatal error is being raised, methods of the error object can fail in the library.
    try:
        return f"{error.name()}: {error.str()}"
    except SystemError:
        return "_FATAL: fatal error in the client library"


def _refused(reason: str) -> Future:
    future: Future = asyncio.get_running_loop().create_future()
    future.set_result(Rejected(reason))
    return future


def _check_client_version(floor: tuple[int, int, int]) -> None:
    found = version_of(libversion()[1])
    if found < floor:
        raise SettingsError(
            f"librdkafka {'.'.join(map(str, found))} is older than {'.'.join(map(str, floor))}",
            hint="install the versions of constraints.txt with `make setup`",
        )
