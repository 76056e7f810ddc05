"""Records as columns: what a batch of a busy topic holds in place of one object per record.

Invariants: the rows of a slab are those of the same records decoded one by one, column by column;
records of other runs are in no slab; a record that cannot be read in bulk stays in its frames, and
damage costs its neighbours no more than being decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.codec import parsed
from schemas.ids import RunId
from schemas.ports import Delivered, Frames
from schemas.topics import TOKENS
from stream_jobs.core.sink_avro import Blobs, Field, Layout, Longs, Texts, Words
from stream_jobs.core.sink_columns import PLACE, Column, Rows, Table, Values, instants
from stream_jobs.core.sink_tables import TABLES, timings_of, versions_of

BULK_MIN = 128
"""Fewer records are decoded faster one by one. Unit: records."""

SlabValues: TypeAlias = Values | Texts | Words


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slab:
    """Records of one run in one partition as the columns of their table, in offset order."""

    topic: str
    partition: int
    offsets: Longs
    times_ms: Longs
    """Broker times, within what the tables can hold. Unit: ms."""
    values: Mapping[str, Any]
    """Column name to SlabValues, one a record."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first(self) -> int:
        """Offset of the first record."""
        return int(self.offsets[0])

    @property
    def last(self) -> int:
        """Offset of the last record."""
        return int(self.offsets[-1])

    def within(self, first: int, last: int) -> Slab:
        """Return its records between two offsets, both inclusive; their bytes are shared."""
        begin = int(np.searchsorted(self.offsets, first))
        end = int(np.searchsorted(self.offsets, last, side="right"))
        if (begin, end) == (0, len(self)):
            return self
        some = slice(begin, end)
        return Slab(
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets[some],
            times_ms=self.times_ms[some],
            values={name: values[some] for name, values in self.values.items()},
        )


Held: TypeAlias = Delivered[Any] | Slab
"""What a batch is made of: a record, or many of them as columns."""


def count(held: Iterable[Held]) -> int:
    """Return how many records these are."""
    return sum(len(one) if isinstance(one, Slab) else 1 for one in held)


def times_of(held: Sequence[Held]) -> NDArray[np.int64]:
    """Return the broker times of records, within what the tables can hold. Unit: ms."""
    alone = [one.timestamp_ms for one in held if isinstance(one, Delivered)]
    slabs = [one.times_ms for one in held if isinstance(one, Slab)]
    return np.concatenate([instants(alone), *slabs])


def _shared(fields: Mapping[str, Field]) -> dict[str, Any]:
    spans, timing = fields["spans"], fields["timing"]
    assert isinstance(spans, Blobs)
    assert isinstance(timing, Blobs)
    return {
        "versions": versions_of(spans.packed(4, times=0)[:, 2:]),
        "timings": timings_of(timing.packed(5, times=1)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """How the records of a topic are read many at once."""

    table: Table
    """The one table that they fill."""
    layout: Layout
    shared: Callable[[Mapping[str, Field]], dict[str, Any]]
    """Works out of the fields what the computed columns are taken from."""

    def slab(self, frames: Frames, run_id: RunId, prefix: bytes) -> Slab | None:
        """Return the records of a run; None when they have to be decoded one by one.

        prefix: the frame of records in our own schema.
        """
        fields = self.layout.read(frames.raws, prefix)
        if fields is None:
            return None
        runs = fields["run_id"]
        assert isinstance(runs, Texts | Words)
        is_ours = runs.equal(run_id)
        offsets = np.array(frames.offsets, np.int64)
        times_ms = instants(frames.timestamps_ms)
        rows = Rows((), (), self.shared(fields))
        values = {one.name: _values(one, fields, rows) for one in self.table.columns[len(PLACE) :]}
        if not is_ours.all():
            offsets, times_ms = offsets[is_ours], times_ms[is_ours]
            values = {name: _chosen(found, is_ours) for name, found in values.items()}
        same = np.zeros(len(offsets), np.int32)
        values |= {
            "run_id": Words(same, (run_id,)),
            "ts": times_ms,
            "src_topic": Words(same, (frames.topic,)),
            "src_partition": np.full(len(offsets), frames.partition, np.uint16),
            "src_offset": offsets.astype(np.uint64),
        }
        return Slab(
            topic=frames.topic,
            partition=frames.partition,
            offsets=offsets,
            times_ms=times_ms,
            values=values,
        )


def _values(column: Column, fields: Mapping[str, Field], rows: Rows) -> Any:
    if not column.field:
        assert column.values is not None
        return column.values(rows)
    found: Any = fields[column.field]
    return found if column.turn is None else column.turn(found)


def _chosen(values: Any, mask: NDArray[np.bool_]) -> Any:
    return values[mask] if isinstance(values, np.ndarray) else values.chosen(mask)


def in_bulk(frames: Frames, run_id: RunId, prefix: bytes) -> list[Slab | Frames]:
    """Return records as slabs where they can be read in bulk, and else as frames, in order.

    Halved until what is odd stands among few others.
    """
    if len(frames) < BULK_MIN:
        return [frames]
    slab = BULK[frames.topic].slab(frames, run_id, prefix)
    if slab is not None:
        return [slab] if len(slab) else []
    half = len(frames) // 2
    return [
        *in_bulk(frames[:half], run_id, prefix),
        *in_bulk(frames[half:], run_id, prefix),
    ]


def merged(some: Sequence[Frames]) -> Frames:
    """Return frames of one partition that follow one another as one."""
    if len(some) == 1:
        return some[0]
    return Frames(
        topic=some[0].topic,
        partition=some[0].partition,
        offsets=[offset for one in some for offset in one.offsets],
        timestamps_ms=[at for one in some for at in one.timestamps_ms],
        keys=[key for one in some for key in one.keys],
        raws=[raw for one in some for raw in one.raws],
    )


BULK: Mapping[str, Bulk] = {
    TOKENS.name: Bulk(
        table=TABLES[TOKENS.name][0],
        layout=Layout(parsed(TOKENS.schema), few=("run_id", "writer_id", "incarnation")),
        shared=_shared,
    )
}
"""The topics that are read in bulk: those with many records."""
