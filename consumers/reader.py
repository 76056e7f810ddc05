"""Reads given partitions on a thread of its own; no consumer group.

Waits for: records (bounded by `timeout_s`), ends (bounded by a deadline). Unblocked by: the thread,
which reads ahead into a bounded mailbox. Invariants: offsets rise within a partition; after `add`
or `remove` nothing that was read before the change is delivered.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consumers.client import Client, EndReached, Place, Read
from consumers.mailbox import Mailbox
from consumers.settings import ConsumerSettings
from schemas.deadline import Deadline
from schemas.errors import (
    Boundary,
    BusUnreachableError,
    InvariantError,
    SluiceError,
    TransientError,
)  # fmt: skip
from schemas.ports import Frames, Message
from schemas.topics import Topic

_BATCH = 500
# Undecoded records cost their thread so little that it may take more of them in one go.
_FRAMES_BATCH = 2_000
# How long the thread waits for a record, which ends the wait, before it looks at what it was told.
POLL_S = 0.1
JUMPING_POLL_S = 0.02
_JOIN_S = 5.0
Ends = Callable[[str, Collection[int] | None], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class _Began:
    """From here on the mailbox holds records of this assignment of the place, and none before."""

    place: Place
    serial: int


class KafkaLogReader:
    """See `schemas.ports.LogReader`; a FrameReader when the client gives Frames."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        starts: Mapping[Place, int],
        *,
        ends: Ends,
        settings: ConsumerSettings,
        now_ms: Callable[[], int],
        poll_s: float = POLL_S,
        has_frames: bool = False,
    ) -> None:
        self._batch = _FRAMES_BATCH if has_frames else _BATCH
        self._count: Callable[[Sequence[Any]], int] = _records if has_frames else len
        self._open_client = open_client
        self._poll_s = poll_s
        self._ends = ends
        self._now_ms = now_ms
        self._kept_max = settings.queue_records_max
        self._mailbox: Mailbox[Read | _Began] = Mailbox(
            records_max=settings.queue_records_max, bytes_max=settings.queue_bytes_max
        )
        self._positions: dict[Place, int] = {}
        self._awaited: dict[Place, int] = {}
        self._serial = 0
        self._ready: deque[Read] = deque()
        self._commands: deque[Callable[[Client], None]] = deque()
        self._is_closing = False
        self._add(starts)
        self._thread = threading.Thread(target=self._run, name="kafka-reader", daemon=True)
        self._thread.start()

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message]:
        """Return what is there, waiting at most `timeout_s` for the first record."""
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            if found := self._deliver(records_max):
                return found
            self._mailbox.check()
            left_s = until - loop.time()
            if left_s <= 0:
                return found
            await self._mailbox.wait(left_s)

    @property
    def waiting(self) -> int:
        """Records read ahead and not delivered; bounded by the settings."""
        return self._mailbox.records + self._count(self._ready)

    def positions(self) -> Mapping[tuple[str, int], int]:
        """Return the next offset to deliver per (topic, partition)."""
        return dict(self._positions)

    async def ends(
        self, topic: Topic[Any], partitions: Collection[int] | None = None
    ) -> Mapping[int, int]:
        """Return the end offsets now."""
        return await asyncio.to_thread(self._ends, topic.name, partitions)

    async def read_to(
        self, ends: Mapping[tuple[str, int], int], *, deadline: Deadline
    ) -> Sequence[Message]:
        """Return everything up to the given ends; what arrives for other partitions is kept."""
        before = dict(self._positions)
        found: list[Any] = []
        kept: deque[Read] = deque()
        others = [place for place in self._positions if place not in ends]
        paused = False
        open_ends = {place: end for place, end in ends.items() if self._positions[place] < end}
        try:
            while open_ends:
                self._sort(open_ends, found, kept)
                if not open_ends:
                    break
                self._mailbox.check()
                if len(kept) >= self._kept_max and not paused:
                    paused = True
                    self._commands.append(lambda client: client.pause(others))
                left_ms = deadline.left_ms(now_ms=self._now_ms())
                if left_ms == 0:
                    raise TransientError(
                        f"gave up on {deadline.waiting_for}: {len(open_ends)} ends are not reached",
                        boundary=Boundary.BUS, hint="is the end offset right?",
                    )  # fmt: skip
                await self._mailbox.wait(left_ms / 1000)
        except (TransientError, asyncio.CancelledError):
            # Nothing is lost: what was taken goes back, in order, before what was kept.
            self._positions.update({p: o for p, o in before.items() if p in self._positions})
            self._ready.extendleft(reversed([*found, *kept]))
            raise
        finally:
            if paused:
                self._commands.append(lambda client: client.resume(others))
        self._ready.extendleft(reversed(kept))
        await asyncio.sleep(0)
        return found

    def add(self, topic: Topic[Any], starts: Mapping[int, int]) -> None:
        """Also read these partitions from these offsets."""
        self.remove(topic, [p for p in starts if (topic.name, p) in self._positions])
        self._add({(topic.name, p): offset for p, offset in starts.items()})

    def remove(self, topic: Topic[Any], partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        places = [(topic.name, p) for p in partitions if (topic.name, p) in self._positions]
        if not places:
            return
        for place in places:
            del self._positions[place]
            self._awaited.pop(place, None)
        self._ready = deque(
            one for one in self._ready if (one.topic, one.partition) in self._positions
        )
        self._commands.append(lambda client: client.remove(places))

    async def close(self) -> None:
        """Stop the thread and release the client."""
        self._is_closing = True
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _add(self, starts: Mapping[Place, int]) -> None:
        if not starts:
            return
        self._serial += 1
        serial = self._serial
        self._positions.update(starts)
        self._awaited.update(dict.fromkeys(starts, serial))

        def begin(client: Client) -> None:
            client.add(starts)
            self._mailbox.put([_Began(place, serial) for place in starts], 0)

        self._commands.append(begin)

    def _deliver(self, records_max: int) -> list[Any]:
        positions, ready = self._positions, self._ready
        found: list[Any] = []
        count = 0
        while count < records_max:
            if not ready and not self._refill():
                break
            one = ready.popleft()
            place = (one.topic, one.partition)
            if isinstance(one, EndReached):
                positions[place] = max(positions[place], one.offset)
            else:
                positions[place] = one.offset + 1
                found.append(one)
                count += len(one) if isinstance(one, Frames) else 1
        return found

    def _refill(self) -> bool:
        """Move parcels to `ready` until it holds something; False when the mailbox is empty."""
        positions, awaited = self._positions, self._awaited
        while parcel := self._mailbox.take():
            for one in parcel:
                if isinstance(one, _Began):
                    if awaited.get(one.place) == one.serial:
                        del awaited[one.place]
                    continue
                place = (one.topic, one.partition)
                if place in positions and place not in awaited:
                    self._ready.append(one)
            if self._ready:
                return True
        return False

    def _sort(self, open_ends: dict[Place, int], found: list[Any], kept: deque[Read]) -> None:
        """Move what is ready to `found` or `kept`; drop from `open_ends` what is reached."""
        while self._ready or self._refill():
            one = self._ready.popleft()
            place = (one.topic, one.partition)
            end = open_ends.get(place)
            if isinstance(one, EndReached):
                if end is None:
                    kept.append(one)
                    continue
                self._positions[place] = max(self._positions[place], one.offset)
            elif end is None or one.offset >= end:
                kept.append(one)
                if end is not None:
                    # The record at the end was compacted away; what follows it is kept.
                    self._positions[place] = end
            else:
                found.append(one)
                self._positions[place] = one.offset + 1
            if end is not None and self._positions[place] >= end:
                del open_ends[place]
                if not open_ends:
                    return

    def _look_after(self, client: Client) -> None:
        try:
            if client.check():
                self._mailbox.withdraw()
        except BusUnreachableError as error:
            # Told to whoever polls; reading goes on by itself once the brokers are back.
            self._mailbox.complain(error)

    def _run(self) -> None:
        try:
            client = self._open_client()
            try:
                while not self._is_closing:
                    while self._commands:
                        self._commands.popleft()(client)
                    if self._mailbox.is_full:
                        self._mailbox.wait_for_space(self._poll_s)
                        continue
                    read, size = client.take(self._batch, self._poll_s)
                    if read:
                        self._mailbox.withdraw()
                        self._mailbox.put(read, size, records=self._count(read))
                    else:
                        self._look_after(client)
            finally:
                client.close()
        except SluiceError as error:
            self._mailbox.fail(error)
        except Exception as error:  # noqa: BLE001  the thread's outermost loop: nobody else sees it
            self._mailbox.fail(InvariantError(f"the reader's thread died: {error!r}"))


def _records(read: Sequence[Read]) -> int:
    return sum(len(one) if isinstance(one, Frames) else 1 for one in read)
