"""The write door on a real Kafka.

Invariants:
- Every record ends as Acked, Rejected or Unknown; what is in flight when the producer dies, is
  renewed or is closed is Unknown.
- One topic always goes through one librdkafka producer (a lane), so its records keep their order.
- A producer does not survive a fork: the child is told so.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException, libversion

from producers.core.classify import AUTHENTICATION, bus_hint, version_of
from producers.core.config import client_config
from producers.core.routing import bytes_max, cached_partition_of, check_partitions, oversize
from producers.lane import Future, Lane, Route, Ticket
from producers.sending import QUEUE_FULL, send_and_wait
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.errors import (
    Boundary,
    BusUnreachableError,
    InvariantError,
    SettingsError,
)
from schemas.ports import Acked, Clock, Rejected
from schemas.topics import ALL, Record, Topic

R = TypeVar("R", bound=Record)

_PROBE_S = 1.0


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
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._routes: dict[str, Route] = {}
        self._retired: list[Lane] = []
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
        route = self._routes.get(topic.name) or self._route(topic)
        lane = route.lane
        if len(raw) > route.bytes_max:
            return _refused(oversize(topic, len(raw)) or "too large")
        if lane.dead:
            return _refused(f"the producer is dead: {lane.dead}")
        if partition is None:
            partition = cached_partition_of(route.hashed(record), route.partitions)
        ticket = Ticket(loop=lane.loop)
        ticket.route = route
        ticket.partition = partition
        try:
            route.produce(route.full, raw, topic.key(record).encode(), partition, ticket)
        except BufferError:
            return _refused(f"{QUEUE_FULL}: {len(lane.in_flight)} records wait")
        except KafkaException as error:
            return _refused(error.args[0].str())
        lane.in_flight.add(ticket)
        return ticket

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait; see `schemas.ports.Producer.send`."""
        return await send_and_wait(
            lambda: self.offer(topic, record, partition=partition),
            what=topic.name,
            deadline=deadline,
            clock=self._clock,
            trouble=lambda: self.trouble,
        )

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
        self._routes = {}
        return abandoned

    def _route(self, topic: Topic[Any]) -> Route:
        lane = self._lane(topic)
        lane.loop = asyncio.get_running_loop()
        if self._is_closed:
            lane.retire("the producer is closed")
        route = self._routes[topic.name] = Route(
            lane=lane,
            produce=lane.client.produce,
            settled=lane.settled,
            full=self._names[topic.name],
            hashed=topic.key if topic.by_group is None else topic.by_group,
            partitions=self._partitions[topic.name],
            bytes_max=bytes_max(topic),
        )
        return route

    def _lane(self, topic: Topic[Any]) -> Lane:
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
            lane = self._lanes[kind] = Lane(config)
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
