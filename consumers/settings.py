"""What the read door can be told. Values only: nothing here reads the environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ConsumerSettings(BaseModel):
    """Settings of one process's readers; the rest is fixed, since skipping records is no option."""

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
    topic_ids: dict[str, str] = Field(
        default_factory=dict,
        description="Topic id by logical name, as stored positions mean it; another stops.",
    )
    unreachable_ms: int = Field(
        default=12_000, ge=500, le=60_000,
        description="A reader gives up after this long without a broker. Unit: ms.",
    )  # fmt: skip
    queue_records_max: int = Field(
        default=20_000, ge=1, le=1_000_000,
        description="Decoded records that wait for their reader. Unit: records.",
    )  # fmt: skip
    queue_bytes_max: int = Field(
        default=33_554_432, ge=1_048_576,
        description="Their size before decoding. Unit: bytes.",
    )  # fmt: skip
    prefetch_kib: int = Field(
        default=16_384, ge=1_024, le=2_097_151,
        description="What the client library fetches ahead per reader. Unit: KiB.",
    )  # fmt: skip
    session_ms: int = Field(
        default=10_000, ge=6_000, le=300_000,
        description="A group member that is silent for this long is given up. Unit: ms.",
    )  # fmt: skip
    poll_interval_ms: int = Field(
        default=120_000, ge=10_000, le=600_000,
        description="A member that polls less often loses its partitions. Unit: ms.",
    )  # fmt: skip
