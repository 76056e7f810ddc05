"""The heavy fields of one episode, joined from the commits of its main line, with their checks
(rules V3 to V6, V9).

What is wrong is said, never repaired: the trajectory stands, and the gate drops it under the reason
given here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.enums import DropReason, TokenKind
from schemas.errors import PoisonRecordError
from schemas.ids import Version
from schemas.packing import HeavyFields, Span, unpack_spans
from schemas.records.parts import PolicySpan
from schemas.rules.wal import Piece

_SPAN = struct.Struct("<4q")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The main line of an episode as the learner needs it."""

    heavy: HeavyFields
    spans: tuple[PolicySpan, ...]
    """Over the action tokens, in order; neighbours of one version are one span."""
    action_tokens: int
    prompt_tokens: int
    observation_tokens: int
    defect: str = ""
    """Drop reason, a colon and a sentence, when the trajectory cannot be trained."""


def join(pieces: Sequence[Piece]) -> Joined:
    """Join the pieces of a main line; each starts where the one before ends."""
    counts = dict.fromkeys((TokenKind.ACTION, TokenKind.PROMPT, TokenKind.OBSERVATION), 0)
    ids: list[bytes] = []
    logprobs: list[bytes] = []
    mask: list[bytes] = []
    for piece in pieces:
        count, commit = piece.count, piece.commit
        counts[piece.kind] += count
        begin = _FLOAT_BYTES * (piece.start - commit.start)
        end = begin + _FLOAT_BYTES * count
        ids.append(commit.token_ids[begin:end])
        if piece.kind is TokenKind.ACTION:
            logprobs.append(commit.logprobs[begin:end])
            mask.append(b"\x01" * count)
        else:
            logprobs.append(bytes(_FLOAT_BYTES * count))
            mask.append(bytes(count))
    heavy = HeavyFields(token_ids=b"".join(ids), logprobs=b"".join(logprobs), mask=b"".join(mask))
    spans, gap = _spans(pieces)
    return Joined(
        heavy=heavy,
        spans=spans,
        action_tokens=counts[TokenKind.ACTION],
        prompt_tokens=counts[TokenKind.PROMPT],
        observation_tokens=counts[TokenKind.OBSERVATION],
        defect=_bad_logprobs(heavy) or gap,
    )


def _bad_logprobs(heavy: HeavyFields) -> str:
    if len(heavy.logprobs) != _FLOAT_BYTES * heavy.tokens:
        return (
            f"{DropReason.INVALID_LOGPROB}: V5: {len(heavy.logprobs) // _FLOAT_BYTES} log-probs "
            f"for {heavy.tokens} tokens"
        )
    values = np.frombuffer(heavy.logprobs, dtype="<f4")
    # NaN compares false, so that one comparison finds every value that is not finite and at most 0.
    good = (values <= 0.0) & (values > -np.inf)
    if good.all():
        return ""
    at = int(np.argmin(good))
    return f"{DropReason.INVALID_LOGPROB}: V4: log-prob {values[at]} at token {at}"


def _spans(pieces: Sequence[Piece]) -> tuple[tuple[PolicySpan, ...], str]:
    merged: list[PolicySpan] = []
    defect = ""
    for piece in pieces:
        if piece.kind is not TokenKind.ACTION:
            continue
        at, end = piece.start, piece.start + piece.count
        try:
            own = list(_clipped(piece.commit.spans, at, end))
        except PoisonRecordError as error:
            return tuple(merged), f"{DropReason.INVALID_RECORD}: {error.message}"
        for span in own:
            if span.start != at:
                break
            at = span.end
            defect = defect or _append(merged, span)
        if at != end:
            return tuple(merged), (
                f"{DropReason.INVALID_RECORD}: V9: spans of the commit at {piece.offset} do not "
                f"cover tokens {piece.start} to {end}"
            )
    return tuple(merged), defect


def _clipped(packed: bytes, start: int, end: int) -> Iterator[Span]:
    if len(packed) == _SPAN.size:
        first, last, epoch, number = _SPAN.unpack(packed)
        spans: Sequence[Span] = (Span(first, last, Version(epoch, number)),)
    else:
        spans = unpack_spans(packed)
    for span in spans:
        first, last = max(span.start, start), min(span.end, end)
        if first < last:
            yield Span(first, last, span.version)


def _append(merged: list[PolicySpan], span: Span) -> str:
    epoch, number = span.version.epoch, span.version.number
    if merged:
        last = merged[-1]
        if (last.end, last.epoch, last.number) == (span.start, epoch, number):
            merged[-1] = PolicySpan(start=last.start, end=span.end, epoch=epoch, number=number)
            return ""
    is_older = bool(merged) and (merged[-1].epoch, merged[-1].number) > (epoch, number)
    merged.append(PolicySpan(start=span.start, end=span.end, epoch=epoch, number=number))
    if is_older:
        return f"{DropReason.VERSION_MISMATCH}: V6: token {span.start} is of an older version"
    return ""
