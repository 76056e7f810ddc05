"""Where a record goes and how large it may be.

Invariant: the partition is always explicit and depends on nothing but the record and the number of
partitions, so every process and every restart sends the same group to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from schemas import topics
from schemas.errors import Boundary, SettingsError
from schemas.partition import partition_of
from schemas.topics import Record, Topic

R = TypeVar("R", bound=Record)

_ENVELOPE_BYTES = 65_536
"""What a chunk or a dead letter holds besides its payload: ids, checksum, error text."""

_BYTES_MAX = {
    topics.PAYLOADS.name: topics.CHUNK_BYTES_MAX + _ENVELOPE_BYTES,
    topics.DEAD_LETTERS.name: topics.DEAD_LETTER_PART_BYTES + _ENVELOPE_BYTES,
}

# The hash is pure Python and costs as much as encoding a record; the records of a group follow one
# another.
cached_partition_of = lru_cache(maxsize=65_536)(partition_of)


def key_of(topic: Topic[R], record: R) -> bytes:
    """Return the key bytes of a record."""
    return topic.key(record).encode()


def partition_for(topic: Topic[R], record: R, partitions: int) -> int:
    """Return the partition of a record: of its group on grouped topics, of its key on the
    others.
    """
    hashed = topic.key if topic.by_group is None else topic.by_group
    return cached_partition_of(hashed(record), partitions)


def bytes_max(topic: Topic[R]) -> int:
    """Return the largest framed record of a topic before compression. Unit: bytes. Source: design
    section 4.
    """
    return _BYTES_MAX.get(topic.name, topics.COMMIT_BYTES_MAX)


def oversize(topic: Topic[R], size: int) -> str | None:
    """Return the reason why a record of `size` bytes is refused, or None when it may go."""
    limit = bytes_max(topic)
    if size <= limit:
        return None
    return f"record of {size} bytes is over the limit of {limit} bytes on {topic.name}"


def check_partitions(found: Mapping[str, int], *, prefix: str) -> None:
    """Refuse to run unless every topic is there and all grouped ones have equally many partitions.

    found: partitions by logical topic name. Raises SettingsError that names the difference.
    """
    missing = [topic.full(prefix) for topic in topics.ALL if topic.name not in found]
    if missing:
        raise SettingsError(
            f"topics are missing: {', '.join(missing)}",
            boundary=Boundary.BUS,
            hint="`sluice topics create` makes them",
        )
    counts = {topic.full(prefix): found[topic.name] for topic in topics.ALL if topic.is_grouped}
    if len(set(counts.values())) > 1:
        raise SettingsError(
            f"topics that share their partitioning differ in it: {counts}",
            boundary=Boundary.BUS,
            hint="a group's records must share one partition number; make the topics anew",
        )
