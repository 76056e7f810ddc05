"""The audit's own reading of `payloads`: whether what is trained is what the WAL holds (rule V10).

A trajectory's blob is magic, length, token ids, log-probs and mask; each is held against the
checksums that the reading of the WAL left per commit of the main line, so no tokens are kept.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

from google_crc32c import extend as crc_on
from google_crc32c import value as crc_of

from infra.audit.report import Findings, at
from infra.audit.tokens import Line, Tokens
from schemas.enums import PayloadContent
from schemas.ports import Delivered
from schemas.records.payload_chunk import PayloadChunk
from schemas.topics import CHUNK_BYTES_MAX, PAYLOADS

_HEAD = 16
_PER_TOKEN = 9
_LIST_HEAD = struct.Struct("<4sII")
_LIST_TOKEN = 12
_PARTS_OPEN_MAX = 64


class Match(StrEnum):
    """Whether a blob says what the WAL says."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Chunk:
    """What the audit keeps of a payload chunk."""

    episode_id: str
    length: int
    crc32c: int
    match: Match = Match.UNKNOWN
    """Of the last part of a trajectory: what the joined parts are."""


class Payloads:
    """All chunks of some partitions; read after their tokens."""

    def __init__(self, findings: Findings, tokens: Tokens) -> None:
        """Report to `findings`; hold blobs against `tokens`."""
        self.chunks: dict[tuple[int, int], Chunk] = {}
        self.lists: dict[tuple[int, int], bytes] = {}
        """Place to body of the lists of rejected tokens, which are short."""
        self._findings = findings
        self._tokens = tokens
        self._parts: dict[tuple[str, str], list[bytes]] = {}
        """Parts so far of blobs that take several, by episode and writer."""

    def take(self, message: Delivered[PayloadChunk]) -> None:
        """Take the next record of its partition."""
        record = message.record
        chunk = Chunk(
            episode_id=record.episode_id, length=len(record.body), crc32c=crc_of(record.body)
        )
        self.chunks[message.partition, message.offset] = chunk
        self._findings.check(
            11,
            len(record.body) <= CHUNK_BYTES_MAX,
            f"a payload chunk of {len(record.body)} bytes, the bound is {CHUNK_BYTES_MAX}",
            ids=(record.episode_id,),
            at=(at(PAYLOADS.name, message.partition, message.offset),),
        )
        if record.content is PayloadContent.REJECTED_TOKENS:
            self.lists[message.partition, message.offset] = record.body
        if record.content is PayloadContent.TRAJECTORY_TOKENS:
            blob = record.body if record.parts == 1 else self._joined(record)
            line = self._tokens.by_episode.get(record.episode_id)
            if blob is not None and line is not None and record.episode_id in self._tokens.ends:
                chunk.match = _match(blob, line)

    def _joined(self, record: PayloadChunk) -> bytes | None:
        """Keep a part; return the whole blob when it is the last one."""
        key = (str(record.episode_id), str(record.writer_id))
        if record.part == 0:
            # A writer that died between two parts never ends its blob, so the oldest is let go.
            while len(self._parts) >= _PARTS_OPEN_MAX:
                del self._parts[next(iter(self._parts))]
            self._parts[key] = []
        parts = self._parts.get(key)
        if parts is None or len(parts) != record.part:
            return None
        parts.append(record.body)
        if len(parts) < record.parts:
            return None
        del self._parts[key]
        return b"".join(parts)


def rejected_in(blob: bytes) -> tuple[int, int] | None:
    """Return how many tokens a list of rejected tokens holds below and above the band; None when it
    is no such list.

    Layout: magic, version and length of a table, the table, then 12 bytes a token whose last one
    holds the sign: set below the band.
    """
    if len(blob) < _LIST_HEAD.size or not blob.startswith(b"SLRJ"):
        return None
    begin = _LIST_HEAD.size + _LIST_HEAD.unpack_from(blob)[2]
    if begin > len(blob) or (len(blob) - begin) % _LIST_TOKEN:
        return None
    signs = blob[begin + _LIST_TOKEN - 1 :: _LIST_TOKEN]
    low = sum(sign >> 7 for sign in signs)
    return low, len(signs) - low


def _match(blob: bytes, line: Line) -> Match:
    """Compare a blob with the main line, commit by commit."""
    tokens = line.length
    if len(blob) != _HEAD + _PER_TOKEN * tokens:
        return Match.OTHER
    if int.from_bytes(blob[8:_HEAD], "little") != tokens:
        return Match.OTHER
    ids, logprobs, mask = _HEAD, _HEAD + 4 * tokens, _HEAD + 8 * tokens
    ends = [*line.starts[1:], tokens]
    for start, end, crc, is_action in zip(line.starts, ends, line.crcs, line.action, strict=True):
        found = crc_of(blob[ids + 4 * start : ids + 4 * end])
        if is_action:
            found = crc_on(found, blob[logprobs + 4 * start : logprobs + 4 * end])
        if found != crc or blob.count(is_action, mask + start, mask + end) != end - start:
            return Match.OTHER
    return Match.SAME
