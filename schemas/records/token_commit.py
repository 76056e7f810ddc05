"""One record of the token write-ahead log (design section 5).

Generated from `schemas/avro/token_commit.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from schemas.enums import CutReason, Drift, FinishReason, TokenKind
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId

_CUTREASON = {member.value: member for member in CutReason if member != "unknown"}
_DRIFT = {member.value: member for member in Drift if member != "unknown"}
_FINISHREASON = {member.value: member for member in FinishReason if member != "unknown"}
_TOKENKIND = {member.value: member for member in TokenKind if member != "unknown"}
_open = object.__setattr__

@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCommit:
    """One record of the token write-ahead log (design section 5)."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    attempt: int
    """Attempt of the current fence. Unit: attempts."""
    fence_number: int
    """Fence number named by the environment. Unit: fences."""
    writer_id: WorkerId
    """The worker that wrote the record."""
    incarnation: str
    """Start of the writing process, unique per start."""
    producer_number: int
    """How often that process has opened a producer. Unit: producers."""
    kind: TokenKind
    """Fence, Cut, Prompt, Observation or Action."""
    branch: int = 0
    """Cuts of kind fork so far. Unit: branches."""
    turn: int = 0
    """Generation turn, from 0. Unit: turns."""
    seq: int = -1
    """Counts commits and cuts after the fence, from 0; -1 in a Fence. Unit: commits."""
    start: int = 0
    """Index of its first token in the episode; of a Cut, where the sequence goes back to. Unit: tokens."""
    count: int = 0
    """Tokens in this commit. Unit: tokens."""
    token_ids: bytes = b""
    """Token ids. Unit: tokens."""
    logprobs: bytes = b""
    """Action only: behaviour log-prob of each sampled id after all sampling transforms. Unit: nats."""
    spans: bytes = b""
    """Action only: policy spans as quadruples start, end, epoch, number."""
    sampling: bytes = b""
    """Action only: temperature, top_p, top_k, turn_tokens_max as resolved by the engine."""
    finish_reason: FinishReason = FinishReason.NONE
    """Last Action commit of a turn: why it ended."""
    cut_reason: CutReason = CutReason.NONE
    """Cut: why."""
    drift: Drift = Drift.NONE
    """Prompt and Observation: drift class of the request."""
    rests_on: int = -1
    """Observation: offset of the WAL record it rests on; -1 when none. Unit: records."""
    result_offset: int = -1
    """Observation: offset in tool-events of the Result it shows; -1 when none. Unit: records."""
    digests: str = ""
    """Fence and Prompt: tokenizer, template and tool-schema digests, joined by a space."""
    timing: bytes = b""
    """Action only: request received, turn's first token, this commit's last token (us since 1970), prompt tokens prefilled and prompt tokens reused from the KV cache in this turn."""
    crc32c: int
    """CRC-32C over token_ids, logprobs and spans, in this order."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("TokenCommit", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("TokenCommit", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("TokenCommit", "group_id", self.group_id)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "attempt", self.attempt)
        if type(self.fence_number) is not int or not -0x8000000000000000 <= self.fence_number < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "fence_number", self.fence_number)
        if type(self.writer_id) is not str:
            raise FieldTypeError("TokenCommit", "writer_id", self.writer_id)
        if type(self.incarnation) is not str:
            raise FieldTypeError("TokenCommit", "incarnation", self.incarnation)
        if type(self.producer_number) is not int or not -0x8000000000000000 <= self.producer_number < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "producer_number", self.producer_number)
        if type(self.kind) is not TokenKind:
            raise FieldTypeError("TokenCommit", "kind", self.kind)
        if type(self.branch) is not int or not -0x8000000000000000 <= self.branch < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "branch", self.branch)
        if type(self.turn) is not int or not -0x8000000000000000 <= self.turn < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "turn", self.turn)
        if type(self.seq) is not int or not -0x8000000000000000 <= self.seq < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "seq", self.seq)
        if type(self.start) is not int or not -0x8000000000000000 <= self.start < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "start", self.start)
        if type(self.count) is not int or not -0x8000000000000000 <= self.count < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "count", self.count)
        if type(self.token_ids) is not bytes:
            raise FieldTypeError("TokenCommit", "token_ids", self.token_ids)
        if type(self.logprobs) is not bytes:
            raise FieldTypeError("TokenCommit", "logprobs", self.logprobs)
        if type(self.spans) is not bytes:
            raise FieldTypeError("TokenCommit", "spans", self.spans)
        if type(self.sampling) is not bytes:
            raise FieldTypeError("TokenCommit", "sampling", self.sampling)
        if type(self.finish_reason) is not FinishReason:
            raise FieldTypeError("TokenCommit", "finish_reason", self.finish_reason)
        if type(self.cut_reason) is not CutReason:
            raise FieldTypeError("TokenCommit", "cut_reason", self.cut_reason)
        if type(self.drift) is not Drift:
            raise FieldTypeError("TokenCommit", "drift", self.drift)
        if type(self.rests_on) is not int or not -0x8000000000000000 <= self.rests_on < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "rests_on", self.rests_on)
        if type(self.result_offset) is not int or not -0x8000000000000000 <= self.result_offset < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "result_offset", self.result_offset)
        if type(self.digests) is not str:
            raise FieldTypeError("TokenCommit", "digests", self.digests)
        if type(self.timing) is not bytes:
            raise FieldTypeError("TokenCommit", "timing", self.timing)
        if type(self.crc32c) is not int or not -0x8000000000000000 <= self.crc32c < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "crc32c", self.crc32c)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("TokenCommit", "at_us", self.at_us)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "attempt": self.attempt,
            "fence_number": self.fence_number,
            "writer_id": self.writer_id,
            "incarnation": self.incarnation,
            "producer_number": self.producer_number,
            "kind": self.kind,
            "branch": self.branch,
            "turn": self.turn,
            "seq": self.seq,
            "start": self.start,
            "count": self.count,
            "token_ids": self.token_ids,
            "logprobs": self.logprobs,
            "spans": self.spans,
            "sampling": self.sampling,
            "finish_reason": self.finish_reason,
            "cut_reason": self.cut_reason,
            "drift": self.drift,
            "rests_on": self.rests_on,
            "result_offset": self.result_offset,
            "digests": self.digests,
            "timing": self.timing,
            "crc32c": self.crc32c,
            "at_us": self.at_us,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            attempt=raw["attempt"],
            fence_number=raw["fence_number"],
            writer_id=WorkerId(raw["writer_id"]),
            incarnation=raw["incarnation"],
            producer_number=raw["producer_number"],
            kind=_TOKENKIND[raw["kind"]],
            branch=raw["branch"],
            turn=raw["turn"],
            seq=raw["seq"],
            start=raw["start"],
            count=raw["count"],
            token_ids=raw["token_ids"],
            logprobs=raw["logprobs"],
            spans=raw["spans"],
            sampling=raw["sampling"],
            finish_reason=_FINISHREASON[raw["finish_reason"]],
            cut_reason=_CUTREASON[raw["cut_reason"]],
            drift=_DRIFT[raw["drift"]],
            rests_on=raw["rests_on"],
            result_offset=raw["result_offset"],
            digests=raw["digests"],
            timing=raw["timing"],
            crc32c=raw["crc32c"],
            at_us=raw["at_us"],
        )


class TokenCommitDraft:
    """The layout of TokenCommit without its lock: it is filled, then becomes the record."""

    __slots__ = TokenCommit.__slots__


def _init_TokenCommit(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    attempt: int,
    fence_number: int,
    writer_id: WorkerId,
    incarnation: str,
    producer_number: int,
    kind: TokenKind,
    branch: int = 0,  # noqa: B008  immutable
    turn: int = 0,  # noqa: B008  immutable
    seq: int = -1,  # noqa: B008  immutable
    start: int = 0,  # noqa: B008  immutable
    count: int = 0,  # noqa: B008  immutable
    token_ids: bytes = b"",  # noqa: B008  immutable
    logprobs: bytes = b"",  # noqa: B008  immutable
    spans: bytes = b"",  # noqa: B008  immutable
    sampling: bytes = b"",  # noqa: B008  immutable
    finish_reason: FinishReason = FinishReason.NONE,  # noqa: B008  immutable
    cut_reason: CutReason = CutReason.NONE,  # noqa: B008  immutable
    drift: Drift = Drift.NONE,  # noqa: B008  immutable
    rests_on: int = -1,  # noqa: B008  immutable
    result_offset: int = -1,  # noqa: B008  immutable
    digests: str = "",  # noqa: B008  immutable
    timing: bytes = b"",  # noqa: B008  immutable
    crc32c: int,
    at_us: int,
) -> None:
    _open(self, "__class__", TokenCommitDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.attempt = attempt
    self.fence_number = fence_number
    self.writer_id = writer_id
    self.incarnation = incarnation
    self.producer_number = producer_number
    self.kind = kind
    self.branch = branch
    self.turn = turn
    self.seq = seq
    self.start = start
    self.count = count
    self.token_ids = token_ids
    self.logprobs = logprobs
    self.spans = spans
    self.sampling = sampling
    self.finish_reason = finish_reason
    self.cut_reason = cut_reason
    self.drift = drift
    self.rests_on = rests_on
    self.result_offset = result_offset
    self.digests = digests
    self.timing = timing
    self.crc32c = crc32c
    self.at_us = at_us
    self.__class__ = TokenCommit


# What it does is what the generated one does; `replace` and `copy` go through it too.
TokenCommit.__init__ = _init_TokenCommit  # type: ignore[method-assign]
