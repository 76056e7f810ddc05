"""The audit's own reading of the WAL gives the right answers of the worked cases, and agrees on
random logs.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from infra.audit.report import Findings
from infra.audit.tokens import Line, Tokens
from schemas.enums import CutReason, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_ids, pack_logprobs, pack_spans
from schemas.ports import Delivered
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, Verdict

_FILE = Path(__file__).parents[2] / "schemas" / "cases" / "wal_reading_rule.json"
CASES = json.loads(_FILE.read_text())["cases"]
_KINDS = {"fence": TokenKind.FENCE, "cut": TokenKind.CUT, "commit": TokenKind.ACTION}


def _record(case: dict[str, Any]) -> TokenCommit:
    attempt, number, writer = case["w"]
    count, start = case.get("n", 0), case.get("start", 0)
    kind = _KINDS[case["kind"]]
    ids, logprobs, spans = pack_ids(range(count)), b"", b""
    if kind is TokenKind.ACTION:
        logprobs = pack_logprobs([-1.0] * count)
        spans = pack_spans([Span(start, start + count, Version(1, 1))] if count else [])
    return TokenCommit(
        run_id=RunId("r"),
        episode_id=EpisodeId("r.0.0"),
        group_id=GroupId("r.0.g"),
        attempt=attempt,
        fence_number=number,
        writer_id=WorkerId(writer),
        incarnation="i",
        producer_number=1,
        kind=kind,
        seq=case.get("seq", -1),
        start=start,
        count=count,
        token_ids=ids,
        logprobs=logprobs,
        spans=spans,
        cut_reason=CutReason(case.get("reason", "none")),
        crc32c=crc32c(ids, logprobs, spans),
        at_us=0,
    )


def _read(records: list[TokenCommit | None], *, end: int | None = None) -> tuple[Line, Findings]:
    findings = Findings()
    tokens = Tokens(findings)
    if end is not None:
        tokens.ends["r.0.0"] = end
    tokens.by_episode["r.0.0"] = Line(0, 1 << 62 if end is None else end)
    for offset, record in enumerate(records):
        if record is not None:
            tokens.take(
                Delivered(
                    topic="t", partition=0, offset=offset, timestamp_ms=0, key=None, record=record
                )
            )
    return tokens.by_episode["r.0.0"], findings


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_worked_cases_come_out_right(case: dict[str, Any]) -> None:
    log = [None if one["kind"] == "bad" else _record(one) for one in case["log"]]
    line, findings = _read(log)
    expect = case["expect"]
    assert (line.length, line.sibling, line.superseded) == (
        expect["accepted_tokens"],
        expect["sibling_tokens"],
        expect["superseded_tokens"],
    )
    assert line.main == line.length
    assert line.right is expect["right"]
    counting = [i for i, v in enumerate(expect["records"]) if v in ("accepted", "current")]
    assert list(line.accepted) == counting
    assert not findings.violations


def _random_log(random: Random) -> list[TokenCommit]:
    log: list[TokenCommit] = []
    length = 0
    for _ in range(random.randrange(1, 25)):
        attempt, number = random.choice([(1, 1), (1, 1), (1, 1), (1, 2), (2, 1)])
        kind = random.choice(["fence", "cut", "commit", "commit", "commit", "commit"])
        count = random.randrange(5) if kind == "commit" else 0
        start = random.choice([length, length, length, random.randrange(length + 2)])
        case = {
            "w": [attempt, number, f"w{attempt}{number}"],
            "kind": kind,
            "n": count,
            "start": start,
            "seq": random.randrange(8) if random.random() < 0.2 else len(log) % 8,
            "reason": random.choice(["fork", "restore", "restart", "none"]),
        }
        record = _record(case)
        if random.random() < 0.05:
            record = dataclasses.replace(record, crc32c=record.crc32c ^ 1)
        log.append(record)
        length = start + count
    return log


def _sequenced(log: list[TokenCommit], random: Random) -> list[TokenCommit]:
    """Let most records continue what a reader accepted, so that the logs are not all gaps."""
    out: list[TokenCommit] = []
    wal = EpisodeWal()
    for offset, record in enumerate(log):
        fence, writer = wal.fence, wal.writer
        if fence and writer and record.kind is not TokenKind.FENCE and random.random() < 0.8:
            start = (
                wal.length if record.kind is not TokenKind.CUT else min(record.start, wal.length)
            )
            case = {
                "w": [*fence, writer.worker_id],
                "kind": "cut" if record.kind is TokenKind.CUT else "commit",
                "n": record.count,
                "start": start,
                "seq": wal.next_seq,
                "reason": record.cut_reason.value,
            }
            record = _record(case)
        wal.take(offset, record)
        out.append(record)
    return out


def test_two_readings_of_one_log_agree() -> None:
    accepted = 0
    for seed in range(200):
        random = Random(seed)
        log = _sequenced(_random_log(random), random)
        wal = EpisodeWal()
        verdicts = [wal.take(offset, record) for offset, record in enumerate(log)]
        accepted += verdicts.count(Verdict.ACCEPTED)
        end = random.randrange(-1, len(log))
        for line, state in (
            (_read(list(log))[0], wal),
            (_read(list(log), end=end)[0], wal.ended_at(end)),
        ):
            assert (line.length, line.main, line.sibling, line.superseded, line.undecodable) == (
                state.length,
                state.accepted_action_tokens,
                state.sibling_action_tokens,
                state.superseded_action_tokens,
                state.undecodable_action_tokens,
            ), seed
    assert accepted > 500
