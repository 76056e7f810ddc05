"""Settings of the environment worker. Frozen, reads no environment, imports nothing heavy."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SandboxSettings(BaseModel):
    """Limits of one run of a model's code."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    wall_s: float = Field(default=10.0, gt=0, le=600, description="Wall clock of one run. Unit: s.")
    cpu_s: int = Field(
        default=5, ge=1, le=600, description="Processor time of each process. Unit: s."
    )
    memory_mib: int = Field(
        default=256, ge=64, le=65536, description="Address space of each process. Unit: MiB."
    )
    disk_mib: int = Field(
        default=16, ge=1, le=4096, description="Writable /tmp, in memory. Unit: MiB."
    )
    processes_max: int = Field(
        default=16, ge=1, le=1024, description="Processes and threads at once."
    )
    files_max: int = Field(default=64, ge=16, le=4096, description="Open files of each process.")
    output_bytes_max: int = Field(
        default=16_384, ge=256, le=65_536, description="Output that the model sees. Unit: bytes."
    )


class EnvironmentSettings(BaseModel):
    """How one environment worker runs its episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    capacity: int = Field(
        default=64, ge=1, le=4096, description="Episodes that run at once. Unit: episodes."
    )
    waiting_max: int = Field(
        default=256,
        ge=1,
        le=8192,
        description="Leases that may wait for a free place. Unit: episodes.",
    )
    model: str = Field(
        default="policy", min_length=1, description="Value of `model` in requests to the gateway."
    )
    request_deadline_s: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="Longest wait for one request to the gateway. Unit: s.",
    )
    turn_deadline_s: float = Field(
        default=300.0,
        gt=0,
        le=7200,
        description="Longest time one turn may take over all workers that are asked. Unit: s.",
    )
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="Longest wait for a connection to a gateway. Unit: s."
    )
    turn_away_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="How long a gateway that failed is passed over while others serve. Unit: s.",
    )
    back_off_ms: int = Field(
        default=200, ge=1, le=10_000, description="Pause before a gateway is asked again. Unit: ms."
    )
    worker_gone_s: float = Field(
        default=20.0,
        gt=5,
        le=600,
        description="A worker silent for so long counts as gone. Unit: s.",
    )
    step_timeout_s: float = Field(
        default=30.0, gt=0, le=600, description="Longest reset, act or observe of a task. Unit: s."
    )
    lease_margin: float = Field(
        default=0.15,
        gt=0,
        lt=0.5,
        description="Share of the lease that is left unused, for delays and drift. Unit: ratio.",
    )
    send_deadline_s: float = Field(
        default=30.0, gt=0, le=600, description="Longest wait for one acknowledgement. Unit: s."
    )
    read_deadline_s: float = Field(
        default=30.0, gt=0, le=600, description="Longest wait for a read up to a fence. Unit: s."
    )
    verdict_deadline_s: float = Field(
        default=120.0,
        gt=0,
        le=7200,
        description="When a verdict must stand after its request. Unit: s.",
    )
    drain_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="Time for running turns when asked to stop. Unit: s.",
    )
    poll_ms: int = Field(
        default=200,
        ge=1,
        le=5000,
        description="Longest wait of one poll, thus of a stop. Unit: ms.",
    )
    records_max: int = Field(
        default=1000, ge=1, le=100_000, description="Records taken in one poll."
    )
    fences_max: int = Field(
        default=200_000,
        ge=1000,
        description="Episodes whose highest attempt and tool fence are kept in memory.",
    )

    @model_validator(mode="after")
    def _deadlines_nest(self) -> Self:
        if self.turn_deadline_s < self.request_deadline_s:
            raise ValueError("turn_deadline_s must be at least request_deadline_s")
        return self
