"""The validator rules V1 to V9 and V11, as far as a trajectory and its heavy fields can show them.

Refuse, never repair: an invalid record is skipped under a named reason, with the rule and the field
in the message. V10 needs the WAL and V12 the turns; the assembler and `sluice audit` hold those.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schemas.enums import DropReason, RewardSource, StopCause, Termination
from schemas.ids import Version
from schemas.packing import HeavyFields
from schemas.records.trajectory import Trajectory

_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")
_DIGESTS = (
    "policy_digest",
    "tokenizer_digest",
    "template_digest",
    "tool_schema_digest",
    "environment_digest",
    "verifier_digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a trajectory is refused."""

    reason: DropReason
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def _invalid(rule: str, message: str) -> Refusal:
    return Refusal(reason=DropReason.INVALID_RECORD, rule=rule, message=message)


def refuse_light(trajectory: Trajectory) -> Refusal | None:
    """Say what is wrong with the light metadata, or None."""
    for name in _DIGESTS:
        value = getattr(trajectory, name)
        if not _DIGEST.fullmatch(value):
            return _invalid("V1", f"{name} is {value!r}, not a sha256 digest")
    if not _ends_one_way(trajectory):
        return _invalid(
            "V2", f"termination {trajectory.termination} with stop cause {trajectory.stop_cause}"
        )
    if not trajectory.termination.is_policy_outcome:
        return _invalid("3.4", f"termination {trajectory.termination} is no outcome of the policy")
    if trajectory.reward is None:
        return Refusal(
            reason=DropReason.NO_REWARD, rule="3.4", message="reward: none was given, and none is 0"
        )
    if not math.isfinite(trajectory.reward):
        return _invalid("3.4", f"reward is {trajectory.reward}")
    if trajectory.temperature <= 0.0:
        return _invalid("R34", f"temperature {trajectory.temperature}: greedy tokens have no ratio")
    return _refuse_spans(trajectory) or _refuse_counts(trajectory)


def _ends_one_way(trajectory: Trajectory) -> bool:
    """Whether stop cause and termination agree on truncated or terminated.

    A budget that cut the episode leaves it truncated, unless the policy is to blame by attribution
    (a tampered judge, a timeout on its own clock): that is a terminal outcome, whatever stopped it.
    """
    was_cut = trajectory.stop_cause is StopCause.BUDGET_TRUNCATION
    if trajectory.termination is Termination.AGENT_CAUSED_FAULT:
        return not was_cut or trajectory.reward_source is RewardSource.ATTRIBUTION
    return was_cut == trajectory.termination.is_truncated


def _refuse_spans(trajectory: Trajectory) -> Refusal | None:
    at = 0
    for span in trajectory.spans:
        if span.start < at or span.end <= span.start or span.end > trajectory.tokens:
            return _invalid(
                "V9", f"span [{span.start}, {span.end}) overlaps or leaves the trajectory"
            )
        if span.epoch < 0 or span.number < 0:
            return _invalid("V8", f"span names no version: {span.epoch}/{span.number}")
        at = span.end
    versions = [Version(span.epoch, span.number) for span in trajectory.spans]
    for before, after in pairwise(versions):
        if after < before:
            return _invalid("V6", f"version {after} follows {before}")
    if not versions:
        return _invalid("V9", "no span covers an action token")
    oldest = (trajectory.oldest_epoch, trajectory.oldest_number)
    if oldest != (versions[0].epoch, versions[0].number):
        return _invalid(
            "V9", f"oldest version {oldest} is not that of the first span {versions[0]}"
        )
    return None


def _refuse_counts(trajectory: Trajectory) -> Refusal | None:
    covered = sum(span.end - span.start for span in trajectory.spans)
    if covered != trajectory.action_tokens:
        return _invalid("V9", f"spans cover {covered} of {trajectory.action_tokens} action tokens")
    if any(count < 0 for count in trajectory.masked.values()):
        return _invalid("V3", "a masked count is negative")
    if not trajectory.chunks:
        return Refusal(
            reason=DropReason.PAYLOAD_LOST, rule="V11", message="chunks: the payload has no parts"
        )
    return None


def refuse_heavy(trajectory: Trajectory, heavy: HeavyFields) -> Refusal | None:
    """Say what is wrong with the heavy fields, the light ones having passed, or None."""
    if heavy.tokens != trajectory.tokens:
        return _invalid("V5", f"{heavy.tokens} tokens in the payload, {trajectory.tokens} named")
    action = np.zeros(heavy.tokens, dtype=np.bool_)
    for span in trajectory.spans:
        action[span.start : span.end] = True
    if action[0]:
        return _invalid("V9", "a span covers the first token, which nothing stands before")
    mask = np.frombuffer(heavy.mask, dtype=np.uint8)
    wrong = np.flatnonzero(mask > action)
    if wrong.size:
        at = int(wrong[0])
        return _invalid("V3", f"mask {int(mask[at])} at position {at} does not fit its token")
    excluded = trajectory.action_tokens - int(mask.sum())
    if excluded > sum(trajectory.masked.values()):
        return _invalid("V3", f"{excluded} action tokens are masked without a recorded reason")
    return _refuse_values(heavy, action)


def _refuse_values(heavy: HeavyFields, action: NDArray[np.bool_]) -> Refusal | None:
    ids = np.frombuffer(heavy.token_ids, dtype="<i4")
    if ids.min() < 0:
        at = int(ids.argmin())
        return _invalid("V5", f"token id {int(ids[at])} at position {at}")
    logprobs = np.frombuffer(heavy.logprobs, dtype="<f4")
    good = np.where(action, np.isfinite(logprobs) & (logprobs <= 0.0), logprobs == 0.0)
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        what = "is not finite and at most 0" if action[at] else "stands where none was sampled"
        return Refusal(
            reason=DropReason.INVALID_LOGPROB,
            rule="V4",
            message=f"logprobs: {float(logprobs[at])} at position {at} {what}",
        )
    return None
