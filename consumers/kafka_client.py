"""The client library's consumer and admin client, wrapped: bytes to records, codes to errors.

Invariants: bytes become records once, here; a position below the log start or of a topic that was
created anew ends the client; nothing is committed but what `commit` is given.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from consumers.client import EndReached, Place, Read, Rebalance, message_of
from consumers.core.classify import TOPIC_GONE, error_of, failure_of
from consumers.core.config import Config, admin_config
from consumers.core.topic_ids import GONE, remember_id
from consumers.settings import ConsumerSettings
from consumers.trouble import Trouble
from schemas.codec import Codec
from schemas.errors import Boundary, InvariantError, SettingsError, SluiceError
from schemas.ports import Floor, Frames
from schemas.topics import ALL

_log = logging.getLogger(__name__)
_ADMIN_S = 10.0
_PROBE_S = 2.0
_RETRY_S = 0.1
_TOPIC_IDS_EVERY_S = 5.0


class Bus:
    """What is asked of the brokers outside the streams: partitions, ends, topic ids;
    thread-safe.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.names = {topic.name: topic.full(settings.prefix) for topic in ALL}
        self.logical = {full: name for name, full in self.names.items()}
        self._ids = dict(settings.topic_ids)
        self._checked_at = 0.0
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._admin: AdminClient | None = None
        self._trouble = Trouble(settings.bootstrap)

    def admin(self) -> AdminClient:
        """Return the one admin client of this door; answers die with their client."""
        with self._lock:
            if self._admin is None:
                config: dict[str, Any] = dict(admin_config(self.settings))
                config |= {"error_cb": self._complained, "logger": _log}
                self._admin = AdminClient(config)
            return self._admin

    def partitions(self, topic: str) -> int:
        """Return the partitions of a topic, asked for once."""
        if topic not in self._partitions:
            full = self.names[topic]
            until = time.monotonic() + self.settings.unreachable_ms / 1000
            while True:
                try:
                    listed = self.admin().list_topics(full, timeout=_PROBE_S).topics[full]
                    break
                except KafkaException as error:
                    if time.monotonic() > until or self._trouble.is_refusal:
                        raise self._trouble.failure(error.args[0].str()) from error
            if listed.error is not None or not listed.partitions:
                raise SettingsError(
                    f"topic {full} is missing", boundary=Boundary.BUS,
                    hint="`sluice topics create` makes it",
                )  # fmt: skip
            self._partitions[topic] = len(listed.partitions)
        return self._partitions[topic]

    def ends(self, topic: str, partitions: Collection[int] | None) -> Mapping[int, int]:
        """Return the end offsets now, in one request per leader."""
        chosen = range(self.partitions(topic)) if partitions is None else sorted(partitions)
        full = self.names[topic]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(full, p): latest for p in chosen}
        until = time.monotonic() + self.settings.unreachable_ms / 1000
        while True:
            asked = self.admin().list_offsets(wanted, request_timeout=_PROBE_S)
            try:
                return {p.partition: one.result(_ADMIN_S).offset for p, one in asked.items()}
            except KafkaException as error:
                name, words = error.args[0].name(), error.args[0].str()
                if (failure := failure_of(name, words, place=topic)) is not None:
                    raise failure from error
                # A leader that moves, or a broker that comes back, answers a moment later.
                if time.monotonic() > until or self._trouble.is_refusal:
                    raise self._trouble.failure(words) from error
            time.sleep(_RETRY_S)

    def check_topic_ids(self, *, now: bool = False) -> None:
        """Raise InvariantError when a topic has another id than at first, or is gone.

        Asks at most every few seconds for the whole process, or at once with `now`.
        """
        with self._lock:
            due = now or time.monotonic() - self._checked_at > _TOPIC_IDS_EVERY_S
            if due:
                self._checked_at = time.monotonic()
        if not due:
            return
        asked = self.admin().describe_topics(
            TopicCollection(list(self.logical)), request_timeout=_PROBE_S
        )
        for full, future in asked.items():
            try:
                found = str(future.result(2 * _PROBE_S).topic_id)
            except KafkaException as error:
                if error.args[0].name() not in TOPIC_GONE or self.logical[full] not in self._ids:
                    continue
                found = GONE
            except TimeoutError:
                continue
            remember_id(self._ids, self.logical[full], found)

    def _complained(self, error: KafkaError) -> None:
        self._trouble.note(error.name(), error.str())


class KafkaClient:
    """One librdkafka consumer that returns records; see `consumers.client.Client`."""

    def __init__(
        self, config: Config, codec: Codec, bus: Bus, framed: frozenset[str] = frozenset()
    ) -> None:
        """framed: logical names of the topics whose records are handed over undecoded."""
        self._framed = framed
        self._codec = codec
        self._bus = bus
        self._failure: Exception | None = None
        self._trouble = Trouble(bus.settings.bootstrap)
        self._consumer = Consumer({**config, "error_cb": self._complained, "logger": _log})

    def take(self, records_max: int, timeout_s: float) -> tuple[Sequence[Read], int]:
        """Return what is there; a failure is raised after what was read before it."""
        if self._failure is not None:
            raise self._failure
        try:
            first = self._consumer.poll(timeout_s)
            if first is None:
                return (), 0
            more = self._consumer.consume(records_max - 1, 0) if records_max > 1 else ()
        except KafkaException as error:
            self._note(error.args[0], "the consumer")
            if self._failure is not None:
                raise self._failure from error
            return (), 0
        messages = [first, *more]
        read, size = self._read_frames(messages) if self._framed else self._read(messages)
        if read:
            self._trouble.clear()
        return read, size

    def _read_frames(self, messages: Sequence[Any]) -> tuple[Sequence[Read], int]:
        """Bundle what follows one another in a framed partition; read the rest one by one."""
        read: list[Read] = []
        size = 0
        for (full, partition, is_record), some in itertools.groupby(messages, _place_of):
            topic = self._bus.logical.get(full, "")
            if is_record and topic in self._framed:
                frames = _frames_of(topic, partition, some)
                read.append(frames)
                size += sum(map(len, frames.raws))
                continue
            more, its_size = self._read(list(some))
            read += more
            size += its_size
            if self._failure is not None:
                break
        return read, size

    def _read(self, messages: Sequence[Any]) -> tuple[Sequence[Read], int]:
        read: list[Read] = []
        size = 0
        logical, codec = self._bus.logical, self._codec
        for message in messages:
            topic = logical[message.topic()] if message.topic() else ""
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    read.append(EndReached(topic, message.partition(), message.offset()))
                    continue
                self._note(error, f"{topic}/{message.partition()}")
                if self._failure is not None:
                    break
                continue
            raw = message.value() or b""
            size += len(raw)
            place = (topic, message.partition(), message.offset())
            stamp = message.timestamp()[1]
            read.append(message_of(codec, place, stamp, key=message.key(), raw=raw))
        return read, size

    def check(self) -> bool:
        """Return whether nothing is amiss.

        Raises BusUnreachableError after a long silence, InvariantError for another topic.
        """
        if self._failure is not None:
            raise self._failure
        patience_ms = self._bus.settings.unreachable_ms - _PROBE_S * 1000
        if self._trouble.lasts_ms == 0:
            self._bus.check_topic_ids()
        elif self._trouble.is_refusal or self._trouble.lasts_ms >= patience_ms:
            # An idle reader does not hear that the brokers are back, so it asks.
            try:
                self._consumer.list_topics(timeout=_PROBE_S)
            except KafkaException as error:
                failure = self._trouble.failure(error.args[0].str())
                self._trouble.restart()
                raise failure from error
            self._trouble.clear()
        return self._trouble.lasts_ms == 0

    def add(self, starts: Mapping[Place, int]) -> None:
        """Also read these partitions from these offsets."""
        self._consumer.incremental_assign(
            [TopicPartition(self._bus.names[t], p, offset) for (t, p), offset in starts.items()]
        )

    def remove(self, places: Collection[Place]) -> None:
        """Stop reading these partitions."""
        self._consumer.incremental_unassign(self._partitions(places))

    def pause(self, places: Collection[Place]) -> None:
        """Stop fetching these partitions."""
        self._consumer.pause(self._partitions(places))

    def resume(self, places: Collection[Place]) -> None:
        """Fetch these partitions again."""
        self._consumer.resume(self._partitions(places))

    def join(self, topic: str, rebalance: Rebalance) -> None:
        """Join the group of the settings on one topic."""

        def numbers(partitions: Sequence[TopicPartition]) -> list[int]:
            return sorted(one.partition for one in partitions)

        self._consumer.subscribe(
            [self._bus.names[topic]],
            on_assign=lambda _, partitions: rebalance.assigned(numbers(partitions)),
            on_revoke=lambda _, partitions: rebalance.revoked(numbers(partitions)),
            on_lost=lambda _, partitions: rebalance.lost(numbers(partitions)),
        )

    def leave(self) -> None:
        """Leave the group."""
        self._consumer.unsubscribe()

    def committed(self, topic: str, partitions: Collection[int]) -> Mapping[int, Floor]:
        """Return the committed floors."""
        asked = self._partitions([(topic, p) for p in partitions])
        try:
            found = self._consumer.committed(asked, timeout=_ADMIN_S)
        except KafkaException as error:
            raise _ours(error.args[0], "the committed floors") from error
        return {
            one.partition: Floor(offset=one.offset, metadata=one.metadata or "")
            for one in found
            if one.offset >= 0
        }

    def commit(self, topic: str, floors: Mapping[int, Floor]) -> None:
        """Commit and wait."""
        full = self._bus.names[topic]
        offsets = [TopicPartition(full, p, f.offset, f.metadata) for p, f in floors.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise _ours(error.args[0], f"the commit on {topic}") from error
        for one in done:
            if one.error is not None:
                raise _ours(one.error, f"the commit on {topic}")

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()

    def _partitions(self, places: Collection[Place]) -> list[TopicPartition]:
        return [TopicPartition(self._bus.names[topic], p) for topic, p in places]

    def _note(self, error: KafkaError, place: str) -> None:
        name = error.name()
        failure = failure_of(name, error.str(), place=place)
        if failure is None:
            self._complained(error)
        elif name in TOPIC_GONE:
            # Brokers learn of a new topic one after the other; only its absence is a failure.
            try:
                self._bus.check_topic_ids(now=True)
            except InvariantError as gone:
                self._failure = gone
        else:
            self._failure = failure

    def _complained(self, error: KafkaError) -> None:
        self._trouble.note(error.name(), error.str())


def _ours(error: KafkaError, what: str) -> SluiceError:
    return error_of(error.name(), error.str(), place=what)


def _place_of(message: Any) -> tuple[str, int, bool]:
    return message.topic() or "", message.partition(), message.error() is None


def _frames_of(topic: str, partition: int, messages: Iterable[Any]) -> Frames:
    found = list(messages)
    return Frames(
        topic=topic,
        partition=partition,
        offsets=[one.offset() for one in found],
        timestamps_ms=[one.timestamp()[1] for one in found],
        keys=[one.key() for one in found],
        raws=[one.value() or b"" for one in found],
    )
