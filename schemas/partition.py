"""Which partition a key belongs to: Kafka's murmur2, as Java, faust and `murmur2_random` compute
it.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`. Source: Apache Kafka, `Utils.murmur2`."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key among `partitions`; the sign bit is dropped, as Kafka does."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
