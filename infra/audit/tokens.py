"""The audit's own reading of the token WAL (design section 5), compact: a few machine words per
commit.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left

from google_crc32c import value as crc_of

from infra.audit.report import Findings, at
from schemas.enums import CutReason, TokenKind
from schemas.packing import bad_logprob, unpack_logprobs
from schemas.ports import Delivered
from schemas.records.token_commit import TokenCommit
from schemas.topics import TOKENS

_SPAN = struct.Struct("<4q")
_CUTS = (CutReason.FORK, CutReason.RESTORE, CutReason.RESTART)
_FAR = 1 << 62


class Line:
    """The WAL of one episode: who may write, what stands, and what every action token became."""

    __slots__ = (
        "accepted",
        "action",
        "end",
        "fence",
        "length",
        "main",
        "partition",
        "right",
        "seq",
        "sibling",
        "starts",
        "superseded",
        "undecodable",
        "versions",
    )

    def __init__(self, partition: int, end: int) -> None:
        """Start before the first record; what lies after offset `end` is superseded."""
        self.partition = partition
        self.end = end
        self.fence: tuple[int, int, str, str, int] | None = None
        self.right = False
        self.seq = 0
        self.length = 0
        self.accepted = array("q")
        """Offsets that count, fences and cuts included, rising."""
        self.starts = array("q")
        """Start of each commit on the main line."""
        self.action = bytearray()
        """Whether that commit holds action tokens."""
        self.versions: list[tuple[int, int, int]] = []
        """(start, epoch, number) where the version of the main line's action tokens changes."""
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
            taken += (end - begin) if self.action.pop() else 0
            end = begin
        if end > start and self.action[-1]:
            taken += end - start
        while self.versions and self.versions[-1][0] >= start:
            self.versions.pop()
        self.length = start
        self.main -= taken
        return taken


class Tokens:
    """All commits of a run."""

    def __init__(self, findings: Findings) -> None:
        """Report to `findings`."""
        self.by_episode: dict[str, Line] = {}
        self.ends: dict[str, int] = {}
        """WAL end of each final Ended; filled before the first record."""
        self.versions: dict[tuple[int, int], tuple[str, str]] = {}
        """Every version that a token names, with the first episode and place."""
        self.shown: list[tuple[str, int, int, int]] = []
        """(episode, partition, offset, result offset) of accepted Observations that show a
        Result.
        """
        self.commits = 0
        self.void = 0
        self._findings = findings

    def take(self, message: Delivered[TokenCommit]) -> None:
        """Take the next record of its partition."""
        commit = message.record
        self.commits += 1
        line = self.by_episode.get(commit.episode_id)
        if line is None:
            end = self.ends.get(commit.episode_id, _FAR)
            line = self.by_episode[commit.episode_id] = Line(message.partition, end)
        is_action = commit.kind is TokenKind.ACTION
        sampled = commit.count if is_action else 0
        packed = commit.token_ids + commit.logprobs + commit.spans
        if crc_of(packed) != commit.crc32c or 4 * commit.count != len(commit.token_ids):
            line.undecodable += max(0, sampled)
            return
        if is_action:
            self._note_versions(message)
        if message.offset > line.end:
            line.superseded += sampled
            self.void += 1
        elif commit.kind is TokenKind.FENCE:
            self._fence(line, message)
        elif not self._accept(line, message):
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

    def _accept(self, line: Line, message: Delivered[TokenCommit]) -> bool:
        commit = message.record
        if not line.right or line.fence != _identity(commit):
            return False
        if 0 <= commit.seq < line.seq:
            return False
        is_cut = commit.kind is TokenKind.CUT
        fits = (
            0 <= commit.start <= line.length and commit.cut_reason in _CUTS
            if is_cut
            else commit.start == line.length
        )
        if commit.seq != line.seq or not fits:
            line.right = False
            return False
        line.seq += 1
        if is_cut:
            taken = line.cut(commit.start)
            if commit.cut_reason is CutReason.FORK:
                line.sibling += taken
            else:
                line.superseded += taken
        else:
            self._check(line, message)
            line.starts.append(commit.start)
            line.action.append(commit.kind is TokenKind.ACTION)
            line.length += commit.count
            if commit.kind is TokenKind.ACTION:
                line.main += commit.count
        line.accepted.append(message.offset)
        return True

    def _check(self, line: Line, message: Delivered[TokenCommit]) -> None:
        commit, findings = message.record, self._findings
        findings.checked[2] += 1
        fault = _fault_of(commit)
        if fault is not None:
            findings.broken(2, fault, ids=(commit.episode_id,), at=(_place(message),))
        elif commit.kind is TokenKind.ACTION:
            for start, _, epoch, number in _SPAN.iter_unpack(commit.spans):
                if not line.versions or line.versions[-1][1:] != (epoch, number):
                    line.versions.append((start, epoch, number))
        if commit.kind is TokenKind.OBSERVATION:
            if commit.rests_on >= 0:
                findings.check(
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
    if len(commit.spans) % _SPAN.size:
        return f"spans of {len(commit.spans)} bytes"
    reached = commit.start
    for start, end, _, _ in _SPAN.iter_unpack(commit.spans):
        if start != reached or end <= start:
            return f"spans leave a gap or overlap at token {reached}"
        reached = end
    if reached != commit.start + commit.count:
        return f"spans end at token {reached}, the commit at {commit.start + commit.count}"
    return None
