"""Heavy fields in shared memory: one segment per micro-batch, from fetch until its step is over,
also when killed.

Every segment is named after its run and the process that made it. The interpreter's resource
tracker, a process of its own, removes them when their maker is killed; a starting learner removes
what a maker that is gone has left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from schemas.errors import Boundary, InvariantError
from schemas.packing import crc32c

_SHARED = Path("/dev/shm")
_PREFIX = "sluice"


@dataclass(frozen=True, slots=True)
class Slice:
    """Where one trajectory's payload stands in its segment."""

    start: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The name of a segment and what it holds; this, and not its content, travels between ranks."""

    name: str
    slices: tuple[Slice, ...]


class Segments:
    """Makes and removes the segments of one process."""

    def __init__(self, run: str) -> None:
        self._prefix = f"{_PREFIX}-{run[-12:]}-{os.getpid()}"
        self._made: dict[str, SharedMemory] = {}
        self._number = 0

    def put(self, payloads: Sequence[bytes], checksums: Sequence[int]) -> Segment:
        """Copy payloads into a new segment; `checksums` are those that their records name."""
        name = f"{self._prefix}-{self._number}"
        self._number += 1
        memory = SharedMemory(name=name, create=True, size=max(1, sum(map(len, payloads))))
        self._made[name] = memory
        assert memory.buf is not None, "a new segment is mapped"
        slices = []
        at = 0
        for payload, checksum in zip(payloads, checksums, strict=True):
            memory.buf[at : at + len(payload)] = payload
            slices.append(Slice(at, len(payload), checksum))
            at += len(payload)
        return Segment(name, tuple(slices))

    def release(self) -> None:
        """Remove all segments of this process."""
        for memory in self._made.values():
            memory.close()
            memory.unlink()
        self._made.clear()

    @property
    def bytes_held(self) -> int:
        """Size of what is held now. Unit: bytes."""
        return sum(memory.size for memory in self._made.values())


def read(segment: Segment) -> list[bytes]:
    """Return the payloads of a segment made by any process of this host, each checked at this
    moment.

    Raises InvariantError when a checksum differs or the segment is gone.
    """
    try:
        memory = SharedMemory(name=segment.name)
    except FileNotFoundError as error:
        raise InvariantError(
            f"shared memory {segment.name} is gone before its step",
            hint="its maker died; the learner starts anew",
        ) from error
    # Reading is not owning: without this, our tracker would remove the segment when this process
    # ends.
    if not segment.name.startswith(f"{_PREFIX}-") or f"-{os.getpid()}-" not in segment.name:
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]  # no public way in 3.11
    assert memory.buf is not None, "an opened segment is mapped"
    try:
        out = []
        for part in segment.slices:
            payload = bytes(memory.buf[part.start : part.start + part.length])
            if crc32c(payload) != part.crc32c:
                raise InvariantError(
                    f"payload in {segment.name} at {part.start} fails its checksum",
                    boundary=Boundary.STORE,
                    hint="memory was overwritten; the learner starts anew",
                )
            out.append(payload)
        return out
    finally:
        memory.close()


def sweep(run: str) -> tuple[str, ...]:
    """Remove segments of this run whose maker is gone, and return their names."""
    gone = []
    for path in sorted(_SHARED.glob(f"{_PREFIX}-{run[-12:]}-*")):
        maker = path.name.removeprefix(f"{_PREFIX}-{run[-12:]}-").partition("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            path.unlink(missing_ok=True)
            gone.append(path.name)
    return tuple(gone)
