"""Settings of the vLLM engine that have no meaning for another engine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class VllmSettings(BaseModel):
    """How vLLM uses the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="CPU threads of the model, not bound to cores; 0 binds one to each core",
    )
    spins: bool = Field(
        default=True,
        description="vLLM's processes wait for one another on the processor instead of asleep: "
        "for CPU machines with idle cores; always so on a GPU",
    )
    batched_tokens_max: int = Field(
        default=2048, ge=64, le=1_000_000, description="tokens computed in one engine step"
    )
    prefix_caching: bool = Field(
        default=True, description="reuse the KV of equal prefixes under one policy version"
    )
    block_tokens: int = Field(
        default=32,
        ge=32,
        le=256,
        multiple_of=32,
        description="tokens of one KV block; only whole blocks of a prefix are reused, so that "
        "vLLM's 128 on a CPU share nothing of a short prompt",
    )
    stats: bool = Field(
        default=False,
        description="vLLM counts its own work and the worker's Prometheus page tells it too "
        "(`vllm:...`); what Sluice says of an engine does not rest on it",
    )
    memory_share: float = Field(
        default=0.85,
        gt=0.0,
        le=0.98,
        description="share of a GPU's memory for the engine; unused on CPU",
    )
    start_timeout_s: float = Field(
        default=600.0,
        gt=0.0,
        le=3600.0,
        description="budget of a start, imports of its processes included",
    )
    drain_timeout_s: float = Field(
        default=60.0, gt=0.0, le=600.0, description="budget for handing out all outputs at a swap"
    )
    load_timeout_s: float = Field(
        default=120.0, gt=0.0, le=3600.0, description="budget of loading weights at a swap"
    )
    stop_timeout_s: float = Field(
        default=15.0,
        gt=0.0,
        le=600.0,
        description="budget of a stop before the processes are killed",
    )
