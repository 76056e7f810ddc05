"""Small records for tests of the bus."""

from __future__ import annotations

from schemas.deadline import Deadline
from schemas.enums import TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId
from schemas.ports import Clock
from schemas.records.token_commit import TokenCommit
from tests.support.clocks import RealClock

RUN = RunId("run-1")


def commit(
    seq: int = 0, *, group: str = "run-1.0.g", episode: str = "run-1.0.0", tokens: bytes = b""
) -> TokenCommit:
    """Return a commit that is told apart by its seq."""
    return TokenCommit(
        run_id=RUN,
        episode_id=EpisodeId(episode),
        group_id=GroupId(group),
        attempt=1,
        fence_number=1,
        writer_id=WorkerId("inference-0"),
        incarnation="a",
        producer_number=1,
        kind=TokenKind.ACTION,
        seq=seq,
        token_ids=tokens,
        crc32c=0,
        at_us=1,
    )


def within(ms: int, waiting_for: str = "the test", clock: Clock | None = None) -> Deadline:
    """Return a deadline from now."""
    now_ms = (clock or RealClock()).monotonic_ms()
    return Deadline.after(ms, now_ms=now_ms, waiting_for=waiting_for)
