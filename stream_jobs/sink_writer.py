"""Puts batches into the tables: range written ahead, rows inserted under its token, range closed.

Waits for: the store, which is tried again with the identical batch inside one budget. Unblocked by:
its answer, or the end of the budget, which ends the process so that it is started again; what was
written ahead is settled then. The sink reads on meanwhile up to its bound and no further, so a slow
store holds the readers back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar, assert_never

from consumers.dead_letters import bury
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import Role
from schemas.errors import TransientError
from schemas.ports import Context, Delivered, Message, Poisoned, Position
from schemas.topics import BY_NAME
from stream_jobs.core.sink_batches import Batch, Place
from stream_jobs.core.sink_columns import Table
from stream_jobs.core.sink_ranges import (
    Bury,
    Insert,
    Passed,
    Range,
    Rewind,
    Skip,
    Stored,
    Written,
    passed,
    settle,
    token,
)
from stream_jobs.core.sink_rollups import Rollup, Stale, minutes_of
from stream_jobs.core.sink_slabs import Held, Slab, count, times_of
from stream_jobs.core.sink_tables import TABLES
from stream_jobs.sink_store import Store

T = TypeVar("T")

_LOG = logging.getLogger("sluice.sink")
_PAUSE_S = 0.2
_PAUSE_MAX_S = 10.0

_FETCH_MS = 30_000

Messages = tuple[Held, ...]


async def patiently(
    context: Context, call: Callable[[], Awaitable[T]], what: str, *, retry_ms: int
) -> T:
    """Call again while the store is away, with growing pauses; raise its TransientError once the
    budget is spent, or as soon as the process is asked to stop: the next start goes on from here.
    """
    clock = context.clock
    deadline = Deadline.after(retry_ms, now_ms=clock.monotonic_ms(), waiting_for=what)
    pause_s = _PAUSE_S
    while True:
        try:
            return await call()
        except TransientError as error:
            left_ms = deadline.left_ms(now_ms=clock.monotonic_ms())
            if left_ms == 0 or context.stop.is_set():
                raise
            _LOG.warning("trying %s again: %s", what, error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, left_ms / 1000)):
                    await context.stop.wait()
            pause_s = min(_PAUSE_MAX_S, 2 * pause_s)


class Writer:
    """Writes batches of one run; holds the newest range of every partition."""

    def __init__(
        self,
        context: Context,
        store: Store,
        codec: Codec,
        stored: Mapping[Place, Stored],
        *,
        retry_ms: int,
        stale: Stale | None = None,
        tables: Mapping[str, tuple[Table, ...]] = TABLES,
    ) -> None:
        """stored: what the tables say. retry_ms: longest retry of one call. Unit: ms. stale: told
        of the minutes that get rows. tables: those that the records of a topic fill.
        """
        self._tables = tables
        self._context = context
        self._store = store
        self._codec = codec
        self._stored = dict(stored)
        self._retry_ms = retry_ms
        self._stale = stale
        self.rows = 0
        """Rows written by this process. Unit: rows."""
        self.buried = 0
        """Records whose range stands under other content. Unit: records."""

    async def write(self, batches: Sequence[Batch]) -> dict[Place, Range]:
        """Write batches in order; return the stored ranges that must be read again first.

        What follows in a partition that is read again is left out. Raises InvariantError when a
        batch lies below what is stored, TransientError when the store stays away.
        """
        waiting: dict[Place, deque[Batch]] = {}
        for batch in batches:
            waiting.setdefault(batch.place, deque()).append(batch)
        again: dict[Place, Range] = {}
        while waiting:
            wave = {place: batches.popleft() for place, batches in waiting.items()}
            waiting = {place: batches for place, batches in waiting.items() if batches}
            for place, settled in (await self._wave(wave)).items():
                again[place] = settled
                waiting.pop(place, None)
        return again

    async def _wave(self, wave: Mapping[Place, Batch]) -> dict[Place, Range]:
        """Write one batch of each partition; those whose range is split take several rounds."""
        again: dict[Place, Range] = {}
        inserts: list[dict[Place, tuple[Range, Messages]]] = []
        for place, batch in wave.items():
            step = 0
            for piece in settle(self._stored.get(place), batch.range):
                match piece:
                    case Insert(range=part):
                        if len(inserts) == step:
                            inserts.append({})
                        inserts[step][place] = (part, batch.within(part))
                        step += 1
                    case Skip():
                        pass
                    case Bury(range=part):
                        await self._bury(place, part, batch.within(part))
                    case Rewind(range=part):
                        again[place] = part
                    case _:
                        assert_never(piece)
        for pieces in inserts:
            # What follows a range that another owner cut elsewhere is read again with it.
            again |= await self._insert({p: piece for p, piece in pieces.items() if p not in again})
        return again

    async def _agree(self, place: Place, part: Range) -> Range:
        """Return the range to insert from `part` on; another one than `part` stands as BEFORE then,
        and is read again, since another owner has cut there.
        """
        if not self._store.is_shared or self._stored.get(place) == Stored(part, Written.BEFORE):
            return part
        claimed = self._context.clock.now_us()
        agreed = await self._patiently(
            partial(self._store.agree, self._context.run_id, place, part, claimed=claimed),
            f"the border of {place[0]}/{place[1]} from {part.first}",
        )
        if agreed != part:
            await self._mark({place: Stored(agreed, Written.BEFORE)})
        return agreed

    async def _insert(self, pieces: Mapping[Place, tuple[Range, Messages]]) -> dict[Place, Range]:
        # A range without rows of the run needs no note, unless one was written ahead for it.
        full = {place: piece for place, piece in pieces.items() if piece[1] or self._is_open(place)}
        full, others = await self._unpassed(full)
        for place, (part, _) in full.items():
            if (agreed := await self._agree(place, part)) != part:
                others[place] = agreed
        full = {place: piece for place, piece in full.items() if place not in others}
        if not full:
            return others
        ahead = {place: Stored(part, Written.BEFORE) for place, (part, _) in full.items()}
        # Somebody wrote it ahead, and may have inserted it.
        repeated = {place for place, one in ahead.items() if self._stored.get(place) == one}
        await self._mark(ahead)
        for place, (part, messages) in full.items():
            self._note(place, messages)
            name = token(self._context.run_id, *place, part)
            for table in self._tables[place[0]]:
                self.rows += await self._patiently(
                    self._putting(place, part, table, messages, again=place in repeated),
                    f"the insert of {name} into {table.name}",
                )
        await self._mark({place: Stored(part, Written.AFTER) for place, (part, _) in full.items()})
        return others

    def _note(self, place: Place, messages: Messages) -> None:
        if self._stale is None or not messages:
            return
        minutes = minutes_of(times_of(messages))
        for table in self._tables[place[0]]:
            self._stale.note(table.name, minutes)

    async def _unpassed(
        self, pieces: Mapping[Place, tuple[Range, Messages]]
    ) -> tuple[dict[Place, tuple[Range, Messages]], dict[Place, Range]]:
        """Return the pieces that no other owner has gone past, and the ranges to read again from
        where one stands inside a piece.
        """
        if not self._store.is_shared:
            return dict(pieces), {}
        stands = await self._patiently(
            partial(self._store.stored, self._context.run_id), "where the tables stand"
        )
        left, others = dict(pieces), {}
        for place, (part, messages) in pieces.items():
            one = stands.get(place)
            how = passed(one, part)
            if how is Passed.NO:
                continue
            del left[place]
            # Of makings the latest by its maker's clock counts, so that both make the minute.
            self._note(place, messages)
            self._stored[place] = Stored(part, Written.AFTER)
            if one is not None and how is Passed.INSIDE:
                self._stored[place] = one
                others[place] = one.range
        return left, others

    def _putting(
        self, place: Place, part: Range, table: Table, messages: Messages, *, again: bool
    ) -> Callable[[], Awaitable[int]]:
        """Return a call that inserts, unless another owner has gone past meanwhile: whoever slept
        for longer than the server remembers tokens would bring the same rows again. Looked at
        before each try. again: the first call may be a repeat already; later ones are.
        """
        name = token(self._context.run_id, *place, part)
        is_repeat = again

        async def put() -> int:
            nonlocal is_repeat
            if messages and self._store.is_shared:
                stands = (await self._store.stored(self._context.run_id)).get(place)
                if passed(stands, part) is Passed.WHOLLY:
                    return 0
            before, is_repeat = is_repeat, True
            return await self._store.insert(table, messages, name, is_repeat=before)

        return put

    async def roll(self, rollup: Rollup, minutes: Sequence[int]) -> None:
        """Make these minutes of a rollup anew, as patiently as rows are inserted; those with rows
        whose task is not there yet will be stale again when tasks come.
        """
        now_us = self._context.clock.now_us()
        waiting = await self._patiently(
            partial(self._store.roll, rollup, minutes, now_us=now_us),
            f"the rollup of {rollup.table}",
        )
        if self._stale is not None and waiting:
            self._stale.wait(rollup.table, waiting)

    def _is_open(self, place: Place) -> bool:
        stored = self._stored.get(place)
        return stored is not None and stored.state is Written.BEFORE

    async def _mark(self, ranges: Mapping[Place, Stored]) -> None:
        await self._patiently(
            partial(self._store.mark, self._context.run_id, ranges), "the ranges of the sink"
        )
        self._stored.update(ranges)

    async def _patiently(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        return await patiently(self._context, call, what, retry_ms=self._retry_ms)

    async def _bury(self, place: Place, part: Range, messages: Messages) -> None:
        self.buried += count(messages)
        for held in messages:
            for offset in held.offsets if isinstance(held, Slab) else (held.offset,):
                message = await self._read_again(held, int(offset))
                raw = (
                    message.raw
                    if isinstance(message, Poisoned)
                    else self._codec.encode(BY_NAME[message.topic], message.record)
                )
                poisoned = Poisoned(
                    topic=message.topic,
                    partition=message.partition,
                    offset=message.offset,
                    timestamp_ms=message.timestamp_ms,
                    key=message.key,
                    raw=raw,
                    schema_id=None,
                    error_class="RangeMismatch",
                    error=f"offsets {part.first}-{part.last} of {place} lie inside a range whose "
                    "token stands for other content",
                )
                await bury(self._context, poisoned, role=Role.SINK)

    async def _read_again(self, held: Held, offset: int) -> Message:
        """Return a record of a slab, which keeps no more of it than its row, from the log."""
        if isinstance(held, Delivered):
            return held
        position = Position(held.topic, held.partition, offset)
        deadline = Deadline.after(
            _FETCH_MS,
            now_ms=self._context.clock.monotonic_ms(),
            waiting_for=f"the record at {position}",
        )
        return await self._context.consumers.fetch(position, deadline=deadline)
