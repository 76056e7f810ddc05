"""Whether a trajectory may be trained at this moment: whole, rewarded, of the learner's lineage,
inside both bounds.

`lag = ordinal(learner) - ordinal(version of the oldest action token)`, taken where it is used,
never where it was made (requirements F7). Bounds are inclusive. What is over a bound is dropped;
inside it a declared function may lower the weight, which is 1 at lag 0 and never rises with lag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from schemas.enums import DropReason, VerdictCode, VersionSwitch
from schemas.ids import Version
from schemas.records.trajectory import Trajectory
from schemas.rules.lineage import LearnerLog

DIGESTS = (
    "policy_digest",
    "tokenizer_digest",
    "template_digest",
    "tool_schema_digest",
    "environment_digest",
    "verifier_digest",
)
"""The six digests without which a reward cannot be explained (rule V1)."""

_SAID_BY_ASSEMBLER = frozenset(
    {
        DropReason.INVALID_LOGPROB.value,
        DropReason.INVALID_RECORD.value,
        DropReason.VERSION_MISMATCH.value,
    }
)
"""Reasons that the assembler found in the tokens and wrote at the head of `attribution`."""

_SHA256 = re.compile(r"(sha256:)?[0-9a-f]{64}")


@lru_cache(maxsize=4096)
def _is_sha256(text: str) -> bool:
    # A run has few digests, and each trajectory names six of them.
    return _SHA256.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How old is too old, inclusive, and how the weight falls before."""

    max_lag_steps: int
    max_age_ms: int
    weight: Callable[[int], float]
    """Loss weight by lag; see `constant`, `inverse`, `exponential`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What holds for one trajectory at one moment."""

    reason: DropReason
    """none: it may be trained."""
    detail: str = ""
    lag_steps: int = 0
    age_ms: int = 0
    is_skewed: bool = False
    """Its broker time lies ahead of the clock; its age counts as 0."""
    weight: float = 1.0

    @property
    def is_valid(self) -> bool:
        """Whether it may be trained."""
        return self.reason is DropReason.NONE


def constant(lag: int) -> float:
    """Return 1 at every lag."""
    return 1.0 if lag >= 0 else math.nan


def inverse(rate: float) -> Callable[[int], float]:
    """Return 1 / (1 + rate * lag). rate: at least 0. Unit: 1 per update."""
    return lambda lag: 1.0 / (1.0 + rate * lag)


def exponential(rate: float) -> Callable[[int], float]:
    """Return exp(-rate * lag). rate: at least 0. Unit: 1 per update."""
    return lambda lag: math.exp(-rate * lag)


def age_of(*, timestamp_ms: int, now_ms: int) -> tuple[int, bool]:
    """Return the age of a record of broker time `timestamp_ms`, and whether the clocks disagree.
    Unit: ms.
    """
    age = now_ms - timestamp_ms
    return max(0, age), age < 0


def rejects(*, ordinals: tuple[int, ...], current: int, bound: int) -> bool:
    """Whether the policy version filter discards a sample (F7): the oldest version is more than
    `bound` behind.
    """
    return current - min(ordinals) > bound


def versions_of(trajectory: Trajectory) -> tuple[Version, ...]:
    """Return the versions of its action tokens, in the order of their first token."""
    return tuple(dict.fromkeys(Version(span.epoch, span.number) for span in trajectory.spans))


def defect(trajectory: Trajectory) -> tuple[DropReason, str] | None:
    """Say what makes a trajectory untrainable whatever its age, naming rule and field, or None."""
    said = trajectory.attribution.partition(":")[0]
    if trajectory.reward is None and said in _SAID_BY_ASSEMBLER:
        return DropReason(said), trajectory.attribution
    return _bad_record(trajectory) or _no_reward(trajectory)


def _bad_record(trajectory: Trajectory) -> tuple[DropReason, str] | None:
    for name in DIGESTS:
        value = getattr(trajectory, name)
        if not _is_sha256(value):
            return DropReason.INVALID_RECORD, f"V1: {name} is no sha256: {value!r}"
    covered = sum(span.end - span.start for span in trajectory.spans)
    if not covered or covered != trajectory.action_tokens:
        return (
            DropReason.INVALID_RECORD,
            f"V9: spans cover {covered} of {trajectory.action_tokens} action tokens",
        )
    if not trajectory.chunks:
        return DropReason.PAYLOAD_LOST, "V11: chunks are empty"
    is_pinned = trajectory.version_switch is VersionSwitch.PINNED
    if is_pinned and len(versions_of(trajectory)) > 1:
        return DropReason.VERSION_MISMATCH, "pinned, but spans name more than one version"
    return None


def _no_reward(trajectory: Trajectory) -> tuple[DropReason, str] | None:
    if trajectory.reward is None or not math.isfinite(trajectory.reward):
        if trajectory.verdict_code is VerdictCode.NONE:
            return DropReason.VERDICT_TIMEOUT, "no verdict came before its deadline"
        return DropReason.NO_REWARD, f"{trajectory.verdict_code} carries no reward"
    if not trajectory.termination.is_policy_outcome:
        return DropReason.NO_REWARD, f"{trajectory.termination} is not the policy's doing"
    return None


def judge(
    trajectory: Trajectory,
    *,
    timestamp_ms: int,
    now_ms: int,
    learner: LearnerLog,
    registry: Mapping[Version, str],
    bounds: Bounds,
    is_draining: bool,
) -> Judged:
    """Judge one trajectory now. registry: version to digest, read past ends sampled when the
    trajectory arrived.
    """
    age_ms, is_skewed = age_of(timestamp_ms=timestamp_ms, now_ms=now_ms)
    versions = versions_of(trajectory)
    # A version that a restart cut off has an ordinal too, maybe above the head's; lag is a
    # difference along the lineage and counts its versions only.
    ordinals = [learner.ordinal_of(v) for v in versions if learner.is_ancestor(v)]
    known = [ordinal for ordinal in ordinals if ordinal is not None]
    lag = learner.newest_ordinal - min(known) if known else 0

    def judged(reason: DropReason, detail: str = "") -> Judged:
        return Judged(
            reason=reason,
            detail=detail,
            lag_steps=lag,
            age_ms=age_ms,
            is_skewed=is_skewed,
            weight=bounds.weight(max(0, lag)) if reason is DropReason.NONE else 1.0,
        )

    if is_draining:
        return judged(DropReason.RUN_ENDED)
    for version in versions:
        if version not in registry or not learner.is_ancestor(version):
            return judged(DropReason.ORPHANED_VERSION, f"{version} is not on the learner's lineage")
    found = defect(trajectory)
    if found is not None:
        return judged(*found)
    oldest = Version(trajectory.oldest_epoch, trajectory.oldest_number)
    if registry.get(oldest) != trajectory.policy_digest:
        return judged(
            DropReason.VERSION_MISMATCH, f"policy_digest is not that of {oldest} in the registry"
        )
    if lag > bounds.max_lag_steps:
        return judged(DropReason.LAG, f"{lag} updates behind")
    if age_ms > bounds.max_age_ms:
        return judged(DropReason.AGE, f"{age_ms} ms old")
    return judged(DropReason.NONE)
