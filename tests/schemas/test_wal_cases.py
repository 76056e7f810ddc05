"""The worked cases of the reading rule: every reader gives exactly these answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.enums import CutReason, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.packing import crc32c, pack_ids
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, FenceId

FILE = Path(__file__).parent / "cases" / "wal_reading_rule.json"
SHA256 = "2ac24088ad6512ec6430243b421c2107155888b8bb5906b4b42f3777b5c7d47c"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]


def _commit(record: dict[str, Any]) -> TokenCommit:
    attempt, number, writer = record["w"]
    worker, _, incarnation = writer.partition("/")
    kind = {"fence": TokenKind.FENCE, "cut": TokenKind.CUT, "commit": TokenKind.OBSERVATION}
    token_ids = pack_ids(range(record.get("n", 0)))
    return TokenCommit(
        run_id=RunId("r"),
        episode_id=EpisodeId("r.0.0"),
        group_id=GroupId("r.0.g"),
        attempt=attempt,
        fence_number=number,
        writer_id=WorkerId(worker),
        incarnation=incarnation,
        producer_number=1,
        kind=kind[record["kind"]],
        seq=record.get("seq", -1),
        start=record.get("start", 0),
        count=record.get("n", 0),
        token_ids=token_ids,
        cut_reason=CutReason(record.get("reason", "none")),
        crc32c=crc32c(token_ids),
        at_us=0,
    )


def test_the_copy_of_the_cases_is_whole() -> None:
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() == SHA256
    assert len(CASES) == 50


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_reader_makes_of_the_log_what_the_case_says(case: dict[str, Any]) -> None:
    wal, expect = EpisodeWal(), case["expect"]
    verdicts = []
    for offset, record in enumerate(case["log"]):
        if record["kind"] == "bad":
            verdicts.append(wal.take_bad(record["n"], offset=offset).value)
        else:
            verdicts.append(wal.take(offset, _commit(record)).value)
    assert verdicts == expect["records"]
    assert wal.accepted_tokens == expect["accepted_tokens"] == wal.length
    assert wal.sibling_tokens == expect["sibling_tokens"]
    assert wal.superseded_tokens == expect["superseded_tokens"]
    assert wal.undecodable_tokens == expect["undecodable_tokens"]
    assert wal.right is expect["right"]
    if expect["current"] is None:
        assert wal.fence is None
    else:
        attempt, number, writer = expect["current"]
        assert wal.fence == FenceId(attempt, number)
        assert wal.writer is not None
        assert writer == "/".join(filter(None, wal.writer[:2]))
    assert [[p.offset, p.count] for p in wal.pieces if p.count] == expect["prefix_by_record"]
