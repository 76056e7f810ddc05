"""One episode's right to write, from one Fence until something ends it: seq, start,
acknowledgements in order.

Appending never waits. Commits become durable in the order of their seq; the listener of each gets
`DurableTokens`, the only thing that text can be made from. The first outcome that is not an
acknowledgement ends the stream with `refence`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from inference.core.token_life import TokenLedger
from inference.refusals import RefusedError, refence
from inference.release import DurableTokens
from schemas.crash_points import CrashPoint, reach
from schemas.enums import CutReason, Drift, FinishReason, TokenKind
from schemas.errors import InvariantError
from schemas.ids import EpisodeId, GroupId
from schemas.packing import (
    Span,
    Timing,
    crc32c,
    pack_floats,
    pack_ids,
    pack_logprobs,
    pack_spans,
    pack_timing,
)
from schemas.ports import Acked, Pending, Rejected, Unknown
from schemas.records.token_commit import TokenCommit

if TYPE_CHECKING:
    from inference.wal_writer import WalWriter

OnDurable = Callable[[DurableTokens], None]
_RETRY_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceIdentity:
    """Whose right to write it is, and under which fence."""

    episode_id: EpisodeId
    group_id: GroupId
    attempt: int
    fence_number: int
    partition: int
    producer_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a caller fills in of a commit; the stream adds who, where and in which order."""

    kind: TokenKind
    turn: int
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    spans: tuple[Span, ...] = ()
    sampling: tuple[float, ...] = ()
    finish_reason: FinishReason = FinishReason.NONE
    drift: Drift = Drift.NONE
    result_offset: int = -1
    digests: str = ""
    timing: Timing | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    record: TokenCommit
    on_durable: OnDurable | None
    offered_us: int = 0
    """When it was last handed over. Unit: us, monotonic."""
    acked: Acked | None = None


class EpisodeStream:
    """Appends commits of one episode under one fence."""

    def __init__(
        self,
        writer: WalWriter,
        identity: FenceIdentity,
        *,
        fence_offset: int,
        length: int,
        branch: int,
        last_offset: int,
    ) -> None:
        self.identity = identity
        self.fence_offset = fence_offset
        self.branch = branch
        self.last_offset = last_offset
        """Offset of the last durable commit or cut; -1 when there is none. Unit: records."""
        self.ledger = TokenLedger.resumed(length)
        """In order of writing: a Cut takes the sequence back, never the ledger."""
        self.broken: RefusedError | None = None
        """Why nothing more may be written, once that is so."""
        self.on_broken: Callable[[RefusedError], None] | None = None
        self._writer = writer
        self._length = length
        self._next_seq = 0
        self._unoffered: deque[_Entry] = deque()
        self._unsettled: deque[_Entry] = deque()
        self._retry: asyncio.TimerHandle | None = None

    @property
    def length(self) -> int:
        """Tokens appended on the main line. Unit: tokens."""
        return self._length

    @property
    def unsettled(self) -> int:
        """Commits handed over and not yet durable."""
        return len(self._unoffered) + len(self._unsettled)

    def append(self, draft: Draft, on_durable: OnDurable | None = None) -> None:
        """Append a commit and return at once; raise the RefusedError that ended the stream."""
        record = self._record(draft, start=self._length)
        self.ledger = self.ledger.sample(record.count).append(record.count)
        self._length += record.count
        self._add(_Entry(record, on_durable))

    def cut(self, start: int, reason: CutReason, *, turn: int) -> None:
        """Take the sequence back to `start`; for a fork a new branch begins there."""
        if not 0 <= start <= self._length:
            raise InvariantError(f"a cut at {start} lies outside of {self._length} tokens")
        draft = Draft(kind=TokenKind.CUT, turn=turn)
        record = self._record(draft, start=start, reason=reason)
        self._length = start
        self._add(_Entry(record, None))
        self.branch += reason is CutReason.FORK

    def expose(self) -> None:
        """Note that everything durable so far may now be seen by the client."""
        self.ledger = self.ledger.expose(self.ledger.durable)

    def close(self, why: RefusedError) -> None:
        """End the stream: nothing more is written or shown under its fence."""
        if self.broken is not None:
            return
        self.broken = why
        if self._retry is not None:
            self._retry.cancel()
        self._unoffered.clear()
        self._writer.forget(self)
        if self.on_broken is not None:
            self.on_broken(why)

    def _record(
        self, draft: Draft, *, start: int, reason: CutReason = CutReason.NONE
    ) -> TokenCommit:
        if self.broken is not None:
            raise self.broken
        assert len(draft.ids) == len(draft.logprobs) or draft.kind is not TokenKind.ACTION
        ids, logprobs = pack_ids(draft.ids), pack_logprobs(draft.logprobs)
        spans = pack_spans(draft.spans)
        identity = self.identity
        seq = self._next_seq
        self._next_seq += 1
        return TokenCommit(
            run_id=self._writer.run_id,
            episode_id=identity.episode_id,
            group_id=identity.group_id,
            attempt=identity.attempt,
            fence_number=identity.fence_number,
            writer_id=self._writer.worker_id,
            incarnation=self._writer.incarnation,
            producer_number=identity.producer_number,
            kind=draft.kind,
            branch=self.branch,
            turn=draft.turn,
            seq=seq,
            start=start,
            count=len(draft.ids),
            token_ids=ids,
            logprobs=logprobs,
            spans=spans,
            sampling=pack_floats(draft.sampling) if draft.sampling else b"",
            finish_reason=draft.finish_reason,
            cut_reason=reason,
            drift=draft.drift,
            rests_on=self.last_offset if draft.kind is TokenKind.OBSERVATION else -1,
            result_offset=draft.result_offset,
            digests=draft.digests,
            timing=b"" if draft.timing is None else pack_timing(draft.timing),
            crc32c=crc32c(ids, logprobs, spans),
            at_us=self._writer.now_us(),
        )

    def _add(self, entry: _Entry) -> None:
        self._unoffered.append(entry)
        if self._retry is None:
            self._offer()

    def _offer(self) -> None:
        """Hand over what waits, in order; a full queue is tried again, and never skipped."""
        self._retry = None
        while self._unoffered:
            if self._writer.producer_number != self.identity.producer_number:
                self._lose("the producer was renewed")
                return
            entry = self._unoffered[0]
            entry.offered_us = self._writer.monotonic_us()
            pending = self._writer.offer(entry.record)
            if pending.done():
                match pending.result():
                    case Rejected(reason) if reason.startswith("queue full"):
                        loop = asyncio.get_running_loop()
                        self._retry = loop.call_later(_RETRY_S, self._offer)
                        return
                    case _:
                        pass
            self._unoffered.popleft()
            self._unsettled.append(entry)
            reach(CrashPoint.AFTER_APPEND)
            pending.add_done_callback(partial(self._settle, entry))

    def _settle(self, entry: _Entry, pending: Pending) -> None:
        if self.broken is not None:
            return
        match pending.result():
            case Acked() as acked:
                self._ack(entry, acked)
            case Rejected(reason):
                # Later commits may be in the log already: the hole ends this writer's right there.
                self._lose(f"a commit was rejected: {reason}")
            case Unknown(reason):
                self._writer.unknown(f"the outcome of a commit is unknown: {reason}")
                self._lose(f"the outcome of a commit is unknown: {reason}")

    def _ack(self, entry: _Entry, acked: Acked) -> None:
        entry.acked = acked
        self._writer.measure(self._writer.monotonic_us() - entry.offered_us)
        while self._unsettled and (proof := self._unsettled[0].acked) is not None:
            first = self._unsettled.popleft()
            record = first.record
            durable = DurableTokens(record, proof, record.count)
            if durable.offset <= max(self.last_offset, self.fence_offset):
                self._lose(f"offset {durable.offset} does not follow {self.fence_offset}")
                return
            self.last_offset = durable.offset
            reach(CrashPoint.AFTER_DURABLE)
            if record.kind is not TokenKind.CUT:
                self.ledger = self.ledger.acknowledge(record.count)
            if first.on_durable is not None:
                first.on_durable(durable)

    def _lose(self, why: str) -> None:
        self.close(refence(why, highest=self.identity.fence_number))
