"""Turns and generations of one episode, from its token log.

A turn goes from its request to the next one's, or to its last token; a generation is what one
writer sampled of it. Whether a commit's bytes and place are right is not judged here (`sluice
replay` and the audit do): what the current fence's writer wrote is told, the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from infra.tracing.core.spans import Happening, Span, said
from schemas.enums import FinishReason, TokenKind
from schemas.errors import PoisonRecordError
from schemas.packing import Timing, unpack_spans, unpack_timing
from schemas.records.token_commit import TokenCommit
from schemas.rules.wal import EpisodeWal, FenceId, Verdict, Writer
from schemas.tracing import TraceId, attempt_span, span_of, turn_span

_CUTS_MAX = 32


@dataclass(slots=True, kw_only=True)
class _Generation:
    fence_number: int
    writer_id: str
    began_us: int
    ended_us: int
    durable_us: int
    first_index: int
    end_index: int
    first_offset: int
    last_offset: int
    timing: Timing | None = None
    commits: int = 0
    versions: dict[str, None] = field(default_factory=dict)
    finish: str = ""


@dataclass(slots=True, kw_only=True)
class _Turn:
    attempt: int
    branch: int
    turn: int
    began_us: int
    ended_us: int
    prompt_tokens: int = 0
    observation_tokens: int = 0
    generation: _Generation | None = None
    cuts: list[Happening] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int, int]:
        return self.attempt, self.branch, self.turn


class TokenTrace:
    """The open turns of one episode, in log order: at most the newest one and the one before."""

    __slots__ = ("_trace", "_turns", "_wal", "last_offset", "superseded")

    def __init__(self, trace: TraceId) -> None:
        """Start before the first record."""
        self._trace = trace
        self._wal = EpisodeWal()
        """Given fences only: it says whose commits count, and holds no tokens."""
        self._turns: list[_Turn] = []
        self.last_offset = -1
        """Offset of the last record taken. Unit: records."""
        self.superseded = 0
        """Commits by others than the current fence's writer. Unit: commits."""

    def take(self, offset: int, at_us: int, stored_us: int, commit: TokenCommit) -> Iterator[Span]:
        """Take the next record of the episode; yield the spans that it ends."""
        self.last_offset = max(self.last_offset, offset)
        if commit.kind is TokenKind.FENCE:
            if self._wal.take(offset, commit) is Verdict.CURRENT:
                yield from self._fenced(commit)
            return
        if not self._is_current(commit):
            self.superseded += 1
            return
        if commit.kind is TokenKind.CUT:
            if self._turns and len(self._turns[-1].cuts) < _CUTS_MAX:
                self._turns[-1].cuts.append(_cut(at_us, commit))
            return
        turn = self._turn(commit, at_us)
        turn.ended_us = max(turn.ended_us, at_us)
        match commit.kind:
            case TokenKind.PROMPT:
                turn.prompt_tokens += commit.count
            case TokenKind.OBSERVATION:
                turn.observation_tokens += commit.count
            case TokenKind.ACTION:
                yield from self._sampled(turn, offset, at_us, stored_us, commit)

    def finish(self) -> Iterator[Span]:
        """Yield what is still open: no more records of the episode are expected."""
        for turn in self._turns:
            yield from self._end(turn, turn.ended_us)
        self._turns.clear()

    def _is_current(self, commit: TokenCommit) -> bool:
        fence = FenceId(commit.attempt, commit.fence_number)
        writer = Writer(commit.writer_id, commit.incarnation, commit.producer_number)
        return fence == self._wal.fence and writer == self._wal.writer

    def _fenced(self, fence: TokenCommit) -> Iterator[Span]:
        # A turn that another writer goes on with stays open within its attempt; its generation is
        # over, since nothing more of that writer counts.
        for turn in self._turns:
            if turn.generation is not None:
                yield self._generation(turn, turn.generation, "another writer took over")
                turn.generation = None
        if self._turns and fence.attempt != self._turns[-1].attempt:
            yield from self.finish()

    def _turn(self, commit: TokenCommit, at_us: int) -> _Turn:
        key = commit.attempt, commit.branch, commit.turn
        if not self._turns or self._turns[-1].key != key:
            self._turns.append(
                _Turn(
                    attempt=commit.attempt, branch=commit.branch, turn=commit.turn,
                    began_us=at_us, ended_us=at_us,
                )
            )  # fmt: skip
        return self._turns[-1]

    def _sampled(
        self, turn: _Turn, offset: int, at_us: int, stored_us: int, commit: TokenCommit
    ) -> Iterator[Span]:
        timing = _timing(commit)
        if (made := turn.generation) is None:
            asked_us = timing.requested_us if timing else at_us
            made = turn.generation = _Generation(
                fence_number=commit.fence_number, writer_id=commit.writer_id, began_us=asked_us,
                ended_us=at_us, durable_us=stored_us, first_index=commit.start,
                end_index=commit.start, first_offset=offset, last_offset=offset, timing=timing,
            )  # fmt: skip
            turn.began_us = min(turn.began_us, asked_us)
            yield from self._end_earlier(turn)
        made.ended_us = timing.last_token_us if timing else at_us
        made.durable_us, made.last_offset = stored_us, offset
        made.end_index = max(made.end_index, commit.start + commit.count)
        made.commits += 1
        for version in _versions(commit):
            made.versions[version] = None
        if commit.finish_reason is not FinishReason.NONE:
            made.finish = commit.finish_reason.value
            turn.ended_us = max(turn.ended_us, made.ended_us)
            yield self._generation(turn, made, "")
            turn.generation = None

    def _end_earlier(self, newest: _Turn) -> Iterator[Span]:
        """The turns before end where this one was asked for."""
        while self._turns[0] is not newest:
            yield from self._end(self._turns.pop(0), newest.began_us)

    def _end(self, turn: _Turn, ended_us: int) -> Iterator[Span]:
        if turn.generation is not None:
            yield self._generation(turn, turn.generation, "no end of it was recorded")
        yield Span(
            trace_id=self._trace,
            span_id=turn_span(self._trace, turn.attempt, turn.branch, turn.turn),
            parent_id=attempt_span(self._trace, turn.attempt),
            name="turn",
            start_us=turn.began_us,
            end_us=ended_us,
            attributes=said(
                turn=turn.turn, branch=turn.branch, attempt=turn.attempt,
                prompt_tokens=turn.prompt_tokens, observation_tokens=turn.observation_tokens,
            ),
            happenings=tuple(turn.cuts),
        )  # fmt: skip

    def _generation(self, turn: _Turn, made: _Generation, error: str) -> Span:
        timing = made.timing
        happenings = []
        if timing is not None:
            happenings.append(Happening(name="first token", at_us=timing.first_token_us))
        happenings.append(Happening(name="durable", at_us=made.durable_us))
        return Span(
            trace_id=self._trace,
            span_id=span_of(self._trace, "generation", made.first_offset),
            parent_id=turn_span(self._trace, *turn.key),
            name="generation",
            start_us=made.began_us,
            end_us=made.ended_us,
            attributes=said(
                turn=turn.turn, branch=turn.branch, attempt=turn.attempt,
                worker_id=made.writer_id, fence_number=made.fence_number,
                tokens=made.end_index - made.first_index, commits=made.commits,
                versions=tuple(made.versions), finish_reason=made.finish,
                prefilled_tokens=timing.prefilled_tokens if timing else None,
                reused_tokens=timing.reused_tokens if timing else None,
                wal__first=made.first_offset, wal__last=made.last_offset,
            ),
            happenings=tuple(happenings),
            error=error,
        )  # fmt: skip


def _cut(at_us: int, commit: TokenCommit) -> Happening:
    attributes = said(cut_reason=commit.cut_reason.value, start=commit.start)
    return Happening(name="cut", at_us=at_us, attributes=attributes)


def _timing(commit: TokenCommit) -> Timing | None:
    try:
        timing = unpack_timing(commit.timing)
    except PoisonRecordError:
        return None
    return timing if 0 < timing.requested_us <= timing.last_token_us else None


def _versions(commit: TokenCommit) -> tuple[str, ...]:
    try:
        return tuple(str(span.version) for span in unpack_spans(commit.spans))
    except PoisonRecordError:
        return ()
