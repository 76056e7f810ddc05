"""The audit's own reading of verdicts, trajectories, decisions and gated records: what counts of
each is the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from schemas.enums import DropReason, GateOutcome, RewardSource, Termination
from schemas.ports import Delivered
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef, MemberDecision
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult

_DIGESTS = (
    "policy_digest",
    "tokenizer_digest",
    "template_digest",
    "tool_schema_digest",
    "environment_digest",
    "verifier_digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the audit keeps of a verdict."""

    offset: int
    carries: bool
    reward: float | None
    request_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What the audit keeps of a counting Trajectory."""

    partition: int
    offset: int
    ended_offset: int
    verdict_offset: int
    attempt: int
    tokens: int
    action_tokens: int
    sibling_tokens: int
    reward: float | None
    source: RewardSource
    attributed: bool
    termination: Termination
    policy_digest: str
    lacks: str
    """Which of the six digests it does not name."""
    oldest: tuple[int, int]
    versions: frozenset[tuple[int, int]]
    """Those of its spans."""
    chunks: tuple[ChunkRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What the audit keeps of a first decision."""

    partition: int
    offset: int
    members: dict[str, MemberDecision]
    abandoned: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """What the audit keeps of a gated record."""

    episode_id: str
    decision_offset: int
    trajectory_offset: int


class Outcomes:
    """What became of the episodes of a run."""

    def __init__(self) -> None:
        """Start before the first record."""
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        """First verdict by episode and attempt."""
        self.trajectories: dict[str, Sealed] = {}
        self.decisions: dict[str, Decided] = {}
        self.gated: dict[tuple[int, int], Gated] = {}
        """By partition and offset."""
        self.superseded: Counter[str] = Counter()
        self._gated_once: set[str] = set()

    def take_verdict(self, message: Delivered[VerifierResult]) -> None:
        """Take the next verdict."""
        result = message.record
        key = (str(result.episode_id), result.attempt)
        if key in self.verdicts:
            self.superseded["verdicts"] += 1
            return
        self.verdicts[key] = Verdict(
            offset=message.offset,
            carries=result.code.carries_reward,
            reward=result.reward,
            request_offset=result.request_offset,
        )

    def take_trajectory(self, message: Delivered[Trajectory]) -> None:
        """Take the next Trajectory."""
        record = message.record
        if record.episode_id in self.trajectories:
            self.superseded["trajectories"] += 1
            return
        self.trajectories[record.episode_id] = Sealed(
            partition=message.partition,
            offset=message.offset,
            ended_offset=record.ended_offset,
            verdict_offset=record.verdict_offset,
            attempt=record.attempt,
            tokens=record.tokens,
            action_tokens=record.action_tokens,
            sibling_tokens=record.masked.get("sibling_branch", 0),
            reward=record.reward,
            source=record.reward_source,
            attributed=bool(record.attribution),
            termination=record.termination,
            policy_digest=record.policy_digest,
            lacks=" ".join(name for name in _DIGESTS if not getattr(record, name)),
            versions=frozenset((span.epoch, span.number) for span in record.spans),
            oldest=(record.oldest_epoch, record.oldest_number),
            chunks=record.chunks,
        )

    def take_decision(self, message: Delivered[GateDecision]) -> None:
        """Take the next decision."""
        record = message.record
        if record.group_id in self.decisions:
            self.superseded["gate-decisions"] += 1
            return
        self.decisions[record.group_id] = Decided(
            partition=message.partition,
            offset=message.offset,
            members={str(member.episode_id): member for member in record.members},
            abandoned=frozenset(record.abandoned),
        )

    def take_gated(self, message: Delivered[GatedTrajectory]) -> None:
        """Take the next gated record."""
        record = message.record
        if record.episode_id in self._gated_once:
            self.superseded["gated (repeats)"] += 1
        self._gated_once.add(str(record.episode_id))
        self.gated[message.partition, message.offset] = Gated(
            episode_id=str(record.episode_id),
            decision_offset=record.decision_offset,
            trajectory_offset=record.trajectory_offset,
        )

    def decision_on(self, group_id: str, episode_id: str) -> tuple[bool, DropReason] | None:
        """Return (admitted, drop reason) of a member, or None while it is undecided or not a
        member.
        """
        decided = self.decisions.get(group_id)
        member = decided.members.get(episode_id) if decided else None
        if member is None:
            return None
        return member.outcome is GateOutcome.ADMIT, member.reason
