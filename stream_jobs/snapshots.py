"""The scheduler's snapshots: where a restart begins to read, and when the leader writes the next.

Consumes: the newest Snapshot in `control`, read before. Produces: Snapshot. Waits for nothing: it
tells the scheduler what to write.
"""

from __future__ import annotations

import logging

from schemas.enums import ControlKind
from schemas.ports import Context
from schemas.records.control_event import ControlEvent
from stream_jobs.core.authorship import Author
from stream_jobs.core.ledger import Ledger
from stream_jobs.core.snapshot import FLOORED, read_snapshot, restore, snapshot_of
from stream_jobs.reading import RunLog, all_starts

_LOG = logging.getLogger("sluice.scheduler")


class Snapshots:
    """The snapshots of one scheduler process."""

    def __init__(self, context: Context, ledger: Ledger, *, every_ms: int) -> None:
        """Write one at most every `every_ms`, and only when more is settled. Unit: ms."""
        self._context = context
        self._ledger = ledger
        self._every_ms = every_ms
        self._written_ms = context.clock.monotonic_ms()
        self._settled = 0

    async def begin(self, log: RunLog, *, partitions: int) -> None:
        """Put the newest snapshot into the ledger and have the log read on from its floors.

        `control` was read to its end. Without a snapshot the log is read from the run's starts.
        """
        starts = await all_starts(self._context, FLOORED)
        event = self._ledger.control.snapshot
        snapshot = read_snapshot(event, partitions=partitions) if event is not None else None
        if event is not None and snapshot is None:
            _LOG.warning("the newest snapshot cannot be used; reads from the run's start")
        if snapshot is not None:
            restore(self._ledger, snapshot)
            self._settled = len(self._ledger.closed)
            _LOG.info(
                "reads on from a snapshot: %d ordinals are settled, %d of those issued are not",
                self._settled,
                len(snapshot.unsettled),
            )
        for topic in FLOORED:
            begins = starts[topic] if snapshot is None else snapshot.begins(topic, starts[topic])
            log.reader.add(topic, begins)

    def due(self, log: RunLog, author: Author) -> ControlEvent | None:
        """Return the Snapshot to write now, if one is due; everything delivered was taken."""
        now_ms = self._context.clock.monotonic_ms()
        settled = len(self._ledger.closed)
        if now_ms - self._written_ms < self._every_ms or settled == self._settled:
            return None
        self._written_ms, self._settled = now_ms, settled
        snapshot = snapshot_of(self._ledger, log.reader.positions())
        return author.control(
            ControlKind.SNAPSHOT,
            at_us=self._context.clock.now_us(),
            counts=snapshot.numbers,
            ends=snapshot.ends,
            snapshot=snapshot.text,
        )
