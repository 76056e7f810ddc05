"""What became of each single token of an episode: on the main line, on a sibling branch, or
superseded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from infra.story import Commit
from schemas.enums import CutReason, TokenKind
from schemas.errors import PoisonRecordError
from schemas.packing import unpack_timing
from schemas.rules.wal import Verdict


class Standing(StrEnum):
    """Where a token stands in the end."""

    MAIN = "main"
    SIBLING = "sibling"
    SUPERSEDED = "superseded"


def standings(commits: Sequence[Commit]) -> dict[int, list[Standing]]:
    """Return per WAL offset where each of its tokens stands; `commits` are all, in log order.

    A Cut that forks makes what it takes back a sibling, any other supersedes it; what does not
    count is superseded.
    """
    out: dict[int, list[Standing]] = {}
    line: list[tuple[int, int]] = []
    """The main line: (offset, place within the commit) of each token."""
    for commit in commits:
        record = commit.record
        out[commit.offset] = [Standing.SUPERSEDED] * len(commit.token_ids)
        if commit.verdict is not Verdict.ACCEPTED:
            continue
        if record.kind is TokenKind.CUT:
            is_fork = record.cut_reason is CutReason.FORK
            for offset, place in line[record.start :]:
                out[offset][place] = Standing.SIBLING if is_fork else Standing.SUPERSEDED
            del line[record.start :]
        else:
            out[commit.offset] = [Standing.MAIN] * len(commit.token_ids)
            line += [(commit.offset, place) for place in range(len(commit.token_ids))]
    return out


def token_rows(
    commit: Commit, stands: Sequence[Standing], texts: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return one row a token: index in the episode, id, text, log-prob, version, what it is, where
    it stands, and when it was committed (broker time, milliseconds since 1970).
    """
    rows = []
    for place, token in enumerate(commit.token_ids):
        index = commit.record.start + place
        version = next((str(s.version) for s in commit.spans if s.start <= index < s.end), None)
        sampled = commit.record.kind is TokenKind.ACTION and place < len(commit.logprobs)
        rows.append(
            {
                "index": index,
                "id": token,
                "text": texts[place] if texts is not None and place < len(texts) else None,
                "logprob": commit.logprobs[place] if sampled else None,
                "version": version,
                "kind": commit.record.kind.value,
                "stands": stands[place].value,
                "offset": commit.offset,
                "committed_ms": commit.timestamp_ms,
            }
        )
    return rows


def timing_of(commit: Commit) -> dict[str, int] | None:
    """Return when the turn was asked and answered, and what the KV cache saved; None where the
    record does not say.
    """
    try:
        timing = unpack_timing(commit.record.timing)
    except PoisonRecordError:
        return None
    return {
        "requested_us": timing.requested_us,
        "first_token_us": timing.first_token_us,
        "last_token_us": timing.last_token_us,
        "prefilled_tokens": timing.prefilled_tokens,
        "reused_tokens": timing.reused_tokens,
    }
