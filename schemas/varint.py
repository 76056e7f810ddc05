"""Avro's primitive encodings as tables and small functions, for the generated code in
`records/wire`.

Longs are zigzag varints; lengths are longs. Small values come from tables, the rest from the
functions here. Whatever is out of range or not canonical raises, and the codec then takes its slow
path, which says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

_CACHED_MAX = 8192
_TEXT_MAX = 160
_TAIL_BYTES = 13


def _spelled(zigzag: int) -> bytes:
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


# A negative index counts from the end of a tuple, so one table answers for -64 up to 8191.
LONGS: tuple[bytes, ...] = tuple(
    _spelled(n << 1 if n >= 0 else ~(n << 1)) for n in (*range(8192), *range(-64, 0))
)
PAIRS: tuple[bytes, ...] = tuple(bytes((n & 127 | 128, n >> 7 | 128)) for n in range(1 << 14))
"""Fourteen bits of a varint that goes on after them."""
BYTES: tuple[bytes, ...] = tuple(bytes((n,)) for n in range(128))
SMALL: tuple[int, ...] = tuple(n >> 1 if n % 2 == 0 else ~(n >> 1) for n in range(128))
"""What a one-byte long says."""
DOUBLE = struct.Struct("<d")
FALSE_TRUE = (b"\x00", b"\x01")


class _Tops(dict[int, bytes]):
    # The high bits of clock times change every two minutes, so each is spelled once.
    def __missing__(self, rest: int) -> bytes:
        if len(self) >= _CACHED_MAX:
            self.clear()
        spelled = self[rest] = _spelled(rest)
        return spelled


TOPS = _Tops()
"""Bits 28 and up of a varint, spelled."""


def spell(number: int) -> bytes:
    """Return the varint of a long; raise OverflowError outside 64 bits."""
    if 64 <= number < 0x100000:
        zigzag = number << 1
        if zigzag < 0x4000:
            return LONGS[number]
        return PAIRS[zigzag & 0x3FFF] + BYTES[zigzag >> 14]
    if not -0x8000000000000000 <= number <= 0x7FFFFFFFFFFFFFFF:
        raise OverflowError(f"{number} does not fit in 64 bits")
    zigzag = number << 1 if number >= 0 else ~(number << 1)
    if zigzag >> 28:
        return PAIRS[zigzag & 0x3FFF] + PAIRS[zigzag >> 14 & 0x3FFF] + TOPS[zigzag >> 28]
    return _spelled(zigzag)


# Lists of all 16-bit words, None where a word is not two bytes that go on: an index costs less than
# a key, and None in a sum raises TypeError.
HALVES: list[int | None] = [None] * 65536
"""Two bytes that begin the varint of a long that is not negative, as its lowest 13 bits."""
NEXT: list[int | None] = [None] * 65536
"""The two bytes after them, as 14 more bits."""
TWO: list[int | None] = [None] * 32768
"""What a long of two bytes says, by its bytes as a word."""
for _n, _pair in enumerate(PAIRS):
    _word = int.from_bytes(_pair, "little")
    HALVES[_word] = _n >> 1 if not _n & 1 else None
    NEXT[_word] = _n << 13
    TWO[_word & 0x7FFF] = _n >> 1 if not _n & 1 else ~(_n >> 1)
FIFTH: tuple[int, ...] = tuple(n << 27 for n in range(128))
"""The fifth byte, when it is the last, as bits 27 and up."""
LOWS = PAIRS[::2]
"""The lowest 13 bits of a long that is not negative, as the two bytes that begin its varint."""
unpack_time = struct.Struct("<HH4s").unpack_from
unpack_crc = struct.Struct("<HHB").unpack_from
unpack_tail = struct.Struct("<HHBHH4s").unpack_from


class _Highs(dict[bytes, int]):
    def __missing__(self, four: bytes) -> int:
        if len(four) != 4 or min(four[:3]) < 128 or four[3] > 127:
            raise ValueError("not the end of an eight-byte varint")
        if len(self) >= _CACHED_MAX:
            self.clear()
        value = self[four] = (
            (four[0] & 127) | (four[1] & 127) << 7 | (four[2] & 127) << 14 | four[3] << 21
        ) << 27
        return value


HIGHS = _Highs()
"""The last four bytes of an eight-byte varint, as bits 27 and up."""


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a long and the place after it; raise IndexError at the end, ValueError beyond
    64 bits.
    """
    byte = data[at]
    number = byte & 127
    shift = 7
    while byte > 127:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        shift += 7
    if number >> 64:
        raise ValueError("a long of more than 64 bits")
    return number >> 1 if not number & 1 else ~(number >> 1), at + 1


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length and the place after it; raise ValueError when it is negative or passes the
    end.
    """
    number, at = read_long(data, at)
    if number < 0 or at + number > len(data):
        raise ValueError(f"length {number} at byte {at} passes the end")
    return number, at


TEXTS: dict[str, bytes] = {}
"""Spelled texts of ids and other words that repeat."""
WORDS: dict[bytes, str] = {}
"""The same the other way, which also keeps one copy of each word in memory."""


def spell_text(text: str) -> bytes:
    """Return length and UTF-8 bytes of a text that is likely to repeat, and keep it."""
    body = text.encode()
    spelled = spell(len(body)) + body
    if len(body) <= _TEXT_MAX:
        if len(TEXTS) >= _CACHED_MAX:
            TEXTS.clear()
        TEXTS[text] = spelled
    return spelled


def read_word(body: bytes) -> str:
    """Return the text of UTF-8 bytes that are likely to repeat, and keep it; raise
    UnicodeDecodeError.
    """
    text = body.decode()
    if len(body) <= _TEXT_MAX:
        if len(WORDS) >= _CACHED_MAX:
            WORDS.clear()
        WORDS[body] = text
    return text


def layout_of(
    cut: str, left: int, pieces: Sequence[bytes], is_constant: Sequence[bool]
) -> tuple[Callable[[bytes, int], tuple[Any, ...]], tuple[bytes, ...]] | None:
    """Return how to cut `left` bytes at once: short longs as `cut` says, these pieces, a five-byte
    crc and an eight-byte time.

    A piece that is not constant has its length before it. The answer is a guess for the next record
    of this length: whoever uses it compares the lengths and constants that it cuts out with the
    second value. None when they do not make up `left` bytes.
    """
    shape = "<" + cut
    expected: list[bytes] = []
    total = struct.calcsize(shape) + _TAIL_BYTES
    for piece, constant in zip(pieces, is_constant, strict=True):
        if constant:
            expected.append(piece)
            shape += f"{len(piece)}s"
            total += len(piece)
            continue
        size = spell(len(piece))
        expected.append(size)
        shape += f"{len(size)}s{len(piece)}s"
        total += len(size) + len(piece)
    if total != left:
        return None
    return struct.Struct(shape + "HHBHH4s").unpack_from, tuple(expected)
