"""Light metadata of one finished episode; the heavy fields stand in payloads.v1.

Generated from `schemas/avro/trajectory.avsc` by `make records`; edit the schema, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from schemas.enums import Purpose, RewardSource, StopCause, Termination, VerdictCode, VersionSwitch
from schemas.errors import FieldTypeError
from schemas.ids import EpisodeId, GroupId, RunId, TaskId, WorkerId
from schemas.records.parts import ChunkRef, PolicySpan

_PURPOSE = {member.value: member for member in Purpose if member != "unknown"}
_REWARDSOURCE = {member.value: member for member in RewardSource if member != "unknown"}
_STOPCAUSE = {member.value: member for member in StopCause if member != "unknown"}
_TERMINATION = {member.value: member for member in Termination if member != "unknown"}
_VERDICTCODE = {member.value: member for member in VerdictCode if member != "unknown"}
_VERSIONSWITCH = {member.value: member for member in VersionSwitch if member != "unknown"}
_open = object.__setattr__
_NEW_MAP: Mapping[str, Any] = {}

@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Light metadata of one finished episode; the heavy fields stand in payloads.v1."""

    run_id: RunId
    """The run this record belongs to."""
    episode_id: EpisodeId
    """The rollout."""
    group_id: GroupId
    """Its group; decides the partition."""
    task_id: TaskId
    """The task."""
    ordinal: int = 0
    """Ordinal of the task. Unit: tasks."""
    member: int = 0
    """Place within the group. Unit: episodes."""
    group_size: int = 1
    """Rollouts in the group. Unit: episodes."""
    purpose: Purpose = Purpose.TRAIN
    """Purpose of the task."""
    environment: str = ""
    """Environment package."""
    stream: str = ""
    """Mixture component."""
    attempt: int = 0
    """Attempt of the final Ended. Unit: attempts."""
    schema_version: int = 1
    """Version of this contract. Unit: versions."""
    policy_digest: str = ""
    """Digest of the policy version of the oldest action token; the registry resolves the others."""
    tokenizer_digest: str = ""
    """Tokenizer."""
    template_digest: str = ""
    """Prompt template."""
    tool_schema_digest: str = ""
    """Tool schema."""
    environment_digest: str = ""
    """Environment."""
    verifier_digest: str = ""
    """Verifier."""
    version_switch: VersionSwitch = VersionSwitch.SPANNING
    """Whether versions may change inside the episode."""
    spans: tuple[PolicySpan, ...] = ()
    """Policy spans over action tokens, in order."""
    oldest_epoch: int = 0
    """Epoch of the oldest action token's version. Unit: epochs."""
    oldest_number: int = 0
    """Number of the oldest action token's version. Unit: versions."""
    termination: Termination = Termination.UNKNOWN
    """Stop cause and verdict together."""
    stop_cause: StopCause = StopCause.NONE
    """Stop cause of the final Ended."""
    verdict_code: VerdictCode = VerdictCode.NONE
    """Verdict; none when the deadline passed."""
    reward: float | None = None
    """Reward; absent when none was given. Unit: reward."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Raw components. Unit: reward."""
    reward_source: RewardSource = RewardSource.NONE
    """Verdict or attribution."""
    attribution: str = ""
    """What is to blame, when the reward comes from attribution."""
    tokens: int = 0
    """Tokens on the main line. Unit: tokens."""
    action_tokens: int = 0
    """Action tokens on the main line. Unit: tokens."""
    prompt_tokens: int = 0
    """Prompt tokens. Unit: tokens."""
    observation_tokens: int = 0
    """Observation tokens. Unit: tokens."""
    masked: Mapping[str, int] = field(default_factory=dict)
    """Action tokens masked, by reason. Unit: tokens."""
    superseded_tokens: int = 0
    """Action tokens that do not count. Unit: tokens."""
    turns: int = 0
    """Turns. Unit: turns."""
    tool_calls: int = 0
    """Tool calls. Unit: calls."""
    tool_errors: int = 0
    """Tool calls that did not end ok. Unit: calls."""
    chunks: tuple[ChunkRef, ...] = ()
    """The payload chunks, in order."""
    payload_length: int = 0
    """Bytes over all chunks. Unit: bytes."""
    payload_crc32c: int = 0
    """CRC-32C over all chunks joined."""
    temperature: float = 1.0
    """Sampling temperature. Unit: ratio."""
    top_p: float = 1.0
    """Nucleus share. Unit: ratio."""
    top_k: int = 0
    """Top-k; 0 is off. Unit: tokens."""
    tokens_first: int = -1
    """Offset of its first WAL record. Unit: records."""
    tokens_end: int = -1
    """Offset of its last accepted WAL record. Unit: records."""
    ended_offset: int = -1
    """Offset of the final Ended in episodes. Unit: records."""
    verdict_offset: int = -1
    """Offset of the verdict; -1 when none. Unit: records."""
    issued_us: int = 0
    """Broker time of Issued. Unit: us."""
    first_token_us: int = 0
    """When its first action token was sampled. Unit: us."""
    ended_us: int = 0
    """Broker time of the final Ended. Unit: us."""
    verified_us: int = 0
    """Broker time of the verdict; 0 when none. Unit: us."""
    at_us: int
    """The writer's wall clock when it made the record; broker time is the record's own timestamp. Unit: us."""
    writer_id: WorkerId
    """The worker that wrote the record."""

    def to_avro(self) -> dict[str, Any]:
        """Return the Avro datum; raise FieldTypeError at the first field of a wrong type or range."""
        if type(self.run_id) is not str:
            raise FieldTypeError("Trajectory", "run_id", self.run_id)
        if type(self.episode_id) is not str:
            raise FieldTypeError("Trajectory", "episode_id", self.episode_id)
        if type(self.group_id) is not str:
            raise FieldTypeError("Trajectory", "group_id", self.group_id)
        if type(self.task_id) is not str:
            raise FieldTypeError("Trajectory", "task_id", self.task_id)
        if type(self.ordinal) is not int or not -0x8000000000000000 <= self.ordinal < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "ordinal", self.ordinal)
        if type(self.member) is not int or not -0x8000000000000000 <= self.member < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "member", self.member)
        if type(self.group_size) is not int or not -0x8000000000000000 <= self.group_size < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "group_size", self.group_size)
        if type(self.purpose) is not Purpose:
            raise FieldTypeError("Trajectory", "purpose", self.purpose)
        if type(self.environment) is not str:
            raise FieldTypeError("Trajectory", "environment", self.environment)
        if type(self.stream) is not str:
            raise FieldTypeError("Trajectory", "stream", self.stream)
        if type(self.attempt) is not int or not -0x8000000000000000 <= self.attempt < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "attempt", self.attempt)
        if type(self.schema_version) is not int or not -0x8000000000000000 <= self.schema_version < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "schema_version", self.schema_version)
        if type(self.policy_digest) is not str:
            raise FieldTypeError("Trajectory", "policy_digest", self.policy_digest)
        if type(self.tokenizer_digest) is not str:
            raise FieldTypeError("Trajectory", "tokenizer_digest", self.tokenizer_digest)
        if type(self.template_digest) is not str:
            raise FieldTypeError("Trajectory", "template_digest", self.template_digest)
        if type(self.tool_schema_digest) is not str:
            raise FieldTypeError("Trajectory", "tool_schema_digest", self.tool_schema_digest)
        if type(self.environment_digest) is not str:
            raise FieldTypeError("Trajectory", "environment_digest", self.environment_digest)
        if type(self.verifier_digest) is not str:
            raise FieldTypeError("Trajectory", "verifier_digest", self.verifier_digest)
        if type(self.version_switch) is not VersionSwitch:
            raise FieldTypeError("Trajectory", "version_switch", self.version_switch)
        if type(self.spans) is not tuple or any(type(item) is not PolicySpan for item in self.spans):
            raise FieldTypeError("Trajectory", "spans", self.spans)
        if type(self.oldest_epoch) is not int or not -0x8000000000000000 <= self.oldest_epoch < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "oldest_epoch", self.oldest_epoch)
        if type(self.oldest_number) is not int or not -0x8000000000000000 <= self.oldest_number < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "oldest_number", self.oldest_number)
        if type(self.termination) is not Termination:
            raise FieldTypeError("Trajectory", "termination", self.termination)
        if type(self.stop_cause) is not StopCause:
            raise FieldTypeError("Trajectory", "stop_cause", self.stop_cause)
        if type(self.verdict_code) is not VerdictCode:
            raise FieldTypeError("Trajectory", "verdict_code", self.verdict_code)
        if self.reward is not None and (type(self.reward) is not float):
            raise FieldTypeError("Trajectory", "reward", self.reward)
        if not isinstance(self.reward_components, Mapping) or any(type(key) is not str or type(value) is not float for key, value in self.reward_components.items()):
            raise FieldTypeError("Trajectory", "reward_components", self.reward_components)
        if type(self.reward_source) is not RewardSource:
            raise FieldTypeError("Trajectory", "reward_source", self.reward_source)
        if type(self.attribution) is not str:
            raise FieldTypeError("Trajectory", "attribution", self.attribution)
        if type(self.tokens) is not int or not -0x8000000000000000 <= self.tokens < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "tokens", self.tokens)
        if type(self.action_tokens) is not int or not -0x8000000000000000 <= self.action_tokens < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "action_tokens", self.action_tokens)
        if type(self.prompt_tokens) is not int or not -0x8000000000000000 <= self.prompt_tokens < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "prompt_tokens", self.prompt_tokens)
        if type(self.observation_tokens) is not int or not -0x8000000000000000 <= self.observation_tokens < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "observation_tokens", self.observation_tokens)
        if not isinstance(self.masked, Mapping) or any(type(key) is not str or type(value) is not int or not -0x8000000000000000 <= value < 0x8000000000000000 for key, value in self.masked.items()):
            raise FieldTypeError("Trajectory", "masked", self.masked)
        if type(self.superseded_tokens) is not int or not -0x8000000000000000 <= self.superseded_tokens < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "superseded_tokens", self.superseded_tokens)
        if type(self.turns) is not int or not -0x8000000000000000 <= self.turns < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "turns", self.turns)
        if type(self.tool_calls) is not int or not -0x8000000000000000 <= self.tool_calls < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "tool_calls", self.tool_calls)
        if type(self.tool_errors) is not int or not -0x8000000000000000 <= self.tool_errors < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "tool_errors", self.tool_errors)
        if type(self.chunks) is not tuple or any(type(item) is not ChunkRef for item in self.chunks):
            raise FieldTypeError("Trajectory", "chunks", self.chunks)
        if type(self.payload_length) is not int or not -0x8000000000000000 <= self.payload_length < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "payload_length", self.payload_length)
        if type(self.payload_crc32c) is not int or not -0x8000000000000000 <= self.payload_crc32c < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "payload_crc32c", self.payload_crc32c)
        if type(self.temperature) is not float:
            raise FieldTypeError("Trajectory", "temperature", self.temperature)
        if type(self.top_p) is not float:
            raise FieldTypeError("Trajectory", "top_p", self.top_p)
        if type(self.top_k) is not int or not -0x8000000000000000 <= self.top_k < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "top_k", self.top_k)
        if type(self.tokens_first) is not int or not -0x8000000000000000 <= self.tokens_first < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "tokens_first", self.tokens_first)
        if type(self.tokens_end) is not int or not -0x8000000000000000 <= self.tokens_end < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "tokens_end", self.tokens_end)
        if type(self.ended_offset) is not int or not -0x8000000000000000 <= self.ended_offset < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "ended_offset", self.ended_offset)
        if type(self.verdict_offset) is not int or not -0x8000000000000000 <= self.verdict_offset < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "verdict_offset", self.verdict_offset)
        if type(self.issued_us) is not int or not -0x8000000000000000 <= self.issued_us < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "issued_us", self.issued_us)
        if type(self.first_token_us) is not int or not -0x8000000000000000 <= self.first_token_us < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "first_token_us", self.first_token_us)
        if type(self.ended_us) is not int or not -0x8000000000000000 <= self.ended_us < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "ended_us", self.ended_us)
        if type(self.verified_us) is not int or not -0x8000000000000000 <= self.verified_us < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "verified_us", self.verified_us)
        if type(self.at_us) is not int or not -0x8000000000000000 <= self.at_us < 0x8000000000000000:
            raise FieldTypeError("Trajectory", "at_us", self.at_us)
        if type(self.writer_id) is not str:
            raise FieldTypeError("Trajectory", "writer_id", self.writer_id)
        return {
            "run_id": self.run_id,
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "task_id": self.task_id,
            "ordinal": self.ordinal,
            "member": self.member,
            "group_size": self.group_size,
            "purpose": self.purpose,
            "environment": self.environment,
            "stream": self.stream,
            "attempt": self.attempt,
            "schema_version": self.schema_version,
            "policy_digest": self.policy_digest,
            "tokenizer_digest": self.tokenizer_digest,
            "template_digest": self.template_digest,
            "tool_schema_digest": self.tool_schema_digest,
            "environment_digest": self.environment_digest,
            "verifier_digest": self.verifier_digest,
            "version_switch": self.version_switch,
            "spans": [part.to_avro() for part in self.spans],
            "oldest_epoch": self.oldest_epoch,
            "oldest_number": self.oldest_number,
            "termination": self.termination,
            "stop_cause": self.stop_cause,
            "verdict_code": self.verdict_code,
            "reward": self.reward,
            "reward_components": dict(self.reward_components),
            "reward_source": self.reward_source,
            "attribution": self.attribution,
            "tokens": self.tokens,
            "action_tokens": self.action_tokens,
            "prompt_tokens": self.prompt_tokens,
            "observation_tokens": self.observation_tokens,
            "masked": dict(self.masked),
            "superseded_tokens": self.superseded_tokens,
            "turns": self.turns,
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
            "chunks": [part.to_avro() for part in self.chunks],
            "payload_length": self.payload_length,
            "payload_crc32c": self.payload_crc32c,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "tokens_first": self.tokens_first,
            "tokens_end": self.tokens_end,
            "ended_offset": self.ended_offset,
            "verdict_offset": self.verdict_offset,
            "issued_us": self.issued_us,
            "first_token_us": self.first_token_us,
            "ended_us": self.ended_us,
            "verified_us": self.verified_us,
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
            task_id=TaskId(raw["task_id"]),
            ordinal=raw["ordinal"],
            member=raw["member"],
            group_size=raw["group_size"],
            purpose=_PURPOSE[raw["purpose"]],
            environment=raw["environment"],
            stream=raw["stream"],
            attempt=raw["attempt"],
            schema_version=raw["schema_version"],
            policy_digest=raw["policy_digest"],
            tokenizer_digest=raw["tokenizer_digest"],
            template_digest=raw["template_digest"],
            tool_schema_digest=raw["tool_schema_digest"],
            environment_digest=raw["environment_digest"],
            verifier_digest=raw["verifier_digest"],
            version_switch=_VERSIONSWITCH[raw["version_switch"]],
            spans=tuple([PolicySpan.from_avro(part) for part in raw["spans"]]),
            oldest_epoch=raw["oldest_epoch"],
            oldest_number=raw["oldest_number"],
            termination=_TERMINATION[raw["termination"]],
            stop_cause=_STOPCAUSE[raw["stop_cause"]],
            verdict_code=_VERDICTCODE[raw["verdict_code"]],
            reward=raw["reward"],
            reward_components=raw["reward_components"],
            reward_source=_REWARDSOURCE[raw["reward_source"]],
            attribution=raw["attribution"],
            tokens=raw["tokens"],
            action_tokens=raw["action_tokens"],
            prompt_tokens=raw["prompt_tokens"],
            observation_tokens=raw["observation_tokens"],
            masked=raw["masked"],
            superseded_tokens=raw["superseded_tokens"],
            turns=raw["turns"],
            tool_calls=raw["tool_calls"],
            tool_errors=raw["tool_errors"],
            chunks=tuple([ChunkRef.from_avro(part) for part in raw["chunks"]]),
            payload_length=raw["payload_length"],
            payload_crc32c=raw["payload_crc32c"],
            temperature=raw["temperature"],
            top_p=raw["top_p"],
            top_k=raw["top_k"],
            tokens_first=raw["tokens_first"],
            tokens_end=raw["tokens_end"],
            ended_offset=raw["ended_offset"],
            verdict_offset=raw["verdict_offset"],
            issued_us=raw["issued_us"],
            first_token_us=raw["first_token_us"],
            ended_us=raw["ended_us"],
            verified_us=raw["verified_us"],
            at_us=raw["at_us"],
            writer_id=WorkerId(raw["writer_id"]),
        )


class TrajectoryDraft:
    """The layout of Trajectory without its lock: it is filled, then becomes the record."""

    __slots__ = Trajectory.__slots__


def _init_Trajectory(
    self: Any,
    *,
    run_id: RunId,
    episode_id: EpisodeId,
    group_id: GroupId,
    task_id: TaskId,
    ordinal: int = 0,  # noqa: B008  immutable
    member: int = 0,  # noqa: B008  immutable
    group_size: int = 1,  # noqa: B008  immutable
    purpose: Purpose = Purpose.TRAIN,  # noqa: B008  immutable
    environment: str = "",  # noqa: B008  immutable
    stream: str = "",  # noqa: B008  immutable
    attempt: int = 0,  # noqa: B008  immutable
    schema_version: int = 1,  # noqa: B008  immutable
    policy_digest: str = "",  # noqa: B008  immutable
    tokenizer_digest: str = "",  # noqa: B008  immutable
    template_digest: str = "",  # noqa: B008  immutable
    tool_schema_digest: str = "",  # noqa: B008  immutable
    environment_digest: str = "",  # noqa: B008  immutable
    verifier_digest: str = "",  # noqa: B008  immutable
    version_switch: VersionSwitch = VersionSwitch.SPANNING,  # noqa: B008  immutable
    spans: tuple[PolicySpan, ...] = (),  # noqa: B008  immutable
    oldest_epoch: int = 0,  # noqa: B008  immutable
    oldest_number: int = 0,  # noqa: B008  immutable
    termination: Termination = Termination.UNKNOWN,  # noqa: B008  immutable
    stop_cause: StopCause = StopCause.NONE,  # noqa: B008  immutable
    verdict_code: VerdictCode = VerdictCode.NONE,  # noqa: B008  immutable
    reward: float | None = None,  # noqa: B008  immutable
    reward_components: Mapping[str, float] = _NEW_MAP,
    reward_source: RewardSource = RewardSource.NONE,  # noqa: B008  immutable
    attribution: str = "",  # noqa: B008  immutable
    tokens: int = 0,  # noqa: B008  immutable
    action_tokens: int = 0,  # noqa: B008  immutable
    prompt_tokens: int = 0,  # noqa: B008  immutable
    observation_tokens: int = 0,  # noqa: B008  immutable
    masked: Mapping[str, int] = _NEW_MAP,
    superseded_tokens: int = 0,  # noqa: B008  immutable
    turns: int = 0,  # noqa: B008  immutable
    tool_calls: int = 0,  # noqa: B008  immutable
    tool_errors: int = 0,  # noqa: B008  immutable
    chunks: tuple[ChunkRef, ...] = (),  # noqa: B008  immutable
    payload_length: int = 0,  # noqa: B008  immutable
    payload_crc32c: int = 0,  # noqa: B008  immutable
    temperature: float = 1.0,  # noqa: B008  immutable
    top_p: float = 1.0,  # noqa: B008  immutable
    top_k: int = 0,  # noqa: B008  immutable
    tokens_first: int = -1,  # noqa: B008  immutable
    tokens_end: int = -1,  # noqa: B008  immutable
    ended_offset: int = -1,  # noqa: B008  immutable
    verdict_offset: int = -1,  # noqa: B008  immutable
    issued_us: int = 0,  # noqa: B008  immutable
    first_token_us: int = 0,  # noqa: B008  immutable
    ended_us: int = 0,  # noqa: B008  immutable
    verified_us: int = 0,  # noqa: B008  immutable
    at_us: int,
    writer_id: WorkerId,
) -> None:
    _open(self, "__class__", TrajectoryDraft)
    self.run_id = run_id
    self.episode_id = episode_id
    self.group_id = group_id
    self.task_id = task_id
    self.ordinal = ordinal
    self.member = member
    self.group_size = group_size
    self.purpose = purpose
    self.environment = environment
    self.stream = stream
    self.attempt = attempt
    self.schema_version = schema_version
    self.policy_digest = policy_digest
    self.tokenizer_digest = tokenizer_digest
    self.template_digest = template_digest
    self.tool_schema_digest = tool_schema_digest
    self.environment_digest = environment_digest
    self.verifier_digest = verifier_digest
    self.version_switch = version_switch
    self.spans = spans
    self.oldest_epoch = oldest_epoch
    self.oldest_number = oldest_number
    self.termination = termination
    self.stop_cause = stop_cause
    self.verdict_code = verdict_code
    self.reward = reward
    self.reward_components = {} if reward_components is _NEW_MAP else reward_components
    self.reward_source = reward_source
    self.attribution = attribution
    self.tokens = tokens
    self.action_tokens = action_tokens
    self.prompt_tokens = prompt_tokens
    self.observation_tokens = observation_tokens
    self.masked = {} if masked is _NEW_MAP else masked
    self.superseded_tokens = superseded_tokens
    self.turns = turns
    self.tool_calls = tool_calls
    self.tool_errors = tool_errors
    self.chunks = chunks
    self.payload_length = payload_length
    self.payload_crc32c = payload_crc32c
    self.temperature = temperature
    self.top_p = top_p
    self.top_k = top_k
    self.tokens_first = tokens_first
    self.tokens_end = tokens_end
    self.ended_offset = ended_offset
    self.verdict_offset = verdict_offset
    self.issued_us = issued_us
    self.first_token_us = first_token_us
    self.ended_us = ended_us
    self.verified_us = verified_us
    self.at_us = at_us
    self.writer_id = writer_id
    self.__class__ = Trajectory


# What it does is what the generated one does; `replace` and `copy` go through it too.
Trajectory.__init__ = _init_Trajectory  # type: ignore[method-assign]
