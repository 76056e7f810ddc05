"""Settings of tracing; reads no environment and imports nothing heavy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TracingSection(BaseModel):
    """Where spans go; no process is started for them while there is no endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="OTLP over HTTP, the full address, as in `http://127.0.0.1:4318/v1/traces`; "
        "empty: no tracing. Headers and certificates come from the variables of OpenTelemetry, "
        "such as OTEL_EXPORTER_OTLP_HEADERS.",
    )
    service_name: str = Field(
        "sluice", min_length=1, max_length=100, description="`service.name` of every span."
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of episodes whose traces are sent, chosen by their trace ids. Steps and "
        "refreshes always are. Unit: ratio.",
    )
    open_max: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="Episodes kept open; the oldest is put out for another, told as far as it is "
        "known, and counted. Unit: episodes.",
    )
    batch_spans: int = Field(
        512, ge=1, le=10_000, description="Spans in one request at most. Unit: spans."
    )
    queue_spans_max: int = Field(
        8_192,
        ge=1,
        le=1_000_000,
        description="Nothing is read from the topics while so many spans wait. Unit: spans.",
    )
    interval_s: float = Field(
        1.0, gt=0, le=10, description="A batch that is not full is sent after this long. Unit: s."
    )
    retry_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="How long a batch is tried while the collector does not answer or asks to come "
        "later; then its spans are given up and counted. Unit: s.",
    )
    drain_s: float = Field(
        5.0, ge=0, le=20, description="How long the end of a run waits for the last spans. Unit: s."
    )
