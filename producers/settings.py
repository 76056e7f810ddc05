"""What the write door can be told. Values only: nothing here reads the environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ProducerSettings(BaseModel):
    """Settings of one process's producers; the rest is fixed, since losing records is no option."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str = Field(min_length=1, description="Addresses of brokers, host:port, by comma.")
    prefix: str = Field(
        default="sluice", pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Prefix of topic names."
    )
    client_id: str = Field(
        default="sluice", min_length=1, description="Who this is; host and pid are added."
    )
    security: dict[str, str] = Field(
        default_factory=dict,
        description="librdkafka's security.*, sasl.* and ssl.* settings, when the cluster asks.",
    )
    delivery_timeout_ms: int = Field(
        default=30_000, ge=1_000, le=300_000,
        description="After this long without an answer a record is Unknown. Unit: ms.",
    )  # fmt: skip
    unreachable_ms: int = Field(
        default=12_000, ge=500, le=60_000,
        description="Start gives up after this long without a broker. Unit: ms.",
    )  # fmt: skip
    queue_records_max: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Records that may wait. Unit: records."
    )
    queue_kib_max: int = Field(
        default=262_144, ge=1_024, le=2_097_151, description="Bytes that may wait. Unit: KiB."
    )
    client_version_min: tuple[int, int, int] = Field(
        default=(2, 16, 0),
        description="Oldest librdkafka to run with; older ones lose records in silence.",
    )
