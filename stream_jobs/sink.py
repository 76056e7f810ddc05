"""The metrics sink: every record of the run becomes rows, and SQL is answered from them.

Consumes: every topic but the payloads, from the run's Start or from where the tables stand.
Produces: rows; dead letters; WorkerState. Waits for: records, at most `batch_interval_s`; the
store, inside `insert_retry_s`. Unblocked by: records, the store's answer, the stop signal. One
process per run owns all partitions.

Invariants: the position to resume from comes from the tables alone; one write is under way at a
time, and what is read meanwhile only waits for the next; memory is bounded by
`buffered_records_max`, which counts what is being written too, and by the reader's own bound;
writing takes no more than `busy_share_max` of the time as long as batches are small, so that the
sink leaves the processors to training.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from producers.presence import Presence
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import Role, WorkerStatus
from schemas.ports import Context
from schemas.topics import BY_NAME
from stream_jobs.core.sink_batches import Batch, Batches, Place
from stream_jobs.core.sink_ranges import resume_at
from stream_jobs.core.sink_rollups import Rollup, Stale
from stream_jobs.core.sink_slabs import BULK, Slab, count
from stream_jobs.core.sink_statements import parse_migrations
from stream_jobs.core.sink_tables import TOPICS, tables_of
from stream_jobs.reading import all_starts
from stream_jobs.sink_engines import EmbeddedEngine, Engine, Limits, ServerEngine
from stream_jobs.sink_http import Endpoint
from stream_jobs.sink_intake import Intake
from stream_jobs.sink_pages import Pages
from stream_jobs.sink_settings import SinkSettings
from stream_jobs.sink_store import Store
from stream_jobs.sink_writer import Writer, patiently

_LOG = logging.getLogger("sluice.sink")
_POLL_MAX = 20_000
_IDLE_POLL_S = 1.0
# Whoever gets so many in one look, which is what the reader takes in one go, is behind: more is
# there at once, and will fill its batches.
_BEHIND = 2_000
_BEHIND_MAX_MS = 10_000
# Of what is read in bulk the rows alone are held.
_ROWS_A_RECORD = 8
# Once so much of what may be held is held, a share of it is written, the rest grows on meanwhile.
_CROWDED = 0.75
_RELIEF = 0.25
# For so long after a look that found many the sink is taken to be behind.
_BEHIND_MS = 1_000
# Records come one by one in a quiet run; a short wait takes many of them in one look.
_GATHER_S = 0.1
_YIELD_S = 0.001
_REST_MAX_MS = 10_000
_OBJECTS_BETWEEN_LOOKS = 100_000


async def run(
    context: Context,
    settings: SinkSettings,
    *,
    codec: Codec,
    migrations: Sequence[str],
    pages: Pages | None = None,
) -> None:
    """Write rows and answer SQL until asked to stop; then take what stands on the topics by then.

    migrations: the files of table definitions, each opening with `-- migration N: name`. pages: the
    live page, served beside SQL.
    """
    # Records hold no cycles; looking for them among all that wait costs a tenth of the time.
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS, 20, 100)
    definitions = parse_migrations(migrations)
    retry_ms = round(settings.insert_retry_s * 1000)
    store = await patiently(
        context, lambda: Store.open(lambda: make_engine(settings)), "the database",
        retry_ms=retry_ms,
    )  # fmt: skip
    endpoint = Endpoint(store, settings, pages)
    try:
        await patiently(
            context, lambda: store.migrate(definitions, cluster=settings.server_cluster),
            "the definitions of the tables", retry_ms=retry_ms,
        )  # fmt: skip
        await endpoint.start()
        await Sink(context, settings, codec, store, definitions.rollups).run(endpoint.url)
    finally:
        await endpoint.stop()
        await store.close()


def make_engine(settings: SinkSettings) -> Engine:
    """Open the engine that the settings name; called on the store's thread."""
    limits = Limits(
        seconds_max=settings.query_seconds_max,
        rows_max=settings.query_rows_max,
        memory_bytes_max=settings.memory_bytes_max,
        # The other half is for those who sample, verify and train on this machine.
        threads_max=settings.query_threads_max or max(1, (os.cpu_count() or 1) // 2),
    )
    if settings.server_url:
        return ServerEngine(
            settings.server_url, limits, is_replicated=bool(settings.server_cluster)
        )
    return EmbeddedEngine(Path(settings.tables_dir), limits)


class Sink:
    """The loop of one run."""

    def __init__(
        self,
        context: Context,
        settings: SinkSettings,
        codec: Codec,
        store: Store,
        rollups: Sequence[Rollup] = (),
    ) -> None:
        self._context = context
        self._settings = settings
        self._codec = codec
        self._store = store
        self._rollups = rollups
        self._stale = Stale(
            (one.table for one in rollups), interval_ms=round(settings.rollup_interval_s * 1000)
        )
        self._rested_ms = 0
        """Until then, batches that are due by their age alone wait. Unit: ms, monotonic."""
        self._behind_ms: int | None = None
        """When a look last found many records. Unit: ms, monotonic."""
        self._writing = (0, 0)
        """What is being written: records held whole, and rows."""
        self._rolled_ms = 0
        """Until then, minutes wait to be made. Unit: ms, monotonic."""
        self._log: Intake
        self._batches: Batches
        self._writer: Writer

    async def run(self, address: str) -> None:
        """Read and write until asked to stop."""
        presence = Presence(self._context, Role.SINK, address, 0)
        await self._open()
        try:
            await presence.announce(WorkerStatus.READY)
            while not self._context.stop.is_set():
                await self._look(_IDLE_POLL_S)
                await self._write()
                await self._roll(all_of_it=False)
                if not self._is_behind():
                    await self._gather()
            await presence.announce(WorkerStatus.STOPPED)
            await self._drain()
        finally:
            await self._log.close()
        _LOG.info(
            "%d rows written, %d poison records buried", self._writer.rows, self._log.poisoned
        )

    async def _open(self) -> None:
        context, settings = self._context, self._settings
        retry_ms = round(settings.insert_retry_s * 1000)
        stored = await patiently(
            context, partial(self._store.stored, context.run_id), "where the tables stand",
            retry_ms=retry_ms,
        )  # fmt: skip
        starts = await all_starts(context, TOPICS)
        resumed = {
            (topic.name, partition): resume_at(stored.get((topic.name, partition)), start)
            for topic, partitions in starts.items()
            for partition, start in partitions.items()
        }
        self._log = Intake(
            context,
            Role.SINK,
            self._codec,
            {t: {p: resumed[t.name, p][0] for p in partitions} for t, partitions in starts.items()},
            # Columns hold sizes alone.
            bulk=() if settings.token_contents else tuple(BULK),
        )
        self._batches = Batches(
            resumed,
            offsets_max=settings.batch_offsets,
            interval_ms=round(settings.batch_interval_s * 1000),
        )
        self._writer = Writer(
            context,
            self._store,
            self._codec,
            stored,
            retry_ms=retry_ms,
            stale=self._stale,
            tables=tables_of(has_contents=settings.token_contents),
        )
        for rollup in self._rollups:
            minutes = await patiently(
                context, partial(self._store.stale, rollup, or_waiting=True),
                f"the rollup of {rollup.table}", retry_ms=retry_ms,
            )  # fmt: skip
            self._stale.note(rollup.table, minutes)

    async def _look(self, timeout_s: float) -> int:
        """Take what is there; return how many records came."""
        held, looked_at = await self._log.poll(records_max=_POLL_MAX, timeout_s=timeout_s)
        now_ms = self._now_ms()
        for one in held:
            self._batches.take(one, now_ms=now_ms)
        self._batches.reach(self._log.reader.positions())
        if looked_at >= _BEHIND:
            self._behind_ms = now_ms
        elif timeout_s and not looked_at:
            self._behind_ms = None
        return looked_at

    async def _write(self, *, all_of_it: bool = False) -> None:
        await self._insert(self._batches.full())
        if not all_of_it and self._fullness() >= _CROWDED:
            await self._insert(self._batches.fullest(rows_min=self._relief()))
            return
        began_ms = self._now_ms()
        is_early = began_ms < self._rested_ms or (self._is_behind() and self._is_young())
        if is_early and not all_of_it:
            return
        small = self._batches.due(now_ms=began_ms, all_of_it=all_of_it)
        if not small:
            return
        await self._insert(small)
        # Together as large as a full one they are not small: what came behind them need not wait.
        if sum(count(batch.messages) for batch in small) < self._settings.batch_offsets:
            self._rested_ms = self._rested(began_ms)

    def _fullness(self) -> float:
        """Return how much of what may be held is held or being written. Unit: ratio."""
        most = self._settings.buffered_records_max
        held, rows = self._writing
        return max(
            (self._batches.held + held) / most,
            (self._batches.rows + rows) / (_ROWS_A_RECORD * most),
        )

    def _relief(self) -> int:
        return round(_RELIEF * (self._batches.held + self._batches.rows))

    def _is_behind(self) -> bool:
        return self._behind_ms is not None and self._now_ms() - self._behind_ms < _BEHIND_MS

    def _is_young(self) -> bool:
        """Whether nothing that is held has waited for long; small inserts cost more than one."""
        oldest_ms = self._batches.oldest_ms()
        return oldest_ms is None or self._now_ms() - oldest_ms < _BEHIND_MAX_MS

    async def _insert(self, batches: Sequence[Batch]) -> None:
        """Write batches; while the sink is behind, read what comes next meanwhile."""
        if not batches:
            return
        total = sum(count(batch.messages) for batch in batches)
        rows = sum(len(one) for b in batches for one in b.messages if isinstance(one, Slab))
        self._writing = (total - rows, rows)
        writing = asyncio.create_task(self._writer.write(batches))
        try:
            while self._is_behind() and not writing.done() and self._fullness() < 1:
                found = await self._look(0)
                # However much there is to read, the writer gets the event loop in between.
                await asyncio.wait({writing}, timeout=_YIELD_S if found else _GATHER_S)
            again = await writing
        finally:
            self._writing = (0, 0)
            if not writing.done():
                writing.cancel()
                await asyncio.wait({writing})
        for place, settled in again.items():
            self._batches.rewind(place, settled)
            self._log.reader.add(*_from(place, settled.first))

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(_GATHER_S):
                await self._context.stop.wait()
        except TimeoutError:
            return

    async def _drain(self) -> None:
        """Take what stands on the topics now, inside `drain_s`."""
        deadline = Deadline.after(
            round(self._settings.drain_s * 1000),
            now_ms=self._now_ms(),
            waiting_for="the last records of the run",
        )
        ends = {
            (topic.name, partition): end
            for topic in TOPICS
            for partition, end in (await self._log.reader.ends(topic)).items()
        }
        while not deadline.is_over(now_ms=self._now_ms()):
            positions = self._log.reader.positions()
            if all(positions.get(place, end) >= end for place, end in ends.items()):
                break
            await self._look(_GATHER_S)
            await self._insert(self._batches.full())
            if self._fullness() >= _CROWDED:
                await self._write(all_of_it=True)
        else:
            _LOG.warning("gave up on %s; the next start takes them", deadline.waiting_for)
        await self._write(all_of_it=True)
        await self._roll(all_of_it=True)

    async def _roll(self, *, all_of_it: bool) -> None:
        """Make the minutes anew that got rows; all rollups of a table see the same minutes."""
        began_ms = self._now_ms()
        if not self._stale.waiting or (began_ms < self._rolled_ms and not all_of_it):
            return
        due = self._stale.due(now_ms=began_ms, all_of_it=all_of_it)
        for rollup in self._rollups:
            if minutes := due.get(rollup.table):
                await self._writer.roll(rollup, minutes)
        self._rolled_ms = self._rested(began_ms)

    def _rested(self, began_ms: int) -> int:
        """Return until when to rest from work that began then, to keep to the share of the time."""
        ended_ms = self._now_ms()
        share = self._settings.busy_share_max
        rest_ms = round((ended_ms - began_ms) * (1 - share) / share)
        return ended_ms + min(rest_ms, _REST_MAX_MS)

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()


def _from(place: Place, offset: int) -> tuple[Any, dict[int, int]]:
    topic, partition = place
    return BY_NAME[topic], {partition: offset}
