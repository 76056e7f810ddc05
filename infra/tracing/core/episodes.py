"""One episode: its stages end one by one, and its root once everything about it has been read.

The topics of an episode are read beside one another and in any order, so that a stage is told from
one partition of one topic alone, and what joins topics (the root, the learner's wait) waits for
facts, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.tracing.core.attempts import AttemptTrace, is_asked_for
from infra.tracing.core.spans import Happening, Link, Span, Value, said
from infra.tracing.core.tokens import TokenTrace
from infra.tracing.core.tools import ToolTrace
from schemas.enums import GateOutcome, Purpose
from schemas.ids import EpisodeId, RunId, Version
from schemas.records.parts import MemberDecision, SkippedMember, TrainedMember
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.tracing import root_span, span_of, trace_of_episode, trace_of_version


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """What the root needs of the Trajectory."""

    at_us: int
    tokens_end: int
    verdict_offset: int
    attributes: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Consumed:
    """What the learner made of it."""

    at_us: int
    began_us: int
    outcome: str
    version: Version | None
    attributes: dict[str, Value]


class EpisodeTrace:
    """The open stages of one episode and the facts about it."""

    __slots__ = (
        "_consumed",
        "_decided",
        "_decided_us",
        "_sealed",
        "attempts",
        "episode_id",
        "fence",
        "firsts",
        "newest_us",
        "run_id",
        "tokens",
        "tools",
        "trace",
        "verdicts",
    )

    def __init__(self, run_id: RunId, episode_id: EpisodeId) -> None:
        """Start before the first record."""
        self.run_id, self.episode_id = run_id, episode_id
        self.trace = trace_of_episode(episode_id)
        self.attempts = AttemptTrace(self.trace)
        self.tokens = TokenTrace(self.trace)
        self.tools = ToolTrace(self.trace)
        self.verdicts: dict[int, int] = {}
        """Offset of the first verdict of each attempt."""
        self.firsts: dict[tuple[str, int], int] = {}
        """Offset of its first record by (topic, partition): where to read from to tell it anew."""
        self.fence: tuple[int, str] | None = None
        """The scheduler's fence that was current at its first record of `episodes`."""
        self.newest_us = 0
        """The latest time that any of its records tells."""
        self._sealed: _Sealed | None = None
        self._decided: MemberDecision | None = None
        self._decided_us = 0
        self._consumed: _Consumed | None = None

    def judged(self, offset: int, at_us: int, result: VerifierResult) -> Iterator[Span]:
        """Take a verdict; only the first of an attempt is told."""
        if result.attempt in self.verdicts:
            return
        self.verdicts[result.attempt] = offset
        began_us = at_us - max(0, result.duration_us)
        yield Span(
            trace_id=self.trace,
            span_id=span_of(self.trace, "verification", result.attempt),
            parent_id=root_span(self.trace),
            name="verification",
            start_us=began_us - max(0, result.queued_us),
            end_us=at_us,
            attributes=said(
                attempt=result.attempt, code=result.code.value, reward=result.reward,
                tries=result.tries, queued_us=result.queued_us, duration_us=result.duration_us,
                verifier_digest=result.verifier_digest, worker_id=result.writer_id,
            ),
            happenings=(Happening(name="judging begins", at_us=began_us),),
            error=result.code.value if result.code.is_ours else "",
        )  # fmt: skip

    def sealed(self, at_us: int, made: Trajectory) -> Iterator[Span]:
        """Take a Trajectory; only the first is told."""
        if self._sealed is not None:
            return
        outcome = said(
            environment=made.environment, stream=made.stream, termination=made.termination.value,
            reward=made.reward, reward_source=made.reward_source.value, tokens=made.tokens,
            action_tokens=made.action_tokens, superseded_tokens=made.superseded_tokens,
            turns=made.turns, tool_calls=made.tool_calls, tool_errors=made.tool_errors,
            task_id=made.task_id, purpose=made.purpose.value,
            oldest_version=str(Version(made.oldest_epoch, made.oldest_number)),
        )  # fmt: skip
        self._sealed = _Sealed(
            at_us=at_us, tokens_end=made.tokens_end, verdict_offset=made.verdict_offset,
            attributes=outcome,
        )  # fmt: skip
        began_us = max(made.verified_us, made.ended_us) or at_us
        yield Span(
            trace_id=self.trace,
            span_id=span_of(self.trace, "assembly"),
            parent_id=root_span(self.trace),
            name="assembly",
            start_us=min(began_us, at_us),
            end_us=at_us,
            attributes=said(
                attempt=made.attempt, payload_bytes=made.payload_length, chunks=len(made.chunks),
                worker_id=made.writer_id,
            ),
        )  # fmt: skip

    def decided(self, at_us: int, member: MemberDecision, writer: str) -> Iterator[Span]:
        """Take the gate's decision; only the first is told."""
        if self._decided is not None:
            return
        self._decided, self._decided_us = member, at_us
        yield Span(
            trace_id=self.trace,
            span_id=span_of(self.trace, "gate"),
            parent_id=root_span(self.trace),
            name="gate",
            start_us=at_us - max(0, member.age_ms) * 1000,
            end_us=at_us,
            attributes=said(
                outcome=member.outcome.value, reason=_reason(member.reason.value),
                lag_steps=member.lag_steps, age_ms=member.age_ms, weight=member.weight,
                worker_id=writer,
            ),
        )  # fmt: skip

    def trained(self, at_us: int, began_us: int, version: Version, member: TrainedMember) -> None:
        """Take what a Step that counts says of it; the first such Step is told."""
        self._consumed = self._consumed or _Consumed(
            at_us=at_us, began_us=began_us, outcome="trained", version=version,
            attributes=said(
                version=str(version), lag_steps=member.lag_steps, lag_s=member.lag_s,
                kl=member.kl, buffer_age_ms=member.age_ms, kept_tokens=member.kept_tokens,
                advantage=member.advantage, weight=member.weight,
            ),
        )  # fmt: skip

    def skipped(self, at_us: int, member: SkippedMember) -> None:
        """Take that the learner discarded it."""
        self._consumed = self._consumed or _Consumed(
            at_us=at_us, began_us=at_us, outcome="dropped", version=None,
            attributes=said(
                reason=member.reason.value, lag_steps=member.lag_steps,
                buffer_age_ms=member.age_ms,
            ),
        )  # fmt: skip

    @property
    def is_issued(self) -> bool:
        """Whether its Issued was read."""
        return self.attempts.issued_us > 0

    @property
    def is_complete(self) -> bool:
        """Whether it is settled and every record that its Trajectory rests on was read."""
        sealed, final = self._sealed, self.attempts.life.final_ended
        if not self.is_issued or sealed is None or final is None or self._outcome() is None:
            return False
        if self._consumed is not None and self._decided is None:
            # The learner consumes what a decision admitted; its topic was read first.
            return False
        return (
            self.tokens.last_offset >= sealed.tokens_end
            and self.tools.last_offset >= final.tool_position
            and max(self.verdicts.values(), default=-1) >= sealed.verdict_offset
        )

    @property
    def is_given_up(self) -> bool:
        """Whether the scheduler gave it up."""
        return self.is_issued and self.attempts.abandoned_us > 0

    @property
    def is_admitted(self) -> bool:
        """Whether it waits for the learner."""
        decided = self._decided
        return (
            self._consumed is None
            and decided is not None
            and (decided.outcome is GateOutcome.ADMIT)
        )

    def finish(self, outcome: str = "unknown", reason: str = "") -> Iterator[Span]:
        """Yield what is open and the root; outcome and reason are told where no record does."""
        yield from self.tokens.finish()
        yield from self.tools.finish()
        yield from self.attempts.finish(self.newest_us)
        if self._consumed is not None and self._decided is not None:
            yield self._learner_wait(self._consumed)
        yield self._root(outcome, reason)

    def _learner_wait(self, consumed: _Consumed) -> Span:
        return Span(
            trace_id=self.trace,
            span_id=span_of(self.trace, "learner wait"),
            parent_id=root_span(self.trace),
            name="learner wait",
            start_us=self._decided_us,
            end_us=max(self._decided_us, consumed.began_us),
            attributes=said(outcome=consumed.outcome) | consumed.attributes,
            links=self._links(),
        )

    def _root(self, outcome: str, reason: str) -> Span:
        life = self.attempts.life
        unsettled = outcome, self.newest_us, said(reason=reason)
        settled, settled_us, told = self._outcome() or unsettled
        issued = life.issued
        attributes = said(
            run_id=self.run_id, episode_id=self.episode_id, outcome=settled,
            attempts=self.attempts.attempts, pauses=life.pauses,
            superseded_commits=self.tokens.superseded,
        )  # fmt: skip
        if issued is not None:
            attributes |= said(
                group_id=issued.group_id, ordinal=issued.ordinal, member=issued.member,
                purpose=issued.purpose.value,
            )  # fmt: skip
        if self._sealed is not None:
            attributes |= self._sealed.attributes
        given_up = life.abandoned
        failed = settled in ("abandoned", "unknown", "evicted") and not (
            given_up is not None and is_asked_for(given_up.abandon_reason)
        )
        return Span(
            trace_id=self.trace,
            span_id=root_span(self.trace),
            parent_id=None,
            name="episode",
            start_us=self.attempts.issued_us or self.newest_us,
            end_us=settled_us,
            attributes=attributes | told,
            links=self._links(),
            error=str(told.get("sluice.reason", settled)) if failed else "",
        )

    def _outcome(self) -> tuple[str, int, dict[str, Value]] | None:
        """Return what became of it, when, and what is to be said; None while it is pending."""
        if (given_up := self.attempts.life.abandoned) is not None:
            reason = said(reason=given_up.abandon_reason.value, detail=given_up.detail)
            return "abandoned", self.attempts.abandoned_us, reason
        if (consumed := self._consumed) is not None:
            return consumed.outcome, consumed.at_us, consumed.attributes
        decided, sealed, issued = self._decided, self._sealed, self.attempts.life.issued
        if decided is not None and decided.outcome is GateOutcome.DROP:
            return "dropped", self._decided_us, said(reason=decided.reason.value)
        if sealed is not None and issued is not None and issued.purpose is not Purpose.TRAIN:
            return "evaluated", sealed.at_us, {}
        return None

    def _links(self) -> tuple[Link, ...]:
        if self._consumed is None or self._consumed.version is None:
            return ()
        trace = trace_of_version(self.run_id, self._consumed.version)
        return (Link(trace_id=trace, span_id=root_span(trace)),)


def _reason(reason: str) -> str:
    return "" if reason == "none" else reason
