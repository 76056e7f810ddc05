"""Commit before exposure: the one place where sampled tokens become text for a client.

Text comes only from `DurableTokens`, and those are made only from proof that the log holds them: an
acknowledgement with its offset, or the record as it was read back. No other module of the gateway
decodes ids for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference.tokenizer import Tokenizer
from schemas.errors import InvariantError
from schemas.packing import Span, unpack_ids, unpack_logprobs, unpack_spans, unpack_timing
from schemas.ports import Acked, Delivered
from schemas.records.token_commit import TokenCommit

_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True)
class DurableTokens:
    """The tokens of one commit that the log is known to hold."""

    record: TokenCommit
    proof: Acked | Delivered[Any]
    """The acknowledgement with its offset, or the record as read from the log."""
    count: int
    """How many of its tokens stand; fewer than the commit's after a cut. Unit: tokens."""

    def __post_init__(self) -> None:
        match self.proof:
            case Acked(offset=offset):
                sound = offset >= 0
            case Delivered(record=record):
                sound = record is self.record
        if not sound or not 0 <= self.count <= self.record.count:
            raise InvariantError(
                f"no proof that {self.count} tokens of seq {self.record.seq} are durable",
                hint="only an acknowledgement with an offset, or reading the record, is proof",
            )

    @property
    def offset(self) -> int:
        """Offset in tokens.v1. Unit: records."""
        return self.proof.offset

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids. [count]"""
        return tuple(unpack_ids(self.record.token_ids)[: self.count])

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Behaviour log-probs. float32 [count], nats."""
        return tuple(unpack_logprobs(self.record.logprobs)[: self.count])

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that its turn took from the KV cache. Unit: tokens."""
        return unpack_timing(self.record.timing).reused_tokens if self.record.timing else 0

    @property
    def spans(self) -> tuple[Span, ...]:
        """Policy spans, indices in the episode."""
        end = self.record.start + self.count
        return tuple(
            Span(s.start, min(s.end, end), s.version)
            for s in unpack_spans(self.record.spans)
            if s.start < end
        )


class Release:
    """Turns the durable tokens of one turn into text, piece by piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = ""

    def show(self, durable: DurableTokens) -> str:
        """Return the text that these tokens add; half a character waits for its other half."""
        self._ids.extend(durable.ids)
        whole = self._tokenizer.decode(self._ids)
        if whole.endswith(_UNFINISHED):
            whole = whole.rstrip(_UNFINISHED)
        if not whole.startswith(self._shown):
            return ""
        new = whole[len(self._shown) :]
        self._shown = whole
        return new

    def rest(self) -> str:
        """Return what was held back; the turn is over."""
        whole = self._tokenizer.decode(self._ids)
        new = whole[len(self._shown) :] if whole.startswith(self._shown) else ""
        self._shown = whole
        return new


def text_of(durables: Iterable[DurableTokens], tokenizer: Tokenizer) -> str:
    """Return the text of durable tokens, special tokens left out."""
    return tokenizer.decode(ids_of(durables))


def ids_of(durables: Iterable[DurableTokens]) -> list[int]:
    """Return the ids of durable tokens. [n]"""
    return [i for durable in durables for i in durable.ids]
