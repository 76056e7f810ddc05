"""The audit's own reading of the token WAL (design section 5), compact: a few machine words per
commit.

This is the audit's hot path, so it is written for speed: a commit of the ordinary kind (action, one
span, next in its place) takes a short way, and whatever is not ordinary the long one.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left

from google_crc32c import extend as crc_on
from google_crc32c import value as crc_of

from infra.audit.report import Findings, at
from schemas.enums import CutReason, TokenKind
from schemas.packing import bad_logprob, unpack_logprobs
from schemas.ports import Delivered
from schemas.records.token_commit import TokenCommit
from schemas.topics import COMMIT_BYTES_MAX, TOKENS

_SPAN = struct.Struct("<4q")
_BOUNDS = struct.Struct("<2q")
_NEGATIVE = bytes(range(0x80, 0xFF))
_CUTS = (CutReason.FORK, CutReason.RESTORE, CutReason.RESTART)
_ACTION, _FENCE, _CUT = TokenKind.ACTION, TokenKind.FENCE, TokenKind.CUT
_FAR = 1 << 62
_LONG = COMMIT_BYTES_MAX // 4
"""Bytes of ids above which a commit is measured: what is shorter cannot be over the bound."""


class Line:
    """The WAL of one episode: who may write, what stands, and what every action token became."""

    __slots__ = (
        "accepted",
        "action",
        "crcs",
        "end",
        "fence",
        "first",
        "length",
        "main",
        "partition",
        "places",
        "ragged",
        "right",
        "seq",
        "sibling",
        "starts",
        "superseded",
        "undecodable",
        "version",
        "versions",
    )

    def __init__(self, partition: int, end: int, first: int = -1) -> None:
        """Start before the first record, at offset `first`; what lies after `end` is superseded."""
        self.partition = partition
        self.end = end
        self.first = first
        self.fence: tuple[int, int, str, str, int] | None = None
        self.right = False
        self.seq = 0
        self.length = 0
        self.accepted = array("q")
        """Offsets that count, fences and cuts included, rising."""
        self.starts = array("q")
        """Start of each commit on the main line."""
        self.places = array("q")
        """Offset of that commit."""
        self.crcs = array("I")
        """CRC-32C over its ids and, of an action, its log-probs."""
        self.action = bytearray()
        """Whether that commit holds action tokens."""
        self.ragged: dict[int, int] | None = None
        """Place on the main line of a commit that a Cut shortened, to how many tokens it keeps."""
        self.versions: list[tuple[int, int, int]] = []
        """(start, epoch, number) where the version of the main line's action tokens changes."""
        self.version = b""
        """Epoch and number, packed, of the last action token; empty when a Cut took it."""
        self.main = 0
        """Action tokens on the main line; the other counts likewise."""
        self.sibling = 0
        self.superseded = 0
        self.undecodable = 0

    def stands_at(self, offset: int) -> bool:
        """Whether the record at this offset was accepted, at its time."""
        place = bisect_left(self.accepted, offset)
        return place < len(self.accepted) and self.accepted[place] == offset

    def cut(self, start: int) -> int:
        """Take the main line back to `start`; return how many action tokens that takes out."""
        taken = 0
        end = self.length
        while self.starts and self.starts[-1] >= start:
            begin = self.starts.pop()
            self.places.pop()
            self.crcs.pop()
            taken += (end - begin) if self.action.pop() else 0
            end = begin
        if self.ragged:
            self.ragged = {place: n for place, n in self.ragged.items() if place < len(self.starts)}
        if end > start:
            self.ragged = {**(self.ragged or {}), len(self.starts) - 1: start - self.starts[-1]}
            taken += end - start if self.action[-1] else 0
        while self.versions and self.versions[-1][0] >= start:
            self.versions.pop()
        self.version = b""
        self.length = start
        self.main -= taken
        return taken


class Tokens:
    """All commits of a run."""

    def __init__(
        self, findings: Findings, versions: dict[tuple[int, int], tuple[str, str]] | None = None
    ) -> None:
        """Report to `findings`; `versions` takes every version that a token names, with the first
        episode and place.
        """
        self.by_episode: dict[str, Line] = {}
        self.ends: dict[str, int] = {}
        """WAL end of each final Ended; filled before the first record."""
        self.versions = {} if versions is None else versions
        self.shown: list[tuple[str, int, int, int]] = []
        """(episode, partition, offset, result offset) of accepted Observations that show a
        Result.
        """
        self.commits = 0
        self.void = 0
        self.not_compared = 0
        """Episodes whose payload cannot be compared, as too many commits were shortened."""
        self.checked = 0
        """Commits held against invariant 2."""
        self._version_noted = b""
        """Epoch and number, packed, of the commit before."""
        self._findings = findings

    def take(self, message: Delivered[TokenCommit]) -> None:
        """Take the next record of its partition."""
        commit = message.record
        self.commits += 1
        line = self.by_episode.get(commit.episode_id)
        if line is None:
            end = self.ends.get(commit.episode_id, _FAR)
            line = Line(message.partition, end, message.offset)
            self.by_episode[commit.episode_id] = line
        kind = commit.kind
        sampled = commit.count if kind is _ACTION else 0
        crc = crc_of(commit.token_ids + commit.logprobs)
        if (
            crc_on(crc, commit.spans) != commit.crc32c
            or 4 * commit.count != len(commit.token_ids)
        ):  # fmt: skip
            line.undecodable += max(0, sampled)
            return
        if len(commit.token_ids) > _LONG:
            self._size(message)
        if sampled and commit.spans[16:] != self._version_noted:
            self._note_versions(message)
        if message.offset > line.end:
            line.superseded += sampled
            self.void += 1
        elif kind is _FENCE:
            self._fence(line, message)
        elif not self._accept(line, message, crc):
            line.superseded += sampled
            self.void += 1

    def _fence(self, line: Line, message: Delivered[TokenCommit]) -> None:
        commit = message.record
        if line.fence is not None and (commit.attempt, commit.fence_number) <= line.fence[:2]:
            self.void += 1
            return
        line.fence = _identity(commit)
        line.right, line.seq = True, 0
        line.accepted.append(message.offset)

    def _accept(self, line: Line, message: Delivered[TokenCommit], crc: int) -> bool:
        commit = message.record
        if not line.right or line.fence != _identity(commit):
            return False
        seq = commit.seq
        if 0 <= seq < line.seq:
            return False
        start, kind = commit.start, commit.kind
        if seq != line.seq or (
            start != line.length
            if kind is not _CUT
            else not (0 <= start <= line.length and commit.cut_reason in _CUTS)
        ):
            line.right = False
            return False
        line.seq = seq + 1
        if kind is _CUT:
            taken = line.cut(start)
            if commit.cut_reason is CutReason.FORK:
                line.sibling += taken
            else:
                line.superseded += taken
        else:
            self.checked += 1
            if kind is not _ACTION or not _goes_on(line, commit):
                self._check(line, message)
            count, is_action = commit.count, kind is _ACTION
            line.starts.append(start)
            line.places.append(message.offset)
            line.crcs.append(crc)
            line.action.append(is_action)
            line.length = start + count
            if is_action:
                line.main += count
        line.accepted.append(message.offset)
        return True

    def _size(self, message: Delivered[TokenCommit]) -> None:
        commit = message.record
        size = len(commit.token_ids) + len(commit.logprobs) + len(commit.spans)
        self._findings.check(
            11,
            size <= COMMIT_BYTES_MAX,
            f"a commit of {size} bytes, the bound is {COMMIT_BYTES_MAX}",
            ids=(commit.episode_id,),
            at=(_place(message),),
        )

    def patch(self, line: Line, place: int, commit: TokenCommit) -> None:
        """Let the checksum of a commit that a Cut shortened cover what it keeps of it."""
        keep = 4 * (line.ragged or {})[place]
        crc = crc_of(commit.token_ids[:keep])
        if line.action[place]:
            crc = crc_on(crc, commit.logprobs[:keep])
        line.crcs[place] = crc

    def _check(self, line: Line, message: Delivered[TokenCommit]) -> None:
        commit = message.record
        fault = _fault_of(commit)
        if fault is not None:
            self._findings.broken(2, fault, ids=(commit.episode_id,), at=(_place(message),))
        elif commit.kind is _ACTION:
            for start, _, epoch, number in _SPAN.iter_unpack(commit.spans):
                if not line.versions or line.versions[-1][1:] != (epoch, number):
                    line.versions.append((start, epoch, number))
            line.version = commit.spans[-16:]
        if commit.kind is TokenKind.OBSERVATION:
            self._observation(line, message)

    def _observation(self, line: Line, message: Delivered[TokenCommit]) -> None:
        commit = message.record
        if commit.rests_on >= 0:
            self._findings.check(
                1,
                commit.rests_on < message.offset and line.stands_at(commit.rests_on),
                f"an Observation rests on WAL offset {commit.rests_on}, which does not count",
                ids=(commit.episode_id,),
                at=(_place(message),),
            )
        if commit.result_offset >= 0:
            self.shown.append(
                (commit.episode_id, message.partition, message.offset, commit.result_offset)
            )

    def _note_versions(self, message: Delivered[TokenCommit]) -> None:
        spans = message.record.spans
        if len(spans) % _SPAN.size:
            return
        self._version_noted = spans[16:]
        for _, _, epoch, number in _SPAN.iter_unpack(spans):
            if (epoch, number) not in self.versions:
                self.versions[epoch, number] = (message.record.episode_id, _place(message))


def _identity(commit: TokenCommit) -> tuple[int, int, str, str, int]:
    return (
        commit.attempt,
        commit.fence_number,
        commit.writer_id,
        commit.incarnation,
        commit.producer_number,
    )


def _place(message: Delivered[TokenCommit]) -> str:
    return at(TOKENS.name, message.partition, message.offset)


def _goes_on(line: Line, commit: TokenCommit) -> bool:
    """Whether an action is sound beyond doubt: one span, of the version before, over all its
    tokens, and log-probs that are plainly negative; anything else is looked at in full.
    """
    spans, logprobs, start, count = commit.spans, commit.logprobs, commit.start, commit.count
    return (
        len(spans) == _SPAN.size
        and spans[16:] == line.version
        and len(logprobs) == 4 * count > 0
        and _BOUNDS.unpack_from(spans) == (start, start + count)
        # The last byte of a float32 holds sign and most of the exponent.
        and not logprobs[3::4].translate(None, _NEGATIVE)
    )


def _fault_of(commit: TokenCommit) -> str | None:
    if commit.kind is not TokenKind.ACTION:
        if commit.logprobs or commit.spans:
            return f"a {commit.kind} commit carries log-probs or spans"
        return None
    if len(commit.logprobs) != 4 * commit.count:
        return f"{len(commit.logprobs) // 4} log-probs for {commit.count} sampled tokens"
    logprobs = unpack_logprobs(commit.logprobs)
    # The quick test passes whatever is sound; the slow one says what is not.
    if commit.count and not -1e30 < sum(logprobs) <= max(logprobs) <= 0.0:
        fault = bad_logprob(logprobs, commit.count)
        if fault is not None:
            return fault
    return _fault_of_spans(commit)


def _fault_of_spans(commit: TokenCommit) -> str | None:
    spans = commit.spans
    if len(spans) == _SPAN.size:
        first, last, _, _ = _SPAN.unpack(spans)
        if first == commit.start and last == first + commit.count and commit.count:
            return None
    if len(spans) % _SPAN.size:
        return f"spans of {len(spans)} bytes"
    reached = commit.start
    for start, end, _, _ in _SPAN.iter_unpack(spans):
        if start != reached or end <= start:
            return f"spans leave a gap or overlap at token {reached}"
        reached = end
    if reached != commit.start + commit.count:
        return f"spans end at token {reached}, the commit at {commit.start + commit.count}"
    return None
