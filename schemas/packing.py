"""Heavy arrays as little-endian bytes: token ids, log-probs, policy spans, sampling parameters,
trajectory payloads.

Avro cannot check these; the functions here do, and raise PoisonRecordError naming the field.
Layouts are described to the byte in `inference/WAL_FORMAT.md`.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from schemas.errors import PoisonRecordError
from schemas.ids import Version

_SWAP = sys.byteorder == "big"
_MAGIC = b"SLTP\x01\x00\x00\x00"


def _pack(code: str, values: Iterable[int] | Iterable[float]) -> bytes:
    packed = array(code, values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes, name: str) -> Any:
    out: array[Any] = array(code)
    if len(data) % out.itemsize:
        raise PoisonRecordError(
            f"{name}: {len(data)} bytes are no multiple of {out.itemsize}",
            hint="the writer packed it wrongly",
        )
    out.frombytes(data)
    if _SWAP:
        out.byteswap()
    return out


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids as int32; raise OverflowError outside its range."""
    return _pack("i", ids)


def unpack_ids(data: bytes) -> Sequence[int]:
    """Return the token ids of packed int32 bytes."""
    ids: Sequence[int] = _unpack("i", data, "token_ids")
    return ids


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    """Pack log-probs as float32."""
    return _pack("f", logprobs)


def unpack_logprobs(data: bytes) -> Sequence[float]:
    """Return the log-probs of packed float32 bytes."""
    logprobs: Sequence[float] = _unpack("f", data, "logprobs")
    return logprobs


def pack_floats(values: Iterable[float]) -> bytes:
    """Pack parameters as float64."""
    return _pack("d", values)


def unpack_floats(data: bytes) -> Sequence[float]:
    """Return the float64 values of packed bytes."""
    floats: Sequence[float] = _unpack("d", data, "sampling")
    return floats


@dataclass(frozen=True, slots=True)
class Span:
    """Action tokens `start` to `end` (exclusive, indices in the episode) sampled under one
    version.
    """

    start: int
    end: int
    version: Version


def pack_spans(spans: Iterable[Span]) -> bytes:
    """Pack spans as int64 quadruples start, end, epoch, number."""
    return _pack(
        "q", [v for s in spans for v in (s.start, s.end, s.version.epoch, s.version.number)]
    )


def unpack_spans(data: bytes) -> tuple[Span, ...]:
    """Return the spans of packed bytes; raise PoisonRecordError when they are no whole
    quadruples or name no possible version.
    """
    flat = _unpack("q", data, "spans")
    if len(flat) % 4:
        raise PoisonRecordError(
            f"spans: {len(flat)} numbers are no whole quadruples",
            hint="the writer packed it wrongly",
        )
    numbers = [int(v) for v in flat]
    try:
        return tuple(
            Span(numbers[i], numbers[i + 1], Version(numbers[i + 2], numbers[i + 3]))
            for i in range(0, len(numbers), 4)
        )
    except ValueError as error:
        raise PoisonRecordError(f"spans: {error}", hint="the writer packed it wrongly") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When an Action commit came about, and what the KV cache saved its turn."""

    requested_us: int
    """When the gateway received the request. Unit: us."""
    first_token_us: int
    """When the turn's first token was sampled. Unit: us."""
    last_token_us: int
    """When this commit's last token was sampled. Unit: us."""
    prefilled_tokens: int
    """Prompt tokens computed anew in this turn. Unit: tokens."""
    reused_tokens: int
    """Prompt tokens taken from the KV cache in this turn. Unit: tokens."""


_TIMING = struct.Struct("<5q")


def pack_timing(timing: Timing) -> bytes:
    """Pack the times and counts of an Action commit as five int64."""
    return _TIMING.pack(
        timing.requested_us,
        timing.first_token_us,
        timing.last_token_us,
        timing.prefilled_tokens,
        timing.reused_tokens,
    )


def unpack_timing(data: bytes) -> Timing:
    """Return the timing of an Action commit; raise PoisonRecordError when it is not five int64."""
    if len(data) != _TIMING.size:
        raise PoisonRecordError(
            f"timing: {len(data)} bytes are not {_TIMING.size}", hint="only Action commits carry it"
        )
    requested, first, last, prefilled, reused = _TIMING.unpack(data)
    return Timing(
        requested_us=requested,
        first_token_us=first,
        last_token_us=last,
        prefilled_tokens=prefilled,
        reused_tokens=reused,
    )


def spans_cover(spans: Sequence[Span], start: int, end: int) -> bool:
    """Whether spans cover [start, end) with no gap and no overlap (rule V9)."""
    at = start
    for span in spans:
        if span.start != at or span.end <= span.start:
            return False
        at = span.end
    return at == end


def crc32c(*parts: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of the parts joined. Source: RFC 3720, appendix B.4."""
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return crc


def bad_logprob(logprobs: Sequence[float], expected: int) -> str | None:
    """Say what is wrong with the log-probs of `expected` sampled tokens, or None (rules V4, V5)."""
    if len(logprobs) != expected:
        return f"{len(logprobs)} log-probs for {expected} sampled tokens"
    for index, value in enumerate(logprobs):
        if not math.isfinite(value) or value > 0.0:
            return f"log-prob {value} at index {index} is not finite and at most 0"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyFields:
    """The per-token fields of one trajectory, all of length n, kept packed."""

    token_ids: bytes
    """int32 [n]"""
    logprobs: bytes
    """float32 [n]; 0 where the token was not sampled."""
    mask: bytes
    """uint8 [n]; 1 for an action token that is trained, 0 otherwise."""

    @property
    def tokens(self) -> int:
        """Tokens in the trajectory."""
        return len(self.mask)


def pack_heavy(heavy: HeavyFields) -> bytes:
    """Return magic, n as uint64, then token_ids, logprobs, mask."""
    n = heavy.tokens
    if len(heavy.token_ids) != 4 * n or len(heavy.logprobs) != 4 * n:
        raise PoisonRecordError(f"heavy fields disagree in length for {n} tokens", hint="rule V5")
    return b"".join((_MAGIC, n.to_bytes(8, "little"), heavy.token_ids, heavy.logprobs, heavy.mask))


def unpack_heavy(blob: bytes | memoryview) -> HeavyFields:
    """Return the heavy fields of a blob; raise PoisonRecordError when its frame is wrong."""
    view = bytes(blob)
    if view[:8] != _MAGIC or len(view) < 16:
        raise PoisonRecordError(
            "payload does not start with the trajectory frame",
            hint="it was written by something else",
        )
    n = int.from_bytes(view[8:16], "little")
    if len(view) != 16 + 9 * n:
        raise PoisonRecordError(
            f"payload of {len(view)} bytes cannot hold {n} tokens", hint="a part is missing or cut"
        )
    return HeavyFields(
        token_ids=view[16 : 16 + 4 * n],
        logprobs=view[16 + 4 * n : 16 + 8 * n],
        mask=view[16 + 8 * n :],
    )
