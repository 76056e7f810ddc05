"""The reading rule of the token WAL: what every reader makes of one episode's records, in log order
(design section 5).

Fences name who may write; a commit counts only under the current fence, with the next seq and the
right start; a Cut takes the sequence back. Whatever does not count is counted as such, so `accepted
+ sibling + superseded + undecodable` is every token of the log at any moment. Worked cases with
right answers: `tests/schemas/cases/wal_reading_rule.json`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from google_crc32c import value as _crc32c

from schemas.enums import CutReason, TokenKind
from schemas.packing import unpack_logprobs
from schemas.records.token_commit import TokenCommit

_NOWHERE = -1
_SPAN = struct.Struct("<4q")


class Verdict(StrEnum):
    """What a reader makes of one record."""

    CURRENT = "current"
    """A Fence that holds from here on."""
    VOID = "void"
    """A Fence that is not higher than the current one; its writer answers `refence`."""
    ACCEPTED = "accepted"
    """A commit or cut that counts."""
    SUPERSEDED = "superseded"
    """Not by the current writer, or its right has ended."""
    DUPLICATE = "duplicate"
    """A seq already accepted: superseded, and the right stays."""
    GAP = "gap"
    """By the current writer, but it does not continue: superseded, and the right ends."""
    UNDECODABLE = "undecodable"
    """Its bytes do not agree with its crc or count: it counts for nobody and is skipped."""

    @property
    def is_superseded(self) -> bool:
        """Whether the tokens of a record with this verdict count as superseded."""
        return self in (Verdict.SUPERSEDED, Verdict.DUPLICATE, Verdict.GAP)


class FenceId(NamedTuple):
    """What a Fence is compared by: the attempt first, then the number that the environment
    named.
    """

    attempt: int
    number: int


class Writer(NamedTuple):
    """Who wrote a Fence or commit: a worker, its process start, and the producer of that
    process.
    """

    worker_id: str
    incarnation: str
    producer_number: int


# Not frozen: one is made per accepted commit, and a frozen dataclass costs four times as much to
# build.
@dataclass(slots=True, kw_only=True, eq=False)
class Piece:
    """A run of tokens that one commit gave to the sequence; treat it as read-only."""

    kind: TokenKind
    offset: int
    """Offset of the commit in tokens.v1. Unit: records."""
    start: int
    """Index of its first token in the episode; `start - commit.start` is its place in the commit.
    Unit: tokens.
    """
    count: int
    """Tokens; fewer than the commit's after a cut. Unit: tokens."""
    turn: int
    branch: int
    """Forks accepted before it. Unit: branches."""
    commit: TokenCommit


class EpisodeWal:
    """The state of one episode's WAL after the records taken so far, in log order."""

    __slots__ = (
        "_attempt",
        "_incarnation",
        "_number",
        "_producer",
        "_taken",
        "_worker",
        "accepted_action_tokens",
        "accepted_tokens",
        "branch",
        "first_offset",
        "last_offset",
        "length",
        "next_seq",
        "pieces",
        "right",
        "sibling_action_tokens",
        "sibling_tokens",
        "siblings",
        "superseded_action_tokens",
        "superseded_tokens",
        "undecodable_action_tokens",
        "undecodable_tokens",
    )

    def __init__(self) -> None:
        """Start before the first record."""
        self._attempt = _NOWHERE
        self._number = _NOWHERE
        self._worker = ""
        self._incarnation = ""
        self._producer = _NOWHERE
        self._taken: list[tuple[int, TokenCommit]] = []
        self.right = False
        """Whether the current fence's writer may still write."""
        self.next_seq = 0
        self.length = 0
        """Tokens on the main line: where the next commit must start. Unit: tokens."""
        self.branch = 0
        """Forks accepted so far. Unit: branches."""
        self.pieces: list[Piece] = []
        """The main line, in order."""
        self.siblings: list[Piece] = []
        """What forks cut off: accepted, but on no main line."""
        self.accepted_tokens = 0
        """Tokens on the main line, siblings apart. Unit: tokens."""
        self.sibling_tokens = 0
        self.superseded_tokens = 0
        self.undecodable_tokens = 0
        self.accepted_action_tokens = 0
        self.sibling_action_tokens = 0
        self.superseded_action_tokens = 0
        self.undecodable_action_tokens = 0
        self.first_offset = _NOWHERE
        """Offset of the first record of any kind; -1 before it. Unit: records."""
        self.last_offset = _NOWHERE
        """Offset of the last accepted commit or cut; -1 when none. Unit: records."""

    @property
    def fence(self) -> FenceId | None:
        """The current fence, or None before the first."""
        return None if self._attempt < 0 else FenceId(self._attempt, self._number)

    @property
    def writer(self) -> Writer | None:
        """Who wrote the current fence, or None before the first."""
        if self._attempt < 0:
            return None
        return Writer(self._worker, self._incarnation, self._producer)

    # Flat on purpose: it runs once per record of the log, and each call inside it would cost a
    # tenth of it.
    def take(self, offset: int, commit: TokenCommit) -> Verdict:  # noqa: C901  (the rule, read top to bottom)
        """Take the next record of the episode in log order and say what it counts as."""
        if self.first_offset < 0:
            self.first_offset = offset
        count = commit.count
        token_ids = commit.token_ids
        kind = commit.kind
        if (
            _crc32c(token_ids + commit.logprobs + commit.spans) != commit.crc32c
            or len(token_ids) != 4 * count
        ):
            # The count of a damaged record is the best there is: the bytes themselves are not to be
            # believed.
            tokens = max(0, count)
            self.undecodable_tokens += tokens
            if kind is TokenKind.ACTION:
                self.undecodable_action_tokens += tokens
            return Verdict.UNDECODABLE
        if kind is TokenKind.FENCE:
            return self._take_fence(offset, commit)
        if not (
            self.right
            and commit.fence_number == self._number
            and commit.attempt == self._attempt
            and commit.writer_id == self._worker
            and commit.incarnation == self._incarnation
            and commit.producer_number == self._producer
        ):
            return self._supersede(commit, Verdict.SUPERSEDED)
        seq = commit.seq
        if seq != self.next_seq:
            if 0 <= seq < self.next_seq:
                return self._supersede(commit, Verdict.DUPLICATE)
            return self._gap(commit)
        if kind is TokenKind.CUT:
            if not 0 <= commit.start <= self.length or not _says_why(commit.cut_reason):
                return self._gap(commit)
            self._cut(commit.start, keep=commit.cut_reason is CutReason.FORK)
        else:
            if commit.start != self.length:
                return self._gap(commit)
            self.length += count
            self.accepted_tokens += count
            if kind is TokenKind.ACTION:
                self.accepted_action_tokens += count
            self.pieces.append(
                Piece(
                    kind=kind,
                    offset=offset,
                    start=commit.start,
                    count=count,
                    turn=commit.turn,
                    branch=self.branch,
                    commit=commit,
                )
            )
        self.next_seq = seq + 1
        self.last_offset = offset
        self._taken.append((offset, commit))
        return Verdict.ACCEPTED

    def take_bad(self, tokens: int = 0, *, offset: int = _NOWHERE) -> Verdict:
        """Take a record that could not be decoded; `tokens` as far as known.

        It changes no right by itself: if it was the current writer's, the gap it leaves does.
        """
        if self.first_offset < 0:
            self.first_offset = offset
        self.undecodable_tokens += tokens
        return Verdict.UNDECODABLE

    def ended_at(self, wal_position: int) -> EpisodeWal:
        """Return this log with everything after offset `wal_position` superseded: the final Ended's
        WAL end.

        -1 supersedes all of it. The same object comes back when nothing that counts lies after the
        position.
        """
        if wal_position >= self.last_offset:
            return self
        ended = EpisodeWal()
        for offset, commit in self._taken:
            if offset > wal_position:
                break
            ended.take(offset, commit)
        ended.first_offset = self.first_offset
        ended.undecodable_tokens = self.undecodable_tokens
        ended.undecodable_action_tokens = self.undecodable_action_tokens
        ended.superseded_tokens = (
            self.accepted_tokens
            + self.sibling_tokens
            + self.superseded_tokens
            - ended.accepted_tokens
            - ended.sibling_tokens
        )
        ended.superseded_action_tokens = (
            self.accepted_action_tokens
            + self.sibling_action_tokens
            + self.superseded_action_tokens
            - ended.accepted_action_tokens
            - ended.sibling_action_tokens
        )
        return ended

    def _take_fence(self, offset: int, commit: TokenCommit) -> Verdict:
        attempt, number = commit.attempt, commit.fence_number
        if (attempt, number) <= (self._attempt, self._number):
            return Verdict.VOID
        self._attempt = attempt
        self._number = number
        self._worker = commit.writer_id
        self._incarnation = commit.incarnation
        self._producer = commit.producer_number
        self.right = True
        self.next_seq = 0
        self._taken.append((offset, commit))
        return Verdict.CURRENT

    def _supersede(self, commit: TokenCommit, verdict: Verdict) -> Verdict:
        self.superseded_tokens += commit.count
        if commit.kind is TokenKind.ACTION:
            self.superseded_action_tokens += commit.count
        return verdict

    def _gap(self, commit: TokenCommit) -> Verdict:
        self.right = False
        return self._supersede(commit, Verdict.GAP)

    def _cut(self, start: int, *, keep: bool) -> None:
        kept: list[Piece] = []
        while self.pieces and self.pieces[-1].start + self.pieces[-1].count > start:
            piece = self.pieces.pop()
            inside = max(0, start - piece.start)
            if inside:
                self.pieces.append(_part(piece, piece.start, inside))
            tail = _part(piece, piece.start + inside, piece.count - inside)
            self._move_to_lost(tail, keep=keep)
            kept.append(tail)
            if inside:
                break
        self.length = start
        if keep:
            self.siblings.extend(reversed(kept))
            self.branch += 1

    def _move_to_lost(self, tail: Piece, *, keep: bool) -> None:
        actions = tail.count if tail.kind is TokenKind.ACTION else 0
        self.accepted_tokens -= tail.count
        self.accepted_action_tokens -= actions
        if keep:
            self.sibling_tokens += tail.count
            self.sibling_action_tokens += actions
        else:
            self.superseded_tokens += tail.count
            self.superseded_action_tokens += actions


def _part(piece: Piece, start: int, count: int) -> Piece:
    return Piece(
        kind=piece.kind,
        offset=piece.offset,
        start=start,
        count=count,
        turn=piece.turn,
        branch=piece.branch,
        commit=piece.commit,
    )


def _says_why(reason: CutReason) -> bool:
    return reason in (CutReason.FORK, CutReason.RESTORE, CutReason.RESTART)


def check_commit(commit: TokenCommit) -> str | None:
    """Say what is wrong with one commit taken by itself, or None (rules V4, V5 and V9).

    A wrong crc or count makes `EpisodeWal.take` skip the record; anything else here lets it stand
    in the sequence and makes its trajectory untrainable (`invalid_logprob`, `version_mismatch` or
    `invalid_record`).
    """
    if _crc32c(commit.token_ids + commit.logprobs + commit.spans) != commit.crc32c:
        return "crc32c does not match token_ids, logprobs and spans"
    if len(commit.token_ids) != 4 * commit.count:
        return f"{len(commit.token_ids)} bytes of token ids for a count of {commit.count}"
    if not commit.kind.carries_tokens and commit.count:
        return f"a {commit.kind} carries {commit.count} tokens"
    if commit.kind is not TokenKind.ACTION:
        if commit.logprobs or commit.spans:
            return f"a {commit.kind} carries log-probs or spans, which only sampled tokens have"
        return None
    count = commit.count
    if len(commit.logprobs) != 4 * count:
        return f"{len(commit.logprobs)} bytes of log-probs for {count} sampled tokens"
    logprobs = unpack_logprobs(commit.logprobs)
    # A sum of finite float32 values is finite, and NaN or infinity anywhere makes it not so.
    if count and not (max(logprobs) <= 0.0 and math.isfinite(sum(logprobs))):
        return "a log-prob is not finite and at most 0"
    return _check_spans(commit.spans, commit.start, commit.start + count)


def _check_spans(packed: bytes, start: int, end: int) -> str | None:
    if len(packed) % _SPAN.size:
        return f"{len(packed)} bytes of spans are no whole quadruples"
    at = start
    for first, after, epoch, number in _SPAN.iter_unpack(packed):
        if epoch < 0 or number < 0:
            return f"{epoch}/{number} is no policy version"
        if first != at or after <= first:
            return f"spans do not cover tokens {start} to {end}: a gap or overlap at {at}"
        at = after
    return None if at == end else f"spans of tokens {start} to {end} end at {at}"
