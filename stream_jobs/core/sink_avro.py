"""Reads many records of one flat Avro schema at once, field by field, into columns.

Invariants: an answer holds exactly what decoding the records one by one gives; whatever is not
plain (damage, another writer's schema, a text beyond ASCII, a symbol that nobody writes, a number
of more than 56 bits) makes the whole answer None, and the caller decodes one by one. Nothing
outside the joined bytes is read. Source: Avro specification 1.11, binary encoding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InvariantError

Longs = NDArray[np.int64]
_Bits = NDArray[np.uint64]

FRAME_BYTES = 5
_TEXT_MAX = 512
"""A longer text is read one by one, so that one of them costs no others' memory. Unit: bytes."""
_ROOM = bytes(_TEXT_MAX + 8)
"""Follows the last record, since as many bytes are read as the longest text of all has."""
_ASCII = np.uint8(128)
_FEW = 16
"""Texts that one answer may have where they are few."""
_UNKNOWN = "unknown"
"""The symbol that an older reader sees for a newer one; as written, it is refused."""
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_MORE = np.uint64(0x8080808080808080)
_MERGES = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
"""How groups of seven bits move together: which stay, which move, and by how much."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """ASCII texts side by side: text i is `data[offsets[i]:offsets[i + 1]]`."""

    offsets: NDArray[np.int32]
    """int32 [texts + 1]."""
    data: NDArray[np.uint8]
    """uint8 [bytes]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Texts:
        begin, end, _ = rows.indices(len(self))
        return Texts(self.offsets[begin : end + 1], self.data)

    def chosen(self, mask: NDArray[np.bool_]) -> Texts:
        """Return the texts that a mask names."""
        sizes = np.diff(self.offsets)
        offsets = np.zeros(int(mask.sum()) + 1, np.int32)
        np.cumsum(sizes[mask], out=offsets[1:])
        data = self.data[self.offsets[0] : self.offsets[-1]]
        return Texts(offsets, data[np.repeat(mask, sizes)])

    def equal(self, text: str) -> NDArray[np.bool_]:
        """Return bool [texts]: which of them are this text."""
        wanted = np.frombuffer(text.encode(), np.uint8)
        found: NDArray[np.bool_] = np.diff(self.offsets) == len(wanted)
        if found.all() and len(wanted):
            data = self.data[self.offsets[0] : self.offsets[-1]]
            same: NDArray[np.bool_] = (data.reshape(-1, len(wanted)) == wanted).all(axis=1)
            return same
        starts = self.offsets[:-1][found].astype(np.int64)
        places = starts[:, None] + np.arange(len(wanted))
        found[found] = (self.data[places] == wanted).all(axis=1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Texts out of few: text i is `words[codes[i]]`."""

    codes: NDArray[np.int32]
    """int32 [texts]."""
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> Words:
        return Words(self.codes[rows], self.words)

    def chosen(self, mask: NDArray[np.bool_]) -> Words:
        """Return the texts that a mask names."""
        return Words(self.codes[mask], self.words)

    def equal(self, text: str) -> NDArray[np.bool_]:
        """Return bool [texts]: which of them are this text."""
        if text not in self.words:
            return np.zeros(len(self), np.bool_)
        found: NDArray[np.bool_] = self.codes == self.words.index(text)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Blobs:
    """Where the bytes of each record's field lie; they are not copied."""

    eights: _Bits
    """uint64 [bytes]: the eight bytes that begin at each byte of the joined records."""
    starts: Longs
    sizes: Longs

    def packed(self, count: int, *, times: int) -> Longs:
        """Return int64 [rows, count] of the first numbers that each blob packs; -1 where one is no
        whole number of `count` numbers.

        times: how often `count` numbers may stand in one blob; 0 is any number of times but none.
        """
        size = 8 * count
        fits = self.sizes == times * size if times else self.sizes % size == 0
        fits &= self.sizes > 0
        # A blob that does not fit is read all the same: the room behind the last record is wider.
        found = self.eights[self.starts[:, None] + np.arange(0, size, 8)].view(np.int64)
        return np.where(fits[:, None], found, -1)


Field = Longs | Texts | Words | Blobs


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    kind: str
    words: tuple[str, ...] = ()
    is_few: bool = False


class Layout:
    """The fields of one flat record schema, in order."""

    def __init__(self, schema: Mapping[str, Any], *, few: Collection[str] = ()) -> None:
        """Take a parsed schema; raise InvariantError when a field is no long, text, enum or
        bytes. few: texts of which many records have the same few; they are read as Words then.
        """
        self._plans = tuple(
            _plan(field["name"], field["type"], field["name"] in few) for field in schema["fields"]
        )
        # So that numbers of one byte need no look at the end of their record, see _long.
        assert len(self._plans) < _TEXT_MAX

    def read(self, raws: Sequence[bytes], prefix: bytes) -> dict[str, Field] | None:
        """Return the fields by name, or None when the records have to be decoded one by one.

        raws: framed records, at least one. prefix: the frame that all of them must have.
        """
        cursor = _Cursor(raws)
        try:
            cursor.skip(prefix)
            fields = {plan.name: cursor.take(plan) for plan in self._plans}
            cursor.end()
        except _OddError:
            return None
        return fields


def _plan(name: str, kind: Any, is_few: bool) -> _Plan:
    if isinstance(kind, Mapping) and kind["type"] == "enum":
        return _Plan(name, "enum", tuple(kind["symbols"]))
    kind = kind["type"] if isinstance(kind, Mapping) else kind
    if kind not in ("long", "string", "bytes"):
        raise InvariantError(f"{name} of type {kind} cannot be read in bulk")
    return _Plan(name, kind, is_few=is_few)


class _OddError(Exception):
    """The records are not plain."""


class _Cursor:
    """A place in each of many records, moved field by field."""

    def __init__(self, raws: Sequence[bytes]) -> None:
        joined = b"".join((*raws, _ROOM))
        self._bytes = np.frombuffer(joined, np.uint8)
        self._eights: _Bits = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))
        sizes = np.fromiter(map(len, raws), np.int64, len(raws))
        self._ends: Longs = np.cumsum(sizes)
        self._at: Longs = self._ends - sizes

    def skip(self, prefix: bytes) -> None:
        assert len(prefix) == FRAME_BYTES
        mask = np.uint64((1 << 8 * FRAME_BYTES) - 1)
        wanted = np.uint64(int.from_bytes(prefix, "little"))
        self._require((self._eights[self._at] & mask) == wanted)
        self._move(FRAME_BYTES)

    def take(self, plan: _Plan) -> Field:
        match plan.kind:
            case "long":
                return self._long()
            case "enum":
                return self._word(plan.words)
            case "string":
                return self._text(plan.is_few)
            case _:
                return Blobs(self._eights, *self._blob())

    def end(self) -> None:
        self._require(self._at == self._ends)

    def _require(self, holds: NDArray[np.bool_]) -> None:
        if not holds.all():
            raise _OddError

    def _move(self, by: Longs | int) -> None:
        self._at += by
        # Past its end a record is damaged; what was read there is thrown away.
        self._require(self._at <= self._ends)

    def _long(self) -> Longs:
        first = self._bytes[self._at]
        if first.max() < _ASCII:
            # Who is past its end by now stays there: whatever moves by more finds it, or the end.
            self._at += 1
            short = first.view(np.int8)
            return ((short >> 1) ^ -(short & 1)).astype(np.int64)
        bits = self._eights[self._at]
        last = ~bits & _MORE
        self._require(last != 0)
        # The lowest bit that is set tells the byte that ends the number.
        below = (last & -last) - _ONE
        self._move((np.bitwise_count(below).astype(np.int64) + 1) >> 3)
        bits &= below
        bits &= ~_MORE
        for stay, move, by in _MERGES:
            bits = (bits & stay) | ((bits & move) >> by)
        return (bits >> _ONE).view(np.int64) ^ -(bits & _ONE).view(np.int64)

    def _blob(self) -> tuple[Longs, Longs]:
        sizes = self._long()
        starts = self._at
        # Compared before it is added: a wild length would wrap around.
        self._require((sizes >= 0) & (sizes <= self._ends - starts))
        self._at = starts + sizes
        return starts, sizes

    def _text(self, is_few: bool) -> Texts | Words:
        starts, sizes = self._blob()
        if is_few and (words := self._few(starts, sizes)) is not None:
            return words
        texts = self._gathered(starts, sizes)
        self._require(texts.data < _ASCII)
        return texts

    def _few(self, starts: Longs, sizes: Longs) -> Words | None:
        """Return texts by comparing all with the first, what is left with its first, and so on;
        None when they are too many.
        """
        codes = np.zeros(len(sizes), np.int32)
        words: list[str] = []
        left = np.arange(len(sizes))
        while len(left):
            begin, size = int(starts[left[0]]), int(sizes[left[0]])
            text = self._bytes[begin : begin + size]
            if len(words) == _FEW or size > _TEXT_MAX or not (text < _ASCII).all():
                return None
            is_same = self._same(begin, size, starts[left], sizes[left])
            codes[left[is_same]] = len(words)
            words.append(text.tobytes().decode("ascii"))
            left = left[~is_same]
        return Words(codes, tuple(words))

    def _same(self, begin: int, size: int, starts: Longs, sizes: Longs) -> NDArray[np.bool_]:
        """Return which texts are the one of `size` bytes at `begin`, eight bytes at a time."""
        found: NDArray[np.bool_] = sizes == size
        for step in range(0, size, 8):
            mask = np.uint64((1 << 8 * min(8, size - step)) - 1)
            found &= ((self._eights[starts + step] ^ self._eights[begin + step]) & mask) == 0
        return found

    def _gathered(self, starts: Longs, sizes: Longs) -> Texts:
        """Copy texts side by side, eight bytes at a time."""
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        longest = int(sizes.max())
        if not longest:
            return Texts(offsets, np.empty(0, np.uint8))
        if longest > _TEXT_MAX:
            raise _OddError
        if not sizes.all():
            starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        places = starts[:, None] + np.arange(0, longest, 8)
        wide = self._eights[places].view(np.uint8)
        if (sizes == longest).all():
            return Texts(offsets, np.ascontiguousarray(wide[:, :longest]).reshape(-1))
        return Texts(offsets, wide[np.arange(wide.shape[1]) < sizes[:, None]])

    def _word(self, words: tuple[str, ...]) -> Words:
        codes = self._long()
        self._require((codes >= 0) & (codes < len(words)))
        allowed = np.array([word != _UNKNOWN for word in words])
        self._require(allowed[codes])
        return Words(codes.astype(np.int32), words)
