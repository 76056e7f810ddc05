"""Cuts each partition's records into batches: at so many offsets, after so long, at a given border.

Invariants: a batch is one partition and contiguous offsets (records that were compacted away or
belong to other runs leave no row, yet their offsets are covered); what is held is counted, so that
the shell can keep it bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stream_jobs.core.sink_ranges import Range
from stream_jobs.core.sink_slabs import Held, Slab, count

Place = tuple[str, int]
"""Logical topic name and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records of one partition whose offsets `range` covers."""

    place: Place
    range: Range
    messages: tuple[Held, ...]

    def within(self, piece: Range) -> tuple[Held, ...]:
        """Return its records inside a part of its range."""
        if piece == self.range:
            return self.messages
        found: list[Held] = []
        for one in self.messages:
            if isinstance(one, Slab):
                if len(some := one.within(piece.first, piece.last)):
                    found.append(some)
            elif piece.first <= one.offset <= piece.last:
                found.append(one)
        return tuple(found)


@dataclass(slots=True)
class _Pending:
    first: int
    """First offset not yet in a batch."""
    end: int
    """Next offset to come."""
    border: int | None = None
    """The next batch ends exactly here."""
    messages: deque[Held] = field(default_factory=deque)
    came: deque[tuple[int, int]] = field(default_factory=deque)
    """Last offset of what came at once, and when. Unit: ms."""

    @property
    def since_ms(self) -> int:
        """When the oldest record came; 0 when there is none."""
        return self.came[0][1] if self.came else 0


class Batches:
    """What was read and is not yet in a batch, by partition."""

    def __init__(
        self,
        starts: Mapping[Place, tuple[int, int | None]],
        *,
        offsets_max: int,
        interval_ms: int,
    ) -> None:
        """Take the first offset and the border, if any, of each partition.

        offsets_max: offsets in one batch, at most. interval_ms: a batch is due so long after its
        oldest record came.
        """
        self._pending = {
            place: _Pending(first=first, end=first, border=border)
            for place, (first, border) in starts.items()
        }
        self._offsets_max = offsets_max
        self._interval_ms = interval_ms
        self.held = 0
        """Records held whole. Unit: records."""
        self.rows = 0
        """Records of which only the row is held. Unit: rows."""

    def take(self, message: Held, *, now_ms: int) -> None:
        """Hold records of the run; what was taken already, after a rewind, is left out."""
        pending = self._pending[message.topic, message.partition]
        last = _last(message)
        if last < pending.end:
            return
        if isinstance(message, Slab):
            message = message.within(pending.end, last)
        pending.messages.append(message)
        if pending.came and pending.came[-1][1] == now_ms:
            pending.came.pop()
        pending.came.append((last, now_ms))
        pending.end = last + 1
        self._count(message, 1)

    def reach(self, positions: Mapping[Place, int]) -> None:
        """Note the next offset to be delivered of each partition; below it nothing comes."""
        for place, position in positions.items():
            pending = self._pending.get(place)
            if pending is None or position <= pending.end:
                continue
            pending.end = position
            if not pending.messages and pending.border is None:
                # Only other runs' records: there is nothing to insert, and nothing to remember.
                pending.first = position

    def rewind(self, place: Place, settled: Range) -> None:
        """Forget what is held of a partition; it is read again, and cut at the end of `settled`."""
        for one in self._pending[place].messages:
            self._count(one, -1)
        self._pending[place] = _Pending(first=settled.first, end=settled.first, border=settled.last)

    def due(self, *, now_ms: int, all_of_it: bool = False) -> list[Batch]:
        """Return the batches to insert now; `all_of_it` takes what is held whatever its age."""
        return [
            batch
            for place, pending in self._pending.items()
            for batch in self._cut(place, pending, now_ms, all_of_it)
        ]

    def full(self) -> list[Batch]:
        """Return only the batches that no later record can join."""
        return [
            batch
            for place, pending in self._pending.items()
            for batch in self._cut(place, pending, pending.since_ms, False)
        ]

    def fullest(self, *, rows_min: int) -> list[Batch]:
        """Return what is held of the partitions that hold the most, until so many records are in
        it; the others go on growing, since few large inserts cost less than many small ones.
        """
        found: list[Batch] = []
        taken = 0
        sizes = {place: count(pending.messages) for place, pending in self._pending.items()}
        for place in sorted(sizes, key=lambda one: sizes[one], reverse=True):
            if taken >= rows_min:
                break
            batches = list(self._cut(place, self._pending[place], 0, True))
            taken += sum(count(batch.messages) for batch in batches)
            found += batches
        return found

    def oldest_ms(self) -> int | None:
        """Return when the oldest held record came; None when nothing is held."""
        return min((p.since_ms for p in self._pending.values() if p.messages), default=None)

    def _cut(
        self, place: Place, pending: _Pending, now_ms: int, all_of_it: bool
    ) -> Iterator[Batch]:
        if pending.border is not None:
            if pending.end <= pending.border:
                return
            border, pending.border = pending.border, None
            yield self._take_up_to(place, pending, border)
        self._begin_at_a_record(pending)
        while pending.end - pending.first >= self._offsets_max and pending.messages:
            yield self._take_up_to(place, pending, pending.first + self._offsets_max - 1)
            self._begin_at_a_record(pending)
        is_old = pending.messages and now_ms - pending.since_ms >= self._interval_ms
        if pending.messages and (is_old or all_of_it):
            yield self._take_up_to(place, pending, pending.end - 1)

    @staticmethod
    def _begin_at_a_record(pending: _Pending) -> None:
        """Leave offsets of other runs, or of none, before the first record out of its range: so a
        range begins at the same offset for everyone who knows where the one before it ended.
        """
        if pending.messages:
            pending.first = max(pending.first, _first(pending.messages[0]))

    def _take_up_to(self, place: Place, pending: _Pending, last: int) -> Batch:
        messages: list[Held] = []
        while pending.messages and _first(pending.messages[0]) <= last:
            one = pending.messages.popleft()
            if isinstance(one, Slab) and one.last > last:
                pending.messages.appendleft(one.within(last + 1, one.last))
                one = one.within(one.first, last)
            messages.append(one)
            self._count(one, -1)
        batch = Batch(place=place, range=Range(pending.first, last), messages=tuple(messages))
        pending.first = last + 1
        while pending.came and pending.came[0][0] <= last:
            pending.came.popleft()
        return batch

    def _count(self, one: Held, sign: int) -> None:
        if isinstance(one, Slab):
            self.rows += sign * len(one)
        else:
            self.held += sign


def _first(one: Held) -> int:
    return one.first if isinstance(one, Slab) else one.offset


def _last(one: Held) -> int:
    return one.last if isinstance(one, Slab) else one.offset
