"""What the worked cases do not say of the WAL's reading rule: ledgers, damage, ends, and single
commits.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.enums import CutReason, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_ids, pack_logprobs, pack_spans
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, FenceId, Verdict, Writer, check_commit


def record(
    kind: TokenKind,
    seq: int = -1,
    start: int = 0,
    count: int = 0,
    *,
    fence: tuple[int, int] = (1, 1),
    writer: str = "a",
    reason: CutReason = CutReason.NONE,
    logprobs: list[float] | None = None,
    spans: list[Span] | None = None,
) -> TokenCommit:
    """Return a record of the WAL with a right crc."""
    ids = pack_ids(range(count))
    is_action = kind is TokenKind.ACTION
    packed = pack_logprobs(logprobs or [-0.5] * count) if is_action else b""
    covering = [Span(start, start + count, Version(1, 2))] if count else []
    runs = pack_spans(covering if spans is None else spans) if is_action else b""
    return TokenCommit(
        run_id=RunId("r"),
        episode_id=EpisodeId("r.0.0"),
        group_id=GroupId("r.0.g"),
        attempt=fence[0],
        fence_number=fence[1],
        writer_id=WorkerId(writer),
        incarnation="i",
        producer_number=1,
        kind=kind,
        seq=seq,
        start=start,
        count=count,
        token_ids=ids,
        logprobs=packed,
        spans=runs,
        cut_reason=reason,
        crc32c=crc32c(ids, packed, runs),
        at_us=0,
    )


def _opened(*records: TokenCommit) -> EpisodeWal:
    wal = EpisodeWal()
    for offset, commit in enumerate((record(TokenKind.FENCE), *records), start=100):
        wal.take(offset, commit)
    return wal


PROMPT = record(TokenKind.PROMPT, 0, 0, 5)
ACTION = record(TokenKind.ACTION, 1, 5, 4)


def test_fence_and_writer_are_named() -> None:
    wal = _opened()
    assert wal.fence == FenceId(1, 1)
    assert wal.writer == Writer("a", "i", 1)
    assert EpisodeWal().fence is None
    assert EpisodeWal().writer is None
    assert FenceId(2, 0) > FenceId(1, 9)


def test_action_tokens_have_a_ledger_of_their_own() -> None:
    fork = record(TokenKind.CUT, 2, 7, reason=CutReason.FORK)
    restart = record(TokenKind.CUT, 3, 6, reason=CutReason.RESTART)
    wal = _opened(PROMPT, ACTION, fork, restart)
    assert (wal.accepted_action_tokens, wal.sibling_action_tokens) == (1, 2)
    assert wal.superseded_action_tokens == 1
    assert (wal.branch, wal.length, wal.last_offset, wal.first_offset) == (1, 6, 104, 100)


def test_a_cut_piece_keeps_its_place_in_the_commit() -> None:
    wal = _opened(PROMPT, ACTION, record(TokenKind.CUT, 2, 7, reason=CutReason.FORK))
    assert [(p.offset, p.start, p.count) for p in wal.pieces] == [(101, 0, 5), (102, 5, 2)]
    assert [(p.offset, p.start, p.count) for p in wal.siblings] == [(102, 7, 2)]
    assert wal.siblings[0].commit is ACTION


def test_a_wrong_crc_or_count_counts_for_nobody_and_the_gap_it_leaves_ends_the_right() -> None:
    for broken in (
        dataclasses.replace(ACTION, crc32c=1),
        dataclasses.replace(ACTION, count=3),
        dataclasses.replace(ACTION, token_ids=ACTION.token_ids[:-1]),
    ):
        wal = _opened(PROMPT)
        assert wal.take(200, broken) is Verdict.UNDECODABLE
        assert wal.right
        assert wal.undecodable_action_tokens == broken.count
        assert wal.take(201, record(TokenKind.ACTION, 2, 9, 1)) is Verdict.GAP
        assert not wal.right


def test_a_cut_without_a_reason_is_a_gap() -> None:
    wal = _opened(PROMPT)
    assert wal.take(200, record(TokenKind.CUT, 1, 2)) is Verdict.GAP


def test_what_lies_after_the_end_is_superseded_cuts_included() -> None:
    wal = _opened(PROMPT, ACTION, record(TokenKind.CUT, 2, 0, reason=CutReason.FORK))
    late = record(TokenKind.ACTION, 3, 0, 2)
    wal.take(104, late)
    ended = wal.ended_at(102)
    assert (ended.length, ended.accepted_action_tokens, ended.sibling_tokens) == (9, 4, 0)
    assert (ended.superseded_tokens, ended.superseded_action_tokens) == (2, 2)
    assert wal.ended_at(104) is wal
    nothing = wal.ended_at(-1)
    assert (nothing.length, nothing.superseded_tokens) == (0, 11)


@st.composite
def _logs(draw: st.DrawFn) -> list[TokenCommit]:
    out: list[TokenCommit] = []
    length = 0
    for _ in range(draw(st.integers(1, 12))):
        fence = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1)]))
        kind = draw(st.sampled_from(list(TokenKind)[1:] + [TokenKind.ACTION] * 3))
        count = draw(st.integers(0, 4)) if kind.carries_tokens else 0
        start = draw(st.sampled_from([length, length, length, 0, 3]))
        reason = draw(st.sampled_from(list(CutReason)[2:]))
        seq = draw(st.sampled_from([0, 1, 2, 3]))
        commit = record(kind, seq, start, count, fence=fence, writer=f"w{fence[1]}", reason=reason)
        out.append(
            dataclasses.replace(commit, crc32c=commit.crc32c ^ draw(st.sampled_from([0] * 9 + [1])))
        )
        length = start + count
    return out


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(_logs(), st.integers(-1, 12))
def test_every_token_is_counted_once_and_the_main_line_has_no_hole(
    log: list[TokenCommit], end: int
) -> None:
    wal = EpisodeWal()
    for offset, commit in enumerate(log):
        wal.take(offset, commit)
    total = sum(commit.count for commit in log)
    actions = sum(commit.count for commit in log if commit.kind is TokenKind.ACTION)
    for state in (wal, wal.ended_at(end)):
        assert total == (
            state.accepted_tokens
            + state.sibling_tokens
            + state.superseded_tokens
            + state.undecodable_tokens
        )
        assert actions == (
            state.accepted_action_tokens
            + state.sibling_action_tokens
            + state.superseded_action_tokens
            + state.undecodable_action_tokens
        )
        at = 0
        for piece in state.pieces:
            assert piece.start == at
            at += piece.count
        assert at == state.length == state.accepted_tokens


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (dataclasses.replace(ACTION, crc32c=0), "crc32c"),
        (record(TokenKind.ACTION, 0, 0, 2, logprobs=[-1.0, math.nan]), "log-prob"),
        (record(TokenKind.ACTION, 0, 0, 2, logprobs=[-1.0, 0.5]), "log-prob"),
        (record(TokenKind.ACTION, 0, 0, 2, logprobs=[-1.0, -math.inf]), "log-prob"),
        (record(TokenKind.ACTION, 0, 0, 2, logprobs=[-1.0]), "4 bytes of log-probs"),
        (record(TokenKind.ACTION, 0, 3, 2, spans=[Span(3, 4, Version(1, 1))]), "end at 4"),
        (record(TokenKind.ACTION, 0, 3, 2, spans=[Span(2, 5, Version(1, 1))]), "gap or overlap"),
        (
            record(
                TokenKind.ACTION,
                0,
                0,
                2,
                spans=[Span(0, 2, Version(1, 1)), Span(1, 2, Version(1, 2))],
            ),
            "gap or overlap",
        ),
        (record(TokenKind.ACTION, 0, 3, 2, spans=[]), "end at 3"),
    ],
)
def test_a_commit_that_breaks_a_rule_is_told_which(broken: TokenCommit, why: str) -> None:
    assert why in (check_commit(broken) or "")


def test_sound_commits_pass() -> None:
    for commit in (PROMPT, ACTION, record(TokenKind.FENCE), record(TokenKind.CUT, 1, 2)):
        assert check_commit(commit) is None


def test_an_observation_carries_no_logprobs() -> None:
    extra = pack_logprobs([-1.0] * 5)
    wrong = dataclasses.replace(PROMPT, logprobs=extra, crc32c=crc32c(PROMPT.token_ids, extra))
    assert "only sampled tokens" in (check_commit(wrong) or "")
