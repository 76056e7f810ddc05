"""What the readers need of a Kafka client, as a Protocol, and the values that it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from schemas.codec import Codec, frame_id
from schemas.errors import PoisonRecordError
from schemas.ports import Delivered, Floor, Frames, Message, Poisoned
from schemas.topics import BY_NAME

Place: TypeAlias = tuple[str, int]
"""Logical topic name and partition."""


@dataclass(frozen=True, slots=True)
class EndReached:
    """Everything below `offset` was handed over, and nothing lies there yet."""

    topic: str
    partition: int
    offset: int


Read: TypeAlias = Message | Frames | EndReached


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """What a member does when its partitions change; called inside `take`, on the client's
    thread.
    """

    assigned: Callable[[Sequence[int]], None]
    revoked: Callable[[Sequence[int]], None]
    lost: Callable[[Sequence[int]], None]


class Client(Protocol):
    """One consumer of the client library, used by one thread; `commit` may come from others."""

    def take(self, records_max: int, timeout_s: float) -> tuple[Sequence[Read], int]:
        """Return what is there and its size in bytes; wait at most `timeout_s` for the first.

        Raises a SluiceError when the stream cannot go on.
        """
        ...

    def check(self) -> bool:
        """Return whether nothing is amiss; raise BusUnreachableError when no broker has answered
        for too long.
        """
        ...

    def add(self, starts: Mapping[Place, int]) -> None:
        """Also read these partitions from these offsets."""
        ...

    def remove(self, places: Collection[Place]) -> None:
        """Stop reading these partitions."""
        ...

    def pause(self, places: Collection[Place]) -> None:
        """Stop fetching these partitions; they stay assigned."""
        ...

    def resume(self, places: Collection[Place]) -> None:
        """Fetch these partitions again, from where they stopped."""
        ...

    def join(self, topic: str, rebalance: Rebalance) -> None:
        """Join the group of the settings on one topic."""
        ...

    def leave(self) -> None:
        """Leave the group, so that others need not wait for the session to run out."""
        ...

    def committed(self, topic: str, partitions: Collection[int]) -> Mapping[int, Floor]:
        """Return the committed floors; partitions without one are left out. Raises
        TransientError.
        """
        ...

    def commit(self, topic: str, floors: Mapping[int, Floor]) -> None:
        """Commit and wait. Raises TransientError, or FencedError when another took the
        member id.
        """
        ...

    def close(self) -> None:
        """Release the client."""
        ...


def message_of(
    codec: Codec,
    place: tuple[str, int, int],
    timestamp_ms: int,
    *,
    key: bytes | None,
    raw: bytes,
) -> Message:
    """Return the record in these bytes, or what a reader is given when they do not decode.

    place: logical topic name, partition, offset.
    """
    topic, partition, offset = place
    try:
        record = codec.decode(BY_NAME[topic], raw)
    except PoisonRecordError as error:
        return poisoned(place, timestamp_ms, key=key, raw=raw, error=error)
    return Delivered(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=key,
        record=record,
    )


def poisoned(
    place: tuple[str, int, int],
    timestamp_ms: int,
    *,
    key: bytes | None,
    raw: bytes,
    error: PoisonRecordError,
) -> Poisoned:
    """Return what a reader is given for bytes that do not decode.

    place: logical topic name, partition, offset.
    """
    try:
        schema_id: int | None = frame_id(raw)
    except PoisonRecordError:
        schema_id = None
    return Poisoned(
        topic=place[0],
        partition=place[1],
        offset=place[2],
        timestamp_ms=timestamp_ms,
        key=key,
        raw=raw,
        schema_id=schema_id,
        error_class=type(error).__name__,
        error=str(error),
    )
