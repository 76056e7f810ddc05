"""How a run ends: the counts and ends that the learner compares, and the waits that lead there.

Consumes: `gated`, once, when every issued episode is settled. Waits for: a `gated` record of every
admitted episode, the last decisions, and Closed. Unblocked by: gate, assembler and learner; each
wait ends in an error that names what is missing.
"""

from __future__ import annotations

import logging

from schemas.enums import ControlKind, Role
from schemas.errors import TransientError
from schemas.ports import Context
from schemas.records.control_event import ControlEvent
from schemas.records.parts import LogEnd
from schemas.topics import GATED
from stream_jobs.core.authorship import Author
from stream_jobs.core.ledger import Ledger
from stream_jobs.reading import RunLog, all_starts, delivered
from stream_jobs.settings import SchedulerSettings

_LOG = logging.getLogger("sluice.scheduler")
_RECORDS_MAX = 5_000
_NAMED_MAX = 20


class StreamEnd:
    """See the module."""

    def __init__(self, context: Context, settings: SchedulerSettings, ledger: Ledger) -> None:
        self._context = context
        self._settings = settings
        self._ledger = ledger

    async def event(self, author: Author) -> ControlEvent:
        """Return EndOfStream; every issued episode is settled."""
        counts = self._ledger.counts
        ends = await self._gated_ends(counts.admitted)
        _LOG.info("every issued episode is settled: %s", counts)
        return author.control(
            ControlKind.END_OF_STREAM,
            at_us=self._context.clock.now_us(),
            ends=tuple(
                LogEnd(topic=GATED.name, partition=partition, offset=end)
                for partition, end in sorted(ends.items())
            ),
            counts={
                "issued": counts.issued,
                "admitted": counts.admitted,
                "dropped": counts.dropped,
                "abandoned": counts.abandoned,
                "evaluated": counts.evaluated,
            },
        )

    async def _gated_ends(self, admitted: int) -> dict[int, int]:
        """Return end offsets of `gated` below which every admitted episode stands."""
        log = RunLog(
            self._context,
            Role.SCHEDULER,
            await all_starts(self._context, [GATED]),
            deadline_ms=int(self._settings.bus_deadline_s * 1000),
        )
        deadline = log.deadline(f"gated records of {admitted} admitted episodes")
        seen: set[str] = set()
        try:
            while True:
                ends = dict(await log.reader.ends(GATED))
                read = await log.read_to({(GATED.name, p): end for p, end in ends.items()})
                seen |= {message.record.episode_id for message in delivered(read)}
                if len(seen) >= admitted:
                    return ends
                if deadline.is_over(now_ms=self._context.clock.monotonic_ms()):
                    raise TransientError(
                        f"gave up on {deadline.waiting_for}: {len(seen)} are there",
                        hint="is a gate running? the owner of their partition writes them",
                    )
                more = await log.poll(records_max=_RECORDS_MAX, timeout_s=self._settings.poll_s)
                seen |= {message.record.episode_id for message in delivered(more)}
        finally:
            await log.close()

    def check_deadlines(self) -> None:
        """Raise TransientError, naming what is missing, when the end takes too long."""
        control = self._ledger.control
        if control.draining_since_ms is None:
            return
        waited_s = self._context.clock.now_us() / 1e6 - control.draining_since_ms / 1e3
        limit_s = self._settings.drain_s + self._settings.end_deadline_s
        if control.end_of_stream is None:
            if waited_s > limit_s:
                pending = [rollout.episode_id for rollout in self._ledger.rollouts()]
                raise TransientError(
                    f"{len(pending)} episodes are not settled {limit_s:.0f} s after Draining: "
                    f"{pending[:_NAMED_MAX]}",
                    hint="the assembler seals those that ended, the gate decides on those sealed",
                )
        elif waited_s > limit_s + self._settings.closed_deadline_s:
            raise TransientError(
                "the learner did not write Closed after EndOfStream",
                hint="is the learner running? its log says what it waits for",
            )
