"""Settings of the verifier worker. Frozen, reads no environment, imports nothing heavy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class VerifierSettings(BaseModel):
    """How one verifier worker judges."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    processes: int = Field(
        default=1, ge=1, le=256, description="Judging processes; each takes one request at a time."
    )
    judge_s: float = Field(
        default=10.0, gt=0, le=3600, description="Wall clock of one try of a rubric. Unit: s."
    )
    warm_s: float = Field(
        default=90.0,
        gt=0,
        le=600,
        description="Time for a process to start and import a rubric. Unit: s.",
    )
    memory_mib: int = Field(
        default=4096,
        ge=256,
        le=1_048_576,
        description="Address space of a judging process. Unit: MiB.",
    )
    tries_max: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Tries of one request when ours is the fault. Unit: times.",
    )
    back_off_ms: int = Field(
        default=100, ge=0, le=60_000, description="Pause between two tries. Unit: ms."
    )
    waiting_max: int = Field(
        default=256, ge=1, le=100_000, description="Requests that may wait for a process."
    )
    remembered_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Verdicts kept to answer a repeated request.",
    )
    send_deadline_s: float = Field(
        default=30.0, gt=0, le=600, description="Longest wait for one acknowledgement. Unit: s."
    )
    commit_interval_s: float = Field(
        default=1.0, gt=0, le=60, description="How often finished offsets are committed. Unit: s."
    )
    drain_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="Time for running judgements when asked to stop. Unit: s.",
    )
    poll_ms: int = Field(
        default=200,
        ge=1,
        le=5000,
        description="Longest wait of one poll, thus of a stop. Unit: ms.",
    )
    records_max: int = Field(
        default=500, ge=1, le=100_000, description="Records taken in one poll."
    )
    evidence_bytes_max: int = Field(
        default=16_384, ge=256, le=65_536, description="Evidence kept in a verdict. Unit: bytes."
    )
