"""One verdict.

Generated from `schemas/avro/verifier_result.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import ClockOwner, VerdictCode
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, WorkerId

_CLOCKOWNER = {member.value: member for member in ClockOwner if member != "unknown"}
_VERDICTCODE = {member.value: member for member in VerdictCode if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierResult:
    """One verdict."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    attempt: int
    """Attempt judged. Unit: attempts."""
    verifier_digest: str
    """Digest of the rubric that judged."""
    code: VerdictCode
    """One of seven codes."""
    reward: float | None = None
    """Reward; absent unless the code carries one. Unit: reward."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Raw reward components, unweighted. Unit: reward."""
    component_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights whose weighted sum is the reward. Unit: ratio."""
    evidence_id: str = ""
    """Identifier of the evidence."""
    evidence: str = ""
    """Evidence, at most 16 KiB."""
    clock_owner: ClockOwner = ClockOwner.NONE
    """Whose clock ran out."""
    tries: int = 1
    """Tries inside the verifier. Unit: times."""
    cost_s: float = 0.0
    """Processor or wall seconds spent over all tries. Unit: s."""
    request_offset: int = -1
    """Offset of the request in verify-requests. Unit: records."""
    queued_us: int = 0
    """Wait from request to start. Unit: us."""
    duration_us: int = 0
    """Time to judge. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("VerifierResult", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("VerifierResult", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("VerifierResult", "group_id", self.group_id)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "attempt", self.attempt)
        if type(self.verifier_digest) is not str:
            raise FieldTypeError("VerifierResult", "verifier_digest", self.verifier_digest)
        if type(self.code) is not VerdictCode:
            raise FieldTypeError("VerifierResult", "code", self.code)
        if self.reward is not None and (type(self.reward) is not float):
            raise FieldTypeError("VerifierResult", "reward", self.reward)
        if not isinstance(self.components, Mapping) or any(type(key) is not str or type(value) is not float for key, value in self.components.items()):
            raise FieldTypeError("VerifierResult", "components", self.components)
        if not isinstance(self.component_weights, Mapping) or any(type(key) is not str or type(value) is not float for key, value in self.component_weights.items()):
            raise FieldTypeError("VerifierResult", "component_weights", self.component_weights)
        if type(self.evidence_id) is not str:
            raise FieldTypeError("VerifierResult", "evidence_id", self.evidence_id)
        if type(self.evidence) is not str:
            raise FieldTypeError("VerifierResult", "evidence", self.evidence)
        if type(self.clock_owner) is not ClockOwner:
            raise FieldTypeError("VerifierResult", "clock_owner", self.clock_owner)
        if type(self.tries) is not int or not -0x8000000000000000 <= self.tries < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "tries", self.tries)
        if type(self.cost_s) is not float:
            raise FieldTypeError("VerifierResult", "cost_s", self.cost_s)
        if type(self.request_offset) is not int or not -0x8000000000000000 <= self.request_offset < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "request_offset", self.request_offset)
        if type(self.queued_us) is not int or not -0x8000000000000000 <= self.queued_us < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "queued_us", self.queued_us)
        if type(self.duration_us) is not int or not -0x8000000000000000 <= self.duration_us < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "duration_us", self.duration_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("VerifierResult", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("VerifierResult", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "attempt": self.attempt,
            "verifier_digest": self.verifier_digest,
            "code": self.code,
            "reward": self.reward,
            "components": dict(self.components),
            "component_weights": dict(self.component_weights),
            "evidence_id": self.evidence_id,
            "evidence": self.evidence,
            "clock_owner": self.clock_owner,
            "tries": self.tries,
            "cost_s": self.cost_s,
            "request_offset": self.request_offset,
            "queued_us": self.queued_us,
            "duration_us": self.duration_us,
            "at_us": self.at_us,
            "writer_id": self.writer_id,
        }

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self:
        """Return the record of one Avro datum; raise KeyError for an enum symbol unknown here."""
        return cls(
            run_id=RunId(raw["run_id"]),
            episode_id=EpisodeId(raw["episode_id"]),
            group_id=GroupId(raw["group_id"]),
            attempt=raw["attempt"],
            verifier_digest=raw["verifier_digest"],
            code=_VERDICTCODE[raw["code"]],
            reward=raw["reward"],
            components=raw["components"],
            component_weights=raw["component_weights"],
            evidence_id=raw["evidence_id"],
            evidence=raw["evidence"],
            clock_owner=_CLOCKOWNER[raw["clock_owner"]],
            tries=raw["tries"],
            cost_s=raw["cost_s"],
            request_offset=raw["request_offset"],
            queued_us=raw["queued_us"],
            duration_us=raw["duration_us"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class VerifierResultDraft:
    """The layout of VerifierResult without its lock: it is filled, then becomes the record."""

    __slots__ = VerifierResult.__slots__


def _init_VerifierResult(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    attempt: int,
    verifier_digest: str,
    code: VerdictCode,
    reward: float | None = None,  # noqa: B008  immutable
    components: Mapping[str, float] = _NEW_MAP,
    component_weights: Mapping[str, float] = _NEW_MAP,
    evidence_id: str = "",  # noqa: B008  immutable
    evidence: str = "",  # noqa: B008  immutable
    clock_owner: ClockOwner = ClockOwner.NONE,  # noqa: B008  immutable
    tries: int = 1,  # noqa: B008  immutable
    cost_s: float = 0.0,  # noqa: B008  immutable
    request_offset: int = -1,  # noqa: B008  immutable
    queued_us: int = 0,  # noqa: B008  immutable
    duration_us: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", VerifierResultDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.attempt = attempt
    self.verifier_digest = verifier_digest
    self.code = code
    self.reward = reward
    self.components = {} if components is _NEW_MAP else components
    self.component_weights = {} if component_weights is _NEW_MAP else component_weights
    self.evidence_id = evidence_id
    self.evidence = evidence
    self.clock_owner = clock_owner
    self.tries = tries
    self.cost_s = cost_s
    self.request_offset = request_offset
    self.queued_us = queued_us
    self.duration_us = duration_us
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = VerifierResult


# What it does is what the generated one does; `replace` and `copy` go through it too.
VerifierResult.__init__ = _init_VerifierResult  # type: ignore[method-assign]
