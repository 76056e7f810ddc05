"""Single records as `sluice replay` tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.enums import EpisodeEventKind, TokenKind
from schemas.packing import Span
from schemas.ports import Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest
from schemas.rules.wal import Verdict


@dataclass(slots=True, kw_only=True)
class Moment:
    """One record of the story; `counts` may still change while the story is read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    kind: str
    what: str
    counts: bool

    def to_json(self) -> dict[str, Any]:
        """Return the moment as plain data."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "kind": self.kind,
            "what": self.what,
            "counts": self.counts,
        }


@dataclass(slots=True, kw_only=True)
class Commit:
    """One record of the WAL with its tokens unpacked; `verdict` may still change."""

    offset: int
    timestamp_ms: int
    record: TokenCommit
    verdict: Verdict
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]

    def to_json(self, texts: tuple[str, ...] | None) -> dict[str, Any]:
        """Return the commit as plain data; `text` only when the tokenizer is known."""
        record = self.record
        out: dict[str, Any] = {
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "kind": record.kind.value,
            "verdict": self.verdict.value,
            "attempt": record.attempt,
            "fence_number": record.fence_number,
            "writer": f"{record.writer_id}/{record.incarnation}/{record.producer_number}",
            "branch": record.branch,
            "turn": record.turn,
            "seq": record.seq,
            "start": record.start,
            "token_ids": list(self.token_ids),
            "logprobs": list(self.logprobs),
            "versions": [
                {"start": s.start, "end": s.end, "version": str(s.version)} for s in self.spans
            ],
            "finish_reason": record.finish_reason.value,
            "cut_reason": record.cut_reason.value,
        }
        if texts is not None:
            out["text"] = list(texts)
        return out


def moment_of(topic: str, message: Delivered[Any], counts: bool) -> Moment:
    """Return a record as a moment, with a sentence of what it says."""
    kind, what = _sentence(message.record)
    return Moment(
        topic=topic,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=message.timestamp_ms,
        kind=kind,
        what=what,
        counts=counts,
    )


def _sentence(record: Any) -> tuple[str, str]:
    match record:
        case EpisodeEvent():
            return record.kind.value, _episode_event(record)
        case TokenCommit():
            who = f"attempt {record.attempt} fence {record.fence_number} by {record.writer_id}"
            if record.kind is TokenKind.FENCE:
                return record.kind.value, who
            if record.kind is TokenKind.CUT:
                return record.kind.value, f"{who}, {record.cut_reason} back to {record.start}"
            where = f"turn {record.turn} seq {record.seq}"
            end = record.start + record.count
            return record.kind.value, f"{who}, {where}, tokens {record.start} to {end}"
        case ToolEvent():
            call = f"{record.tool} {record.call_key}".strip()
            said = record.arguments or record.output
            return record.kind.value, f"attempt {record.attempt} {call} {said[:80]}".strip()
        case VerifyRequest():
            return "verify_request", f"attempt {record.attempt}, stopped by {record.stop_cause}"
        case VerifierResult():
            text = f"attempt {record.attempt}: {record.code}, reward {record.reward}"
            return "verdict", f"{text}, {record.evidence[:80]}".rstrip(", ")
        case Trajectory():
            return "trajectory", (
                f"{record.termination}, reward {record.reward} by {record.reward_source}, "
                f"{record.tokens} tokens, {record.action_tokens} sampled"
            )
        case _:
            return _consumption(record)


def _consumption(record: Any) -> tuple[str, str]:
    match record:
        case GateDecision():
            told = [f"{m.episode_id} {m.outcome} {m.reason}" for m in record.members]
            return "decision", "; ".join(told)
        case GatedTrajectory():
            return "gated", f"weight {record.weight}, decision at {record.decision_offset}"
        case LearnerEvent():
            return record.kind.value, f"version {record.epoch}/{record.number} {record.detail}"
        case _:
            return type(record).__name__.lower(), ""


def _episode_event(event: EpisodeEvent) -> str:
    match event.kind:
        case EpisodeEventKind.ISSUED:
            return f"as member {event.member} of {event.group_size}"
        case EpisodeEventKind.LEASED:
            failed = ", ".join(f"{n} {name}" for name, n in event.after_failures.items())
            after = f" after {failed}" if failed else ""
            return f"attempt {event.attempt} to {event.worker_id}{after}"
        case EpisodeEventKind.ENDED:
            text = f"attempt {event.attempt} by {event.stop_cause} at WAL {event.wal_position}"
            return f"{text}, {event.token_count} tokens {event.detail}".strip()
        case EpisodeEventKind.ABANDONED:
            return f"{event.abandon_reason} {event.detail}".strip()
        case _:
            return f"attempt {event.attempt} {event.detail}".strip()
