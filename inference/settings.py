"""Settings of an inference worker: values from the run configuration, no environment is read."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from inference.vllm_settings import VllmSettings

PROBE_TOLERANCE_NATS = 1.0
"""Rounding of the published weights to bf16 moves a log-prob by hundredths of a nat, engines that
compute in bf16 by tenths; a layer that is missing or misplaced moves some by several nats."""


class EngineKind(StrEnum):
    """Which engine samples."""

    VLLM = "vllm"
    SCRIPTED = "scripted"
    """Seeded tokens that mean nothing: for tests and load, never for training."""


class Fault(StrEnum):
    """What the scripted engine does wrong on purpose."""

    NONE = "none"
    NAN = "nan"
    POSITIVE = "positive"
    INFINITE = "infinite"
    MISSING = "missing"
    WRONG_LENGTH = "wrong_length"
    WRONG_VERSION = "wrong_version"
    DEATH = "death"


class ScriptedSettings(BaseModel):
    """The scripted engine's speed, length law and faults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="seed of all tokens and lengths")
    tokens_per_s: float = Field(
        default=200.0,
        ge=0.0,
        le=1e6,
        description="decode rate of one request; 0 is as fast as it can",
    )
    tick_ms: int = Field(
        default=50, ge=1, le=1000, description="how often new tokens are handed out"
    )
    length_median_tokens: float = Field(
        default=24.0, gt=0.0, le=1e6, description="median of the log-normal law of turn lengths"
    )
    length_sigma: float = Field(
        default=0.5, ge=0.0, le=3.0, description="sigma of that law; 1.0 gives p99/p50 of 10.2"
    )
    alphabet: str = Field(
        default="0123456789 abcdefghij",
        min_length=1,
        max_length=256,
        description="characters it writes",
    )
    replies: tuple[str, ...] = Field(
        default=(), description="texts of whole turns to choose from instead, by seed and history"
    )
    byte_tokenizer: bool = Field(
        default=False,
        description="ids are bytes, whatever the model folder holds: a start without transformers, "
        "for crash campaigns",
    )
    count_decoded: bool = Field(
        default=False, description="count how often each position was decoded; for tests, slow"
    )
    load_ms: int = Field(
        default=5, ge=0, le=600_000, description="how long a change of weights takes"
    )
    fault: Fault = Field(default=Fault.NONE, description="what goes wrong")
    fault_every_requests: int = Field(
        default=1,
        ge=1,
        description="every how many requests it goes wrong, the first one never spared",
    )
    fault_at_token: int = Field(
        default=3, ge=0, description="index of the token at which it goes wrong, within the request"
    )


class InferenceSettings(BaseModel):
    """One inference worker: engine, gateway and token WAL writer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineKind = Field(default=EngineKind.VLLM, description="which engine samples")
    model_path: str = Field(
        default="", description="folder of the starting weights and the tokenizer"
    )
    model_name: str = Field(default="policy", description="name that answers carry")
    listen_host: str = Field(
        default="127.0.0.1", description="address to listen on; loopback by default"
    )
    listen_port: int = Field(
        default=0, ge=0, le=65_535, description="port to listen on; 0 takes a free one"
    )
    advertise_host: str = Field(
        default="", description="host that clients use; empty is listen_host"
    )
    commit_tokens: int = Field(
        default=64, ge=1, le=16_384, description="sampled tokens of a full commit"
    )
    commit_interval_ms: int = Field(
        default=50, ge=1, le=10_000, description="age at which a smaller commit goes out"
    )
    turn_tokens_max: int = Field(
        default=1024, ge=1, description="tokens of a turn when the request names no max_tokens"
    )
    inflight_max: int = Field(default=64, ge=1, le=100_000, description="turns sampled at once")
    queued_max: int = Field(
        default=2048, ge=0, le=1_000_000, description="turns that may wait for a slot before 503"
    )
    sessions_max: int = Field(
        default=4096,
        ge=1,
        description="sessions kept in memory; the longest idle is dropped first",
    )
    request_deadline_s: float = Field(
        default=120.0, gt=0.0, le=3600.0, description="budget of one turn, waiting included"
    )
    open_deadline_s: float = Field(
        default=30.0, gt=0.0, le=600.0, description="budget of opening a session: fence and read"
    )
    drain_s: float = Field(
        default=10.0,
        gt=0.0,
        le=600.0,
        description="budget of a stop: commit what was sampled, then end",
    )
    context_max: int = Field(
        default=2048, ge=16, le=10_000_000, description="tokens that fit together"
    )
    kv_cache_gib: float = Field(
        default=1.0, gt=0.0, le=4096.0, description="memory for the KV cache"
    )
    dtype: str = Field(
        default="auto",
        pattern="^(auto|bfloat16|float16|float32)$",
        description="number format of weights and KV; auto: bfloat16 where the hardware multiplies "
        "it, else float32",
    )
    refresh_timeout_s: float = Field(
        default=120.0, gt=0.0, le=3600.0, description="budget of one change of weights"
    )
    probe_tolerance_nats: float = Field(
        default=PROBE_TOLERANCE_NATS,
        gt=0.0,
        le=100.0,
        description="how far the log-probs of loaded weights may be from the learner's, on the "
        "version's probe",
    )
    vllm: VllmSettings = Field(default_factory=VllmSettings, description="the vLLM engine")
    scripted: ScriptedSettings = Field(
        default_factory=ScriptedSettings, description="the scripted engine"
    )
