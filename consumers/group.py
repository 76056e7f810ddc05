"""Member of a consumer group on a thread of its own: classic protocol, cooperative, static member.

Waits for: records and assignments (bounded by `timeout_s`); on a revoke the thread waits for the
next `poll`, which asks the owner for its floors (bounded by a fifth of the poll interval).
Unblocked by: the thread, or the owner's next `poll`. Invariants: floors are committed for
partitions owned now and no others; for lost partitions nothing is committed; no commit is under way
while partitions change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from consumers.client import Client, EndReached, Rebalance
from consumers.mailbox import Mailbox
from consumers.settings import ConsumerSettings
from schemas.errors import (
    Boundary,
    BusUnreachableError,
    InvariantError,
    SluiceError,
    TransientError,
)  # fmt: skip
from schemas.ports import Assigned, Delivered, Floor, Frames, GroupEvent, Poisoned, Revoked

_log = logging.getLogger(__name__)
_BATCH = 500
_POLL_S = 0.02
_LEAVE_POLLS = 50
_JOIN_S = 15.0
METADATA_BYTES_MAX = 4_000
FloorsOf = Callable[[Collection[int]], Mapping[int, Floor]]


class _Revoking:
    """A revoke on its way from the thread to the owner, and the owner's floors on their way
    back.
    """

    def __init__(self, partitions: Sequence[int]) -> None:
        self.partitions = tuple(partitions)
        self.floors: Mapping[int, Floor] = {}
        self.is_late = False
        self._answered = threading.Event()

    def answer(self, floors: Mapping[int, Floor]) -> None:
        self.floors = floors
        self._answered.set()

    def wait(self, timeout_s: float) -> bool:
        return self._answered.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit that the owner waits for."""

    floors: Mapping[int, Floor]
    answer: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop

    def settle(self, error: SluiceError | None) -> None:
        """Answer from the thread."""
        self.loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: SluiceError | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


def _not_now() -> TransientError:
    return TransientError(
        "partitions are being taken away", boundary=Boundary.BUS,
        hint="poll, which gives them up, and commit again",
    )  # fmt: skip


class KafkaGroupReader:
    """See `schemas.ports.GroupReader`."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        *,
        topic: str,
        starts: Mapping[int, int],
        floors: FloorsOf,
        settings: ConsumerSettings,
    ) -> None:
        self._open_client = open_client
        self._topic = topic
        self._starts = dict(starts)
        self._floors = floors
        self._revoke_wait_s = settings.poll_interval_ms / 1000 / 5
        self._mailbox: Mailbox[GroupEvent | _Revoking] = Mailbox(
            records_max=settings.queue_records_max, bytes_max=settings.queue_bytes_max
        )
        self._ready: deque[GroupEvent | _Revoking] = deque()
        self._held_back: list[GroupEvent] = []
        self._is_paused = False
        self._owned: frozenset[int] = frozenset()
        # The thread's view, ahead of `_owned`: what the client holds at this moment.
        self._held: frozenset[int] = frozenset()
        self._generation = 0
        self._changing = threading.Lock()
        # Served by the thread between two reads: a commit from elsewhere would wait for a rebalance
        # that waits for the owner.
        self._commits: deque[_Commit] = deque()
        self._is_revoking = False
        self._client: Client | None = None
        self._is_closing = False
        self._last_floors: Mapping[int, Floor] = {}
        self._thread = threading.Thread(target=self._run, name="kafka-group", daemon=True)
        self._thread.start()

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[GroupEvent]:
        """Return records and assignment changes in the order in which they take effect."""
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

    async def commit(self, floors: Mapping[int, Floor]) -> None:
        """Commit floors of partitions owned now; others are left out."""
        _check_metadata(floors)
        mine = {p: floor for p, floor in floors.items() if p in self._owned}
        if not mine:
            return
        loop = asyncio.get_running_loop()
        asked = _Commit(mine, loop.create_future(), loop)
        with self._changing:
            if self._is_revoking or self._client is None:
                raise _not_now()
            self._commits.append(asked)
        await asked.answer

    @property
    def owned(self) -> frozenset[int]:
        """Partitions owned now."""
        return self._owned & self._held

    def pause(self) -> None:
        """Stop fetching and delivering records until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Fetch and deliver again."""
        self._is_paused = False
        self._ready.extendleft(reversed(self._held_back))
        self._held_back = []

    async def close(self) -> None:
        """Commit the floors given by the floors callback and leave the group."""
        if self._is_closing:
            return
        if owned := self.owned:
            self._last_floors = self._floors(owned)
        self._is_closing = True
        await asyncio.to_thread(self._thread.join, _JOIN_S)
        self._owned = frozenset()

    def _deliver(self, records_max: int) -> list[GroupEvent]:
        found: list[GroupEvent] = []
        while len(found) < records_max:
            if not self._ready:
                self._ready.extend(self._mailbox.take())
                if not self._ready:
                    break
            one = self._ready[0]
            # The owner works off what it was given before it is asked for its floors.
            if isinstance(one, _Revoking) and found:
                break
            self._ready.popleft()
            match one:
                case Delivered() | Poisoned():
                    if self._is_paused:
                        self._held_back.append(one)
                    else:
                        found.append(one)
                case _Revoking():
                    found.append(self._give_up(one))
                case Assigned(partitions=partitions):
                    self._owned |= set(partitions)
                    found.append(one)
                case Revoked(partitions=partitions):
                    self._forget(partitions)
                    found.append(one)
        return found

    def _give_up(self, revoking: _Revoking) -> Revoked:
        partitions = revoking.partitions
        if not revoking.is_late:
            floors = self._floors(partitions)
            _check_metadata(floors)
            revoking.answer({p: floor for p, floor in floors.items() if p in partitions})
        self._forget(partitions)
        return Revoked(partitions=partitions, lost=revoking.is_late)

    def _forget(self, partitions: Collection[int]) -> None:
        self._owned -= set(partitions)
        self._held_back = [
            one
            for one in self._held_back
            if isinstance(one, Delivered | Poisoned) and one.partition not in partitions
        ]

    def _commit(self, floors: Mapping[int, Floor]) -> None:
        with self._changing:
            # Looked at under the lock: a broker takes commits for partitions that moved meanwhile.
            mine = {p: floor for p, floor in floors.items() if p in self._held}
            if mine and self._client is not None:
                self._client.commit(self._topic, mine)

    def _serve_commits(self) -> None:
        while self._commits:
            asked = self._commits.popleft()
            try:
                self._commit(asked.floors)
            except SluiceError as error:
                asked.settle(error)
            else:
                asked.settle(None)

    def _refuse_commits(self) -> None:
        while self._commits:
            self._commits.popleft().settle(_not_now())

    def _run(self) -> None:
        try:
            client = self._client = self._open_client()
            try:
                client.join(
                    self._topic,
                    Rebalance(assigned=self._assigned, revoked=self._revoked, lost=self._lost),
                )
                self._read(client)
                self._leave(client)
            finally:
                with self._changing:
                    self._client = None
                    self._held = frozenset()
                    self._refuse_commits()
                client.close()
        except SluiceError as error:
            self._mailbox.fail(error)
        except Exception as error:  # noqa: BLE001  the thread's outermost loop: nobody else sees it
            self._mailbox.fail(InvariantError(f"the group's thread died: {error!r}"))

    def _read(self, client: Client) -> None:
        stopped: frozenset[int] = frozenset()
        while not self._is_closing:
            stop = self._held if self._is_paused or self._mailbox.is_full else frozenset()
            stopped &= self._held
            if fresh := stop - stopped:
                client.pause([(self._topic, p) for p in fresh])
            if over := stopped - stop:
                client.resume([(self._topic, p) for p in over])
            stopped = stop
            self._serve_commits()
            read, size = client.take(_BATCH, _POLL_S)
            # A rebalance inside `take` may have taken partitions whose records it returns.
            kept = [
                one
                for one in read
                if not isinstance(one, EndReached)
                and not isinstance(one, Frames)
                and one.partition in self._held
            ]
            if kept:
                self._mailbox.withdraw()
                self._mailbox.put(kept, size)
            elif not read:
                self._look_after(client)

    def _look_after(self, client: Client) -> None:
        try:
            if client.check():
                self._mailbox.withdraw()
        except BusUnreachableError as error:
            # Told to whoever polls; reading goes on by itself once the brokers are back.
            self._mailbox.complain(error)

    def _leave(self, client: Client) -> None:
        try:
            self._commit(self._last_floors)
        except TransientError as error:
            _log.warning("the last floors were not committed: %s", error)
        # A static member that merely closes keeps its partitions until its session runs out.
        client.leave()
        for _ in range(_LEAVE_POLLS):
            client.take(1, _POLL_S)
            if not self._held:
                break

    def _assigned(self, partitions: Sequence[int]) -> None:
        self._generation += 1
        if not partitions or self._client is None:
            return
        committed = self._client.committed(self._topic, partitions)
        starts = {
            p: committed[p].offset if p in committed else self._starts.get(p, 0) for p in partitions
        }
        with self._changing:
            self._client.add({(self._topic, p): offset for p, offset in starts.items()})
            self._held |= set(partitions)
        self._mailbox.put(
            [
                Assigned(
                    generation=self._generation, partitions=tuple(partitions), committed=committed
                )
            ],
            0,
        )

    def _revoked(self, partitions: Sequence[int]) -> None:
        if not partitions or self._client is None:
            return
        revoking = _Revoking(partitions)
        with self._changing:
            # The owner must come back to `poll`, so nobody keeps it waiting for a commit now.
            self._is_revoking = True
            self._refuse_commits()
        if not self._is_closing:
            self._mailbox.put([revoking], 0)
            until_closing = self._revoke_wait_s
            while not revoking.wait(min(_POLL_S, until_closing)) and not self._is_closing:
                until_closing -= _POLL_S
                if until_closing <= 0:
                    revoking.is_late = True
                    _log.error("nobody gave floors for %s in time", partitions)
                    break
        with self._changing:
            if revoking.floors:
                try:
                    self._client.commit(self._topic, revoking.floors)
                except TransientError as error:
                    _log.warning("floors were not committed at a revoke: %s", error)
            self._drop(partitions)
            self._is_revoking = False

    def _lost(self, partitions: Sequence[int]) -> None:
        with self._changing:
            self._drop(partitions)
        self._mailbox.put([Revoked(partitions=tuple(partitions), lost=True)], 0)

    def _drop(self, partitions: Sequence[int]) -> None:
        self._held -= set(partitions)
        if self._client is not None:
            self._client.remove([(self._topic, p) for p in partitions])


def _check_metadata(floors: Mapping[int, Floor]) -> None:
    for partition, floor in floors.items():
        size = len(floor.metadata.encode())
        if size > METADATA_BYTES_MAX:
            raise InvariantError(
                f"metadata of partition {partition} holds {size} bytes, over {METADATA_BYTES_MAX}",
                boundary=Boundary.BUS, hint="keep positions there, not state",
            )  # fmt: skip
