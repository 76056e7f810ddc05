"""The read door on a real Kafka: makes readers over wrapped clients of the library."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from consumers.core.config import (
    FETCH_WAIT_MS,
    JUMPING_WAIT_MS,
    Config,
    group_config,
    reader_config,
)
from consumers.group import KafkaGroupReader
from consumers.kafka_client import Bus, KafkaClient
from consumers.lookup import Lookup
from consumers.reader import JUMPING_POLL_S, POLL_S, KafkaLogReader
from consumers.settings import ConsumerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.errors import Boundary, InvariantError
from schemas.ports import Floor, Message, Position
from schemas.topics import Topic

# A fetch from one place waits for the broker's answer to the one before; when idle, none is made.
_LOOKUP_WAIT_MS = 5
_REST_S = 0.5


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class KafkaConsumers:
    """The read door of one process; see `schemas.ports.Consumers`."""

    def __init__(
        self, settings: ConsumerSettings, codec: Codec, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        """now_ms: the monotonic clock that deadlines are given on."""
        self._settings = settings
        self._codec = codec
        self._now_ms = now_ms
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._bus = Bus(settings)
        self._lookup = Lookup(lambda: self._open_reader(wait_ms=_LOOKUP_WAIT_MS), now_ms)
        self._rest: asyncio.TimerHandle | None = None

    def reader(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, jumps: bool = False
    ) -> KafkaLogReader:
        """Return a reader of given partitions from given offsets."""
        self._require_own_process()
        wait_ms = JUMPING_WAIT_MS if jumps else FETCH_WAIT_MS
        return KafkaLogReader(
            lambda: self._open_reader(wait_ms),
            {(topic.name, p): offset for topic, at in starts.items() for p, offset in at.items()},
            ends=self._bus.ends,
            settings=self._settings,
            now_ms=self._now_ms,
            poll_s=JUMPING_POLL_S if jumps else POLL_S,
        )

    def frames(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, framed: Collection[Topic[Any]]
    ) -> KafkaLogReader:
        """Return a reader that gives the records of the topics `framed` undecoded."""
        self._require_own_process()
        names = frozenset(topic.name for topic in framed)
        return KafkaLogReader(
            lambda: self._open_reader(FETCH_WAIT_MS, names),
            {(topic.name, p): offset for topic, at in starts.items() for p, offset in at.items()},
            ends=self._bus.ends,
            settings=self._settings,
            now_ms=self._now_ms,
            has_frames=True,
        )

    def group(
        self,
        topic: Topic[Any],
        *,
        group: str,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> KafkaGroupReader:
        """Join a group as a static member."""
        self._require_own_process()
        config = group_config(
            self._settings, group=group, member=member, host=self._host, pid=self._pid
        )
        return KafkaGroupReader(
            lambda: KafkaClient(config, self._codec, self._bus),
            topic=topic.name,
            starts=starts,
            floors=floors,
            settings=self._settings,
        )

    async def mark(self, topic: Topic[Any], *, group: str, floors: Mapping[int, Floor]) -> None:
        """Commit floors for a group that nobody joins."""
        self._require_own_process()
        config = reader_config(self._settings, host=self._host, pid=self._pid)
        config |= {"group.id": f"{self._settings.prefix}.{group}"}
        await asyncio.to_thread(self._mark, config, topic.name, floors)

    def _mark(self, config: Config, topic: str, floors: Mapping[int, Floor]) -> None:
        client = KafkaClient(config, self._codec, self._bus)
        try:
            client.commit(topic, floors)
        finally:
            client.close()

    async def fetch(self, position: Position, *, deadline: Deadline) -> Message:
        """Return the record at exactly this position."""
        self._require_own_process()
        if self._rest is not None:
            self._rest.cancel()
        try:
            return await asyncio.to_thread(self._lookup.fetch, position, deadline)
        finally:
            self._rest = asyncio.get_running_loop().call_later(_REST_S, self._lookup.rest)

    async def partitions(self, topic: Topic[Any]) -> int:
        """Return the number of partitions of the topic."""
        return await asyncio.to_thread(self._bus.partitions, topic.name)

    async def ends(self, topic: Topic[Any]) -> Mapping[int, int]:
        """Return the end offset now of every partition."""
        return await asyncio.to_thread(self._bus.ends, topic.name, None)

    async def close(self) -> None:
        """Release the lookup client; readers are closed by whoever made them."""
        await asyncio.to_thread(self._lookup.close)

    def _open_reader(self, wait_ms: int, framed: frozenset[str] = frozenset()) -> KafkaClient:
        config = reader_config(self._settings, host=self._host, pid=self._pid, wait_ms=wait_ms)
        return KafkaClient(config, self._codec, self._bus, framed)

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvariantError(
                "these consumers were opened before a fork and do not live in the child",
                boundary=Boundary.BUS, hint="spawn the child, or open them after the fork",
            )  # fmt: skip
