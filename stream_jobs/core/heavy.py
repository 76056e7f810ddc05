"""The heavy fields of one episode, joined from the commits of its main line, with their checks
(rules V3 to V6, V9).

What is wrong is said, never repaired: the trajectory stands, and the gate drops it under the reason
given here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.enums import DropReason, TokenKind
from schemas.errors import PoisonRecordError
from schemas.packing import HeavyFields, unpack_spans
from schemas.records.parts import PolicySpan
from schemas.rules.wal import Piece

_SPAN = struct.Struct("<4q")
_SPAN_BYTES = _SPAN.size
_unpack = _SPAN.unpack
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
    """Join the pieces of a main line; each starts where the one before ends.

    Cost matters here: this runs once per commit of every episode, so whole commits of one span, the
    ordinary ones, take a short way.
    """
    action, prompt = TokenKind.ACTION, TokenKind.PROMPT
    actions = prompts = observations = 0
    ids: list[bytes] = []
    logprobs: list[bytes] = []
    mask: list[bytes] = []
    spans = _SpanJoiner()
    for piece in pieces:
        count, commit = piece.count, piece.commit
        token_ids, behaviour = commit.token_ids, commit.logprobs
        if count != commit.count:
            begin = _FLOAT_BYTES * (piece.start - commit.start)
            end = begin + _FLOAT_BYTES * count
            token_ids, behaviour = token_ids[begin:end], behaviour[begin:end]
        ids.append(token_ids)
        if piece.kind is action:
            actions += count
            logprobs.append(behaviour)
            mask.append(b"\x01" * count)
            spans.add(piece)
            continue
        if piece.kind is prompt:
            prompts += count
        else:
            observations += count
        logprobs.append(bytes(_FLOAT_BYTES * count))
        mask.append(bytes(count))
    heavy = HeavyFields(token_ids=b"".join(ids), logprobs=b"".join(logprobs), mask=b"".join(mask))
    return Joined(
        heavy=heavy,
        spans=spans.finish(),
        action_tokens=actions,
        prompt_tokens=prompts,
        observation_tokens=observations,
        defect=_bad_logprobs(heavy) or spans.defect,
    )


def _bad_logprobs(heavy: HeavyFields) -> str:
    if len(heavy.logprobs) != _FLOAT_BYTES * heavy.tokens:
        return (
            f"{DropReason.INVALID_LOGPROB}: V5: {len(heavy.logprobs) // _FLOAT_BYTES} log-probs "
            f"for {heavy.tokens} tokens"
        )
    values = np.frombuffer(heavy.logprobs, dtype="<f4")
    # NaN is both the largest and the smallest value, and compares false.
    if not values.size or (values.max() <= 0.0 and values.min() > -np.inf):
        return ""
    at = int(np.argmin((values <= 0.0) & (values > -np.inf)))
    return f"{DropReason.INVALID_LOGPROB}: V4: log-prob {values[at]} at token {at}"


class _SpanJoiner:
    """Spans in order, neighbours of one version as one."""

    __slots__ = ("_done", "_end", "_epoch", "_number", "_start", "defect")

    def __init__(self) -> None:
        self._done: list[PolicySpan] = []
        self._start = self._end = self._epoch = self._number = -1
        self.defect = ""

    def add(self, piece: Piece) -> None:
        """Add the spans of an Action piece."""
        packed, start = piece.commit.spans, piece.start
        end = start + piece.count
        if len(packed) == _SPAN_BYTES:
            first, last, epoch, number = _unpack(packed)
            if first <= start and last >= end:
                if start == self._end and number == self._number and epoch == self._epoch:
                    self._end = end
                else:
                    self._append(start, end, epoch, number)
                return
        self._add_several(piece, start, end)

    def finish(self) -> tuple[PolicySpan, ...]:
        """Return the spans."""
        self._close()
        return tuple(self._done)

    def _add_several(self, piece: Piece, start: int, end: int) -> None:
        try:
            spans = unpack_spans(piece.commit.spans)
        except (PoisonRecordError, ValueError) as error:
            self.defect = self.defect or f"{DropReason.INVALID_RECORD}: {error}"
            return
        at = start
        for span in spans:
            last = min(span.end, end)
            if span.start <= at < last:
                self._append(at, last, span.version.epoch, span.version.number)
                at = last
        if at != end:
            self.defect = self.defect or (
                f"{DropReason.INVALID_RECORD}: V9: spans of the commit at {piece.offset} do not "
                f"cover tokens {start} to {end}"
            )

    def _append(self, start: int, end: int, epoch: int, number: int) -> None:
        if epoch == self._epoch and number == self._number and start == self._end:
            self._end = end
            return
        if (epoch, number) < (self._epoch, self._number):
            self.defect = self.defect or (
                f"{DropReason.VERSION_MISMATCH}: V6: token {start} is of an older version"
            )
        self._close()
        self._start, self._end, self._epoch, self._number = start, end, epoch, number

    def _close(self) -> None:
        if self._end > self._start:
            self._done.append(
                PolicySpan(start=self._start, end=self._end, epoch=self._epoch, number=self._number)
            )
        self._start = self._end
