"""Settings of the refresh coordinator."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RefreshSettings(BaseModel):
    """How workers change to a new policy version, a few at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_once_max: int = Field(
        default=1, ge=1, le=1000, description="workers that change at the same time, at most"
    )
    prepare_timeout_s: float = Field(
        default=180.0,
        gt=0.0,
        le=7200.0,
        description="from Prepare to Serving; above inference.refresh_timeout_s, which is inside",
    )
    backoff_s: float = Field(
        default=1.0, gt=0.0, le=600.0, description="pause after a failure; doubles with each"
    )
    backoff_max_s: float = Field(
        default=60.0, gt=0.0, le=3600.0, description="longest pause after a failure"
    )
    tries_max: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="failures of one worker with one version; then it waits for the next version",
    )
    tick_ms: int = Field(
        default=100, ge=10, le=10_000, description="how often the coordinator decides"
    )
    mixed_fleet_s: float = Field(
        default=120.0,
        gt=0.0,
        le=7200.0,
        description="workers on different versions for longer than this are reported",
    )
