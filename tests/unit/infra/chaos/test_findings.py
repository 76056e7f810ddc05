"""Figures of a disturbed run, from logs small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.chaos.findings import Findings, Hit
from infra.chaos.others import Standstill, ratio
from infra.chaos.resuming import Resuming
from infra.chaos.session import Read
from schemas.enums import CutReason, EpisodeEventKind, FinishReason, TokenKind
from schemas.ids import RunId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_ids, pack_logprobs, pack_spans
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.token_commit import TokenCommit

RUN = RunId("0")
FIRST, SECOND = "inference-0@0", "inference-1@0"


class Log:
    """Writes the WAL of one episode; time is given with each record. Unit: ms."""

    def __init__(self) -> None:
        self.findings = Findings(RUN)
        self.offset = 0
        self.identity: dict[str, Any] = {}
        self.seq = 0
        self.length = 0

    def fence(self, at_ms: int, writer: str, *, attempt: int = 1, number: int = 1) -> None:
        self.identity = {"attempt": attempt, "fence_number": number, "writer_id": WorkerId(writer),
                         "incarnation": writer, "producer_number": 1}  # fmt: skip
        self.seq = 0
        self._take(at_ms, TokenKind.FENCE, 0)

    def action(self, at_ms: int, count: int, *, ends: bool = False) -> None:
        reason = FinishReason.STOP if ends else FinishReason.NONE
        self._take(at_ms, TokenKind.ACTION, count, finish_reason=reason)

    def cut(self, at_ms: int, start: int) -> None:
        self.length = start
        self._take(at_ms, TokenKind.CUT, 0, cut_reason=CutReason.RESTART)

    def late(self, at_ms: int, count: int, **identity: Any) -> None:
        kept, self.identity = self.identity, {**self.identity, **identity}
        seq, length = self.seq, self.length
        self._take(at_ms, TokenKind.ACTION, count)
        self.identity, self.seq, self.length = kept, seq, length

    def _take(self, at_ms: int, kind: TokenKind, count: int, **values: Any) -> None:
        ids, logprobs = pack_ids([1] * count), pack_logprobs([-1.0] * count)
        spans = pack_spans([Span(self.length, self.length + count, Version(0, 0))] if count else [])
        record = TokenCommit(
            run_id=RUN, episode_id="0.0.0", group_id="0.0", kind=kind, count=count,  # type: ignore[arg-type]  # short ids
            seq=self.seq if kind is not TokenKind.FENCE else 0, start=self.length,
            token_ids=ids, logprobs=logprobs, spans=spans, crc32c=crc32c(ids, logprobs, spans),
            at_us=0, **self.identity, **values,
        )  # fmt: skip
        self.seq += kind is not TokenKind.FENCE
        self.length += count
        self.findings.take_token(delivered(self.offset, at_ms, record))
        self.offset += 1


def delivered(offset: int, at_ms: int, record: Any) -> Delivered[Any]:
    return Delivered(
        topic="", partition=0, offset=offset, timestamp_ms=at_ms, key=b"", record=record
    )


def test_a_turn_that_goes_on_elsewhere_is_timed_from_the_kill_and_nothing_is_decoded_twice() -> (
    None
):
    log = Log()
    log.fence(0, FIRST)
    log.action(100, 4)
    log.fence(900, SECOND, number=2)
    log.action(1_500, 3, ends=True)
    found = log.findings.recovery_s([Hit(worker_id=FIRST, at_ms=500)])
    assert (found.p50, found.n) == (1.0, 1)
    assert log.findings.decoded_twice == 0


def test_a_worker_between_two_turns_has_no_turn_to_recover() -> None:
    log = Log()
    log.fence(0, FIRST)
    log.action(100, 4, ends=True)
    log.fence(900, SECOND, number=2)
    log.action(1_500, 3, ends=True)
    assert log.findings.recovery_s([Hit(worker_id=FIRST, at_ms=500)]).n == 0


def test_a_restart_from_the_prompt_shows_as_tokens_decoded_twice() -> None:
    log = Log()
    log.fence(0, FIRST)
    log.action(100, 4)
    log.fence(900, SECOND, number=2)
    log.cut(950, 0)
    log.action(1_500, 6)
    assert log.findings.decoded_twice == 4


def test_a_late_commit_of_a_fenced_writer_counts_as_superseded_not_as_decoded_twice() -> None:
    log = Log()
    log.fence(0, FIRST)
    log.action(100, 4)
    log.fence(900, SECOND, number=2)
    log.late(950, 2, writer_id=WorkerId(FIRST), incarnation=FIRST, fence_number=1)
    log.action(1_500, 2)
    assert (log.findings.superseded_tokens, log.findings.decoded_twice) == (2, 0)


def test_an_environment_worker_that_dies_is_timed_to_the_next_attempts_first_token() -> None:
    log = Log()
    leased = EpisodeEvent(
        run_id=RUN, episode_id="0.0.0", group_id="0.0", kind=EpisodeEventKind.LEASED,  # type: ignore[arg-type]  # short ids
        attempt=1, worker_id=WorkerId("environment-0@0"), 
            at_us=0, writer_id=WorkerId("scheduler-0@0"),
    )  # fmt: skip
    log.findings.take_episode(delivered(0, 0, leased))
    log.fence(50, FIRST)
    log.action(100, 4, ends=True)
    log.fence(2_000, FIRST, attempt=2)
    log.action(2_500, 1)
    hit = Hit(worker_id="environment-0@0", at_ms=500)
    assert log.findings.rebuilt_s([hit]).p50 == 2.0
    assert log.findings.rebuilt_s([replace(hit, worker_id="environment-1@0")]).n == 0


def test_the_uncommitted_tail_is_what_a_turn_sampled_since_its_last_commit() -> None:
    log = Log()
    log.fence(0, FIRST)
    log.action(1_000, 4)
    log.action(1_200, 6)
    log.action(1_400, 6)
    log.fence(2_500, SECOND, number=2)
    log.action(3_000, 9, ends=True)
    hits = [Hit(worker_id=FIRST, at_ms=1_500)]
    assert log.findings.tail_s(hits).p50 == 0.1
    assert log.findings.tail_tokens(hits).p50 == 3.0  # 12 tokens in 0.4 s
    assert log.findings.interruptions == 1
    assert log.findings.action_tokens == 25


def test_a_worker_that_had_ended_its_turn_has_no_tail_and_a_new_turn_is_no_interruption() -> None:
    log = Log()
    log.fence(0, FIRST)
    log.action(1_000, 4, ends=True)
    log.fence(2_500, SECOND, number=2)
    log.action(3_000, 9, ends=True)
    assert log.findings.tail_s([Hit(worker_id=FIRST, at_ms=1_500)]).n == 0
    assert log.findings.interruptions == 0


def test_a_death_is_held_against_the_tokens_and_turns_of_the_worker_that_went_on() -> None:
    log = Log()
    log.fence(0, SECOND)
    for at_ms in range(8_100, 12_500, 100):
        log.action(at_ms, 5)
    log.action(12_500, 5, ends=True)
    hits = [Hit(worker_id=FIRST, at_ms=10_000)]
    ([tokens], [in_hand]) = log.findings.others(hits, [])
    assert (tokens.before_tokens, tokens.after_tokens) == (100, 100)
    assert ratio([in_hand]).mean == 1.0
    down = Standstill(worker_id=SECOND, from_ms=11_000, to_ms=11_500)
    assert log.findings.others(hits, [down]) == ([], [])
    assert log.findings.next_written_ms(SECOND, 11_550) == 11_600
    assert log.findings.next_written_ms("", 8_150) == 8_200
    assert log.findings.next_written_ms(FIRST, 0) is None


def test_a_worker_that_was_cut_off_counts_again_once_its_tokens_come() -> None:
    log = Log()
    log.fence(0, SECOND)
    for at_ms in (*range(4_000, 7_000, 100), *range(7_900, 12_500, 100)):
        log.action(at_ms, 5)
    read = Read(findings=log.findings, resuming=Resuming(RUN))
    hits = [Hit(worker_id=FIRST, at_ms=12_000 - 2_000)]
    cut = Standstill(worker_id=SECOND, from_ms=5_000, to_ms=5_000)
    for disturbed, counted in ((cut, 1), (replace(cut, to_ms=7_500.0), 0)):
        told = read.recovery(hits, [disturbed])
        assert told["others_throughput_ratio"]["n"] == counted
        assert len(told["others_turn_speed_ratio"]["moments"]) == counted
    # The one that died is never its own witness.
    assert read.recovery([replace(hits[0], worker_id=SECOND)])["others_throughput_ratio"]["n"] == 0
